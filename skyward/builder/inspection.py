"""Inspection of a base image by its configuration and files; nothing of it is run.

A node can be started through an entry point only if that runs the command it is given: `runs_commands` decides that.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from skyward.image import BaseFacts, Interpreter

if TYPE_CHECKING:
    from skyward.engine.images import ImageFiles

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
# a command of a shell that is all the arguments, perhaps behind one of the programs above
_RUNS_ARGUMENTS = re.compile(
    rf"""(?:^|[;&|{{(]|\b(?:exec|then|else|do))\s*(?:exec\s+)?(?:[\w./-]*\b(?:{_NAMES})\s[^\n;&|]*?)?
    (?:"\$@"|\$@|"\$\{{@\}}"|\$\{{@\}}|\$\*)\s*(?:$|[;&|}})])""",
    re.MULTILINE | re.VERBOSE,
)


def examine(config: Mapping[str, Any], files: ImageFiles, platform: str) -> BaseFacts:
    """The facts of a base.

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
    system = _SYSTEM.search((files.read("/etc/os-release") or b"").decode(errors="replace"))
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
        system=system[1] if system else "",
        apt=_find("apt-get", folders, files) is not None,
        cuda=_cuda(env, files),
        missing=tuple(name for name in _NEEDED if _find(name, [*folders, *_PATH.split(":")], files) is None),
    )


def _find(name: str, folders: list[str], files: ImageFiles) -> str | None:
    """The path of a program, found as a shell finds it."""
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
    """The version of a Python by its path and by the file that it leads to."""
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


def runs_commands(entrypoint: Sequence[str], read: Callable[[str], bytes | None]) -> bool:
    """Whether an entry point runs the command that it is given.

    An init (`tini --`), a program such as `env`, and a script with `exec "$@"` do. What cannot be told is taken for a
    program of its own.

    Args:
        entrypoint: as the image names it.
        read: the content of a program in the image, by path or by name; None if it is not there.
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
    """The command that a wrapping program runs: its arguments without its own options."""
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
    """A shell runs a string (`-c`), a script, or, with nothing, the file that is its first argument: no command."""
    text = next((at + 1 for at, word in enumerate(given) if re.fullmatch(r"-[a-z]*c", word)), None)
    if text is not None:  # the first word after the text is $0, so that a command is whole only behind one
        return len(given) > text + 1 and bool(_RUNS_ARGUMENTS.search(given[text]))
    script = next((word for word in given if not word.startswith("-")), None)
    return script is not None and _script_runs(read(script), shebang=False)


def _script_runs(content: bytes | None, *, shebang: bool = True) -> bool:
    if content is None or (shebang and not content.startswith(b"#!")):
        return False
    return bool(_RUNS_ARGUMENTS.search(content.decode(errors="replace")))
