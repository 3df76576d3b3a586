"""The contents of a base image (Python, user, C library ...), and whether an image can be built on it.

A container of the base prints them (`base.sh`), once for each image's id. Nodes are started through the base's entry
point only if that runs the command it receives, which the container tries as well.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from skyward.builder.folders import cache_path, read, write
from skyward.builder.store import EngineImages, ImageFacts
from skyward.errors import EngineError, EngineMissingError, ImageError
from skyward.image import BaseFacts

_FORMAT = 5  # raised when the collected facts change
_SCRIPT = Path(__file__).with_name("base.sh")
_STOP_SIGNALS = ("", "SIGTERM", "TERM", "15")
_FACT = re.compile(r"^skyward: (\w+) ?(.*?)\r?$", re.MULTILINE)
_NO_SHELL = re.compile(r"/bin/sh\W.{0,60}(?:no such file|not found|permission denied)", re.IGNORECASE | re.DOTALL)


def facts_of_base(name: str, facts: ImageFacts, store: EngineImages) -> BaseFacts:
    """Return the facts of an image on the engine, for images built on it; cached by its id.

    Args:
        name: its name, for errors.
        facts: the engine's description.
        store: the images of the engine.

    Raises:
        ImageError: its programs cannot be run on the engine's machine.
        EngineError: the engine refuses.
    """
    note = cache_path("bases", f"{facts.id.rpartition(':')[2][:32]}-{_FORMAT}.json")
    with suppress(ValueError, KeyError, TypeError, AttributeError):  # missing, half written, or of another version
        return BaseFacts.of(json.loads(read(note) or ""))
    found = of_image(facts, _printed(name, facts, store))
    write(note, json.dumps(asdict(found)))
    return found


def _printed(name: str, facts: ImageFacts, store: EngineImages) -> str | None:
    """Return what the script prints in a container of an image; None if it has no shell."""
    try:
        printed = store.run(facts.id, _SCRIPT.read_text(), facts.config.get("Entrypoint") or ())
    except EngineMissingError:
        raise
    except EngineError as error:
        if _NO_SHELL.search(str(error)):
            return None
        raise
    if not _FACT.search(printed):
        raise ImageError(
            f"The base image {name} cannot be built on: its programs cannot be run on the engine's machine. "
            f"Its shell printed: {printed.strip() or 'nothing'}"
        )
    return printed


def of_image(facts: ImageFacts, printed: str | None) -> BaseFacts:
    """Return the facts of a base from its configuration and the output of the script; None if it has no shell."""
    config = facts.config
    said: dict[str, list[str]] = {}
    for name, value in _FACT.findall(printed or ""):
        said.setdefault(name, []).append(value)
    env = dict(pair.split("=", 1) for pair in config.get("Env") or () if "=" in pair)
    pythons: dict[str, str] = {}
    for each in said.get("python", ()):
        version, _, path = each.partition(" ")
        pythons.setdefault(version, path)
    stop_signal, shell = config.get("StopSignal") or "", tuple(config.get("Shell") or ())
    return BaseFacts(
        user=config.get("User") or "",
        home=env.get("HOME", ""),
        runs_commands=not config.get("Entrypoint") or "runs" in said,
        healthcheck=((config.get("Healthcheck") or {}).get("Test") or ["NONE"]) != ["NONE"],
        stop_signal="" if stop_signal in _STOP_SIGNALS else stop_signal,
        shell=() if shell == ("/bin/sh", "-c") else shell,
        onbuild=tuple(config.get("OnBuild") or ()),
        pythons=tuple(pythons.items()),
        libc=said.get("libc", [""])[0],
        system=said.get("system", [""])[0],
        apt="apt" in said,
        missing=("sh",) if printed is None else tuple(said.get("missing", ())),
    )


def check_base(name: str, given: BaseFacts, python: str) -> None:
    """Check that an image can be built on a base.

    Raises:
        ImageError: the base lacks something that is required.
    """
    system = f" ({given.system})" if given.system else ""
    if "sh" in given.missing:
        reason = (
            "It has no shell, as is usual for images called distroless or made from scratch, and installing packages "
            f"requires one. Use a base with a shell, such as python:{python}-slim, and copy what you need into it."
        )
    elif given.libc == "musl":
        reason = (
            f"Its C library is musl{system}, and the packages of nodes are those for glibc. Use a base made from "
            f"Debian, Ubuntu or another distribution with glibc, such as python:{python}-slim."
        )
    elif given.missing:
        reason = (
            f"It lacks programs that the steps of a build need: {', '.join(given.missing)}{system}. Install them in a "
            "Dockerfile of your own and name that as base (they are in the packages coreutils, findutils, grep)."
        )
    elif given.lacks(python) and not given.pythons and not given.apt:
        reason = (
            f"It has no Python, and neither pip nor apt to bring one{system}. Install Python {python} in a Dockerfile "
            f"of your own and name that as base, or use one that has it, such as python:{python}-slim."
        )
    else:
        return
    raise ImageError(f"The base image {name} cannot be built on. {reason}")
