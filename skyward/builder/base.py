"""The contents of a base image (Python, user, C library ...), and whether an image can be built on it.

They are read from the base's configuration and files, without running anything, and recorded by the base's id. A node
can be started through an entry point only if that runs the command it receives: `runs_commands` determines that.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward.builder.dockerfile import reads_context
from skyward.builder.folders import cache_path, read, write
from skyward.builder.store import EngineImages, ImageFacts
from skyward.errors import ImageError
from skyward.image import BaseFacts, Interpreter, Plan
from skyward.image.plan import user_in_the_end
from skyward.model.image import Image

if TYPE_CHECKING:
    from skyward.engine.images import ImageFiles

_FORMAT = 3  # raised when the collected facts change
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # the engine's default for images without PATH
_MINORS = range(8, 16)  # minor versions of Python 3
_NEEDED = ("sh", "cat", "chmod", "cp", "find", "grep", "mkdir", "sleep", "touch")
_STOP_SIGNALS = ("", "SIGTERM", "TERM", "15")
_MUSL = {"amd64": "x86_64", "arm64": "aarch64", "riscv64": "riscv64"}
_LIBC = "lib/{machine}-linux-gnu/libc.so.6", "lib64/libc.so.6", "lib/libc.so.6"
_CUDA_FILES = ("/usr/local/cuda/version.json", "/usr/local/cuda/version.txt")
_VERSION = re.compile(r"python(3\.\d+)$")
_GLIBC = re.compile(rb"GNU C Library [^\n]*? version (\d+\.\d+)")
_SYSTEM = re.compile(r"""^PRETTY_NAME=["']?([^"'\n]+)""", re.MULTILINE)
_SHELLS = {"sh", "bash", "dash", "ash", "zsh"}
# programs that run the command after their own options, and those of their options that have a value
_WRAPPERS = {
    "catatonit": (),
    "chpst": ("-u", "-n"),
    "conda": ("-n", "-p", "--name", "--prefix", "--cwd"),
    "dumb-init": ("-r", "--rewrite"),
    "env": ("-u", "-C", "--unset", "--chdir"),
    "gosu": (),
    "mamba": ("-n", "-p", "--name", "--prefix", "--cwd"),
    "micromamba": ("-n", "-p", "--name", "--prefix", "--cwd"),
    "nice": ("-n", "--adjustment"),
    "setpriv": (),
    "stdbuf": ("-i", "-o", "-e"),
    "su-exec": (),
    "tini": ("-p", "-e"),
    "tini-static": ("-p", "-e"),
}
_USER_FIRST = {"gosu", "su-exec"}
_RUN_FIRST = {"conda", "mamba", "micromamba"}
_NAMES = "|".join(map(re.escape, _WRAPPERS))
# a shell command that is all the arguments, perhaps behind one of the programs above
_RUNS_ARGUMENTS = re.compile(
    rf"""(?:^|[;&|{{(]|\b(?:exec|then|else|do))\s*(?:exec\s+)?(?:[\w./-]*\b(?:{_NAMES})\s[^\n;&|]*?)?
    (?:"\$@"|\$@|"\$\{{@\}}"|\$\{{@\}}|\$\*)\s*(?:$|[;&|}})])""",
    re.MULTILINE | re.VERBOSE,
)


def facts_of_base(reference: str, facts: ImageFacts, store: EngineImages, platform: str) -> BaseFacts:
    """Return the facts of an image on the engine, for images built on it; cached by its id.

    Raises:
        EngineError: the engine refuses.
    """
    note = _note(facts.id, platform)
    with suppress(ValueError, KeyError, TypeError, AttributeError):  # missing, half written, or of another version
        return BaseFacts.of(json.loads(read(note) or ""))
    whole = facts if facts.config is not None else store.inspect(reference)
    config = (whole.config if whole else None) or {}
    with store.files(reference) as files:
        found = examine(config, files, platform)
    write(note, json.dumps(asdict(found)))
    return found


def noted_libc(dockerfile: str, find: Callable[[], str]) -> str:
    """Return the C library for a Dockerfile's digest, cached like the facts of `facts_of_base`."""
    note = _note(dockerfile, "libc")
    known = read(note)
    if known is None:
        known = find()
        write(note, known)
    return known


def check_base(name: str, given: BaseFacts, image: Image, python: str) -> None:
    """Check that an image can be built on a base. The image's Debian packages and commands may add accounts.

    Raises:
        ImageError: the base lacks something that is required.
    """
    reason = why_unfit(given, python) or ("" if image.apt or image.run else why_no_account(given))
    if reason:
        raise ImageError(f"The base image {name} cannot be built on. {reason}")


def why_no_account(given: BaseFacts) -> str:
    """Return the reason why nodes cannot run as the user of a base, with the remedy; "" if they can."""
    if not given.unknown_names:
        return ""
    return (
        f"Nodes run as its user {given.user_in_the_end!r}, but its /etc/passwd and /etc/group have no "
        f"{' and no '.join(map(repr, given.unknown_names))}. In a Dockerfile of your own, add the account or give "
        "the user by its number, and use that as the base; or add the account in run=[...]."
    )


def why_unfit(given: BaseFacts, python: str) -> str:
    """Return the reason why nothing can be built on a base, with the remedy; "" if it is suitable."""
    if "sh" in given.missing:
        return (
            "It has no shell, as is usual for images called distroless or made from scratch, and installing packages "
            f"takes one. Take a base with a shell, such as python:{python}-slim, and copy what you need into it."
        )
    if given.libc == "musl":
        return (
            f"Its C library is musl{_said(given)}, and the packages of nodes are those for glibc. Take a base made "
            f"from Debian, Ubuntu or another distribution with glibc, such as python:{python}-slim."
        )
    if given.missing:
        return (
            f"It lacks programs that the steps of a build need: {', '.join(given.missing)}{_said(given)}. Install them "
            "in a Dockerfile of your own and name that as base (they are in the packages coreutils, findutils, grep)."
        )
    reading = [line for line in given.onbuild if reads_context(line)]
    if reading:
        return (
            f"Its ONBUILD instructions copy files of the folder that a build is started in: {'; '.join(reading)}. Make "
            "an image of your own from it, with a Dockerfile in that folder, and name this Dockerfile as base."
        )
    if given.lacks(python) and not given.pythons and not given.apt:
        return (
            f"It has no Python, and neither pip nor apt to bring one{_said(given)}. Install Python {python} in a "
            f"Dockerfile of your own and name that as base, or take one that has it, such as python:{python}-slim."
        )
    return ""


def replaced_python(plan: Plan) -> str:
    """Return a message if the image gets another Python than the base has; else ""."""
    if not (plan.given and plan.given.pythons and plan.given.lacks(plan.python)):
        return ""
    first = plan.given.pythons[0]
    return (
        f"the base has Python {first.version} ({first.path}), and nodes get Python {plan.python}, as this client has: "
        "packages that the base has for its own are not seen there"
    )


def _said(given: BaseFacts) -> str:
    return f" ({given.system})" if given.system else ""


def _note(image: str, platform: str) -> Path:
    name = hashlib.sha256(f"{_FORMAT} {image} {platform}".encode()).hexdigest()
    return cache_path("bases", f"{name[:32]}.json")


def examine(config: Mapping[str, Any], files: ImageFiles, platform: str) -> BaseFacts:
    """Return the facts of a base.

    Args:
        config: the image's configuration, with the engine's key names.
        files: its files.
        platform: its platform, such as "linux/amd64".

    Raises:
        EngineError: the engine that has it refuses.
    """
    env = dict(pair.split("=", 1) for pair in config.get("Env") or () if "=" in pair)
    folders = (env.get("PATH") or _PATH).split(":")
    entrypoint = tuple(config.get("Entrypoint") or ())
    system = _SYSTEM.search((files.read("/etc/os-release") or b"").decode(errors="replace"))
    stop_signal, shell = config.get("StopSignal") or "", tuple(config.get("Shell") or ())
    user, onbuild = config.get("User") or "", tuple(config.get("OnBuild") or ())
    return BaseFacts(
        user=user,
        home=env.get("HOME", ""),
        entrypoint=entrypoint,
        runs_commands=runs_commands(entrypoint, lambda program: _program(program, folders, files)),
        healthcheck=((config.get("Healthcheck") or {}).get("Test") or ["NONE"]) != ["NONE"],
        stop_signal="" if stop_signal in _STOP_SIGNALS else stop_signal,
        shell=() if shell == ("/bin/sh", "-c") else shell,
        onbuild=onbuild,
        pythons=tuple(_pythons(env, folders, files)),
        libc=_libc(files, platform),
        system=system[1] if system else "",
        apt=_find("apt-get", folders, files) is not None,
        cuda=_cuda(env, files),
        missing=tuple(name for name in _NEEDED if _find(name, [*folders, *_PATH.split(":")], files) is None),
        unknown_names=() if _runs(onbuild) else tuple(_unknown_names(user_in_the_end(user, onbuild), files)),
    )


def _runs(onbuild: Sequence[str]) -> bool:
    """Return whether the instructions that a base adds to builds run a command, which may add accounts."""
    return any(line.split()[0].upper() == "RUN" for line in onbuild)


def _unknown_names(user: str, files: ImageFiles) -> Iterator[str]:
    """Yield the names in "user:group" that have no account; numbers need none."""
    for name, place in zip(user.split(":"), ("/etc/passwd", "/etc/group"), strict=False):
        lines = (files.read(place) or b"").decode(errors="replace").splitlines()
        if name and not name.isdigit() and name not in (line.partition(":")[0] for line in lines):
            yield name


def _find(name: str, folders: list[str], files: ImageFiles) -> str | None:
    """Return the path of a program, searched as a shell does."""
    places = (posixpath.join(folder, name) for folder in dict.fromkeys(folders))
    return next((place for place in places if files.find(place)), None)


def _program(program: str, folders: list[str], files: ImageFiles) -> bytes | None:
    path = program if program.startswith("/") else _find(program, folders, files)
    return files.read(path) if path else None


def _pythons(env: Mapping[str, str], folders: list[str], files: ImageFiles) -> Iterator[Interpreter]:
    """Yield the Pythons in the order in which a build searches them, each once."""
    active = [posixpath.join(env[name], "bin") for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if env.get(name)]
    names = ["python", "python3", *(f"python3.{minor}" for minor in _MINORS)]
    places = [f"{folder}/python" for folder in ("/opt/venv/bin", *active)]
    places += [posixpath.join(folder, name) for name in names for folder in dict.fromkeys(folders)]
    seen = set()
    for place in places:
        target = files.find(place)
        if target is None:
            continue
        found = _interpreter(place, target, files)
        file = (found.environment, target.removeprefix("/usr"))  # /bin leads to /usr/bin
        if file not in seen:  # one name per file suffices
            seen.add(file)
            yield found


def _interpreter(place: str, target: str, files: ImageFiles) -> Interpreter:
    """Describe a Python by its path and by the file that it leads to."""
    environment = posixpath.dirname(posixpath.dirname(place))
    settings = (files.read(posixpath.join(environment, "pyvenv.cfg")) or b"").decode(errors="replace")
    version = re.search(r"^version(?:_info)? *= *(3\.\d+)", settings, re.MULTILINE) or _VERSION.search(target)
    return Interpreter(path=place, version=version[1] if version else "", environment=environment if settings else "")


def _libc(files: ImageFiles, platform: str) -> str:
    architecture = platform.split("/")[1]
    machine = _MUSL.get(architecture, architecture)
    for place in _LIBC:
        for root in ("/", "/usr/"):
            content = files.read(root + place.format(machine=machine))
            if content is not None:
                version = _GLIBC.search(content)
                return f"glibc {version[1].decode()}" if version else ""
    return "musl" if files.find(f"/lib/ld-musl-{machine}.so.1") else ""


def _cuda(env: Mapping[str, str], files: ImageFiles) -> str:
    """Return the version named by CUDA's own images, or else that of an installed toolkit."""
    if env.get("CUDA_VERSION"):
        return env["CUDA_VERSION"]
    for place in _CUDA_FILES:
        content = files.read(place)
        if content:
            text = content.decode(errors="replace")
            if place.endswith(".json"):
                text = str(json.loads(text).get("cuda", {}).get("version", ""))
            found = re.search(r"\d+(\.\d+)+", text)
            return found[0] if found else "of an unknown version"
    return ""


def runs_commands(entrypoint: Sequence[str], read: Callable[[str], bytes | None]) -> bool:
    """Return whether an entry point runs the command it receives.

    An init (`tini --`), a program such as `env`, and a script with `exec "$@"` do. Anything unrecognised counts as a
    program that does not.

    Args:
        entrypoint: the entry point in the image's configuration.
        read: returns the content of a program in the image, by path or name; None if it does not exist.
    """
    if not entrypoint:
        return True
    program, *given = entrypoint
    name = posixpath.basename(program)
    if name in _WRAPPERS:
        return runs_commands(_behind(name, given), read)
    if name in _SHELLS:
        return _shell_runs(given, read)
    return _script_runs(read(program))


def _behind(name: str, given: Sequence[str]) -> list[str]:
    """Return the command that a wrapping program runs: its arguments without its own options."""
    words = list(given)
    if name in _RUN_FIRST and words[:1] == ["run"]:
        del words[0]
    while words and (words[0].startswith("-") or (name == "env" and "=" in words[0])):
        option = words.pop(0)
        if option == "--":
            break
        if option in _WRAPPERS[name]:
            del words[:1]
    if name in _USER_FIRST:
        del words[:1]
    return words


def _shell_runs(given: Sequence[str], read: Callable[[str], bytes | None]) -> bool:
    """Return whether a shell runs the command: a string (`-c`) or script may; without either, a shell reads a file."""
    text = next((at + 1 for at, word in enumerate(given) if re.fullmatch(r"-[a-z]*c", word)), None)
    if text is not None:  # the first word after the text is $0, so a command is complete only behind one
        return len(given) > text + 1 and bool(_RUNS_ARGUMENTS.search(given[text]))
    script = next((word for word in given if not word.startswith("-")), None)
    return script is not None and _script_runs(read(script), shebang=False)


def _script_runs(content: bytes | None, *, shebang: bool = True) -> bool:
    if content is None or (shebang and not content.startswith(b"#!")):
        return False
    return bool(_RUNS_ARGUMENTS.search(content.decode(errors="replace")))
