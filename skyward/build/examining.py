"""What a base image has, read from its configuration and its files. Nothing of it is run."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from skyward.build.entrypoint import runs_commands
from skyward.build.store import ImageFiles
from skyward.image import BaseFacts, Interpreter

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # the engine's own, where an image names none
_MINORS = range(8, 16)  # of Python 3
_NEEDED = ("sh", "cat", "chmod", "cp", "find", "grep", "mkdir", "sleep", "touch")
_STOP_SIGNALS = ("", "SIGTERM", "TERM", "15")
_MUSL = {"amd64": "x86_64", "arm64": "aarch64", "riscv64": "riscv64"}
_LIBC = "lib/{machine}-linux-gnu/libc.so.6", "lib64/libc.so.6", "lib/libc.so.6"
_CUDA_FILES = ("/usr/local/cuda/version.json", "/usr/local/cuda/version.txt")
_VERSION = re.compile(r"python(3\.\d+)$")
_GLIBC = re.compile(rb"GNU C Library [^\n]*? version (\d+\.\d+)")
_SYSTEM = re.compile(r"""^PRETTY_NAME=["']?([^"'\n]+)""", re.MULTILINE)


def examine(config: Mapping[str, Any], files: ImageFiles, platform: str) -> BaseFacts:
    """What a base has.

    Args:
        config: the image's configuration, with the names that engines give its parts.
        files: its files.
        platform: it is for, such as "linux/amd64".

    Raises:
        EngineError: the engine that has it refuses.
    """
    env = dict(pair.split("=", 1) for pair in config.get("Env") or () if "=" in pair)
    folders = (env.get("PATH") or _PATH).split(":")
    entrypoint = tuple(config.get("Entrypoint") or ())
    stop_signal, shell = config.get("StopSignal") or "", tuple(config.get("Shell") or ())
    return BaseFacts(
        user=config.get("User") or "",
        home=env.get("HOME", ""),
        entrypoint=entrypoint,
        runs_commands=runs_commands(entrypoint, lambda program: _program(program, folders, files)),
        healthcheck=((config.get("Healthcheck") or {}).get("Test") or ["NONE"]) != ["NONE"],
        stop_signal="" if stop_signal in _STOP_SIGNALS else stop_signal,
        shell=() if shell == ("/bin/sh", "-c") else shell,
        onbuild=tuple(config.get("OnBuild") or ()),
        pythons=tuple(_pythons(env, folders, files)),
        libc=_libc(files, platform),
        system=_system(files),
        apt=_find("apt-get", folders, files) is not None,
        cuda=_cuda(env, files),
        missing=tuple(name for name in _NEEDED if _find(name, [*folders, *_PATH.split(":")], files) is None),
    )


def _find(name: str, folders: list[str], files: ImageFiles) -> str | None:
    """Where a program is, looked for as a shell does."""
    places = (posixpath.join(folder, name) for folder in dict.fromkeys(folders))
    return next((place for place in places if files.find(place)), None)


def _program(program: str, folders: list[str], files: ImageFiles) -> bytes | None:
    path = program if program.startswith("/") else _find(program, folders, files)
    return files.read(path) if path else None


def _pythons(env: Mapping[str, str], folders: list[str], files: ImageFiles) -> Iterator[Interpreter]:
    """Its Pythons in the order in which a build looks for them, each once."""
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
        if file not in seen:  # one name is enough of a file that has several
            seen.add(file)
            yield found


def _interpreter(place: str, target: str, files: ImageFiles) -> Interpreter:
    """What a Python's place, and the file that it leads to, tell of it."""
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


def _system(files: ImageFiles) -> str:
    found = _SYSTEM.search((files.read("/etc/os-release") or b"").decode(errors="replace"))
    return found[1] if found else ""


def _cuda(env: Mapping[str, str], files: ImageFiles) -> str:
    """The version that CUDA's own images name, else that of an installed toolkit."""
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
