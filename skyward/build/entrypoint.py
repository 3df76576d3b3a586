"""Whether the entry point of an image runs the command that it is given: only then can a node be started through it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence

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


def runs_commands(entrypoint: Sequence[str], read: Callable[[str], bytes | None]) -> bool:
    """Whether an entry point runs what it is given.

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
    """What a wrapping program runs: its arguments without its own."""
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
    """A shell runs a text (`-c`), a script, or, with nothing, the file that is its first argument: no command."""
    text = next((at + 1 for at, word in enumerate(given) if re.fullmatch(r"-[a-z]*c", word)), None)
    if text is not None:  # the first word after the text is $0, so that a command is whole only behind one
        return len(given) > text + 1 and bool(_RUNS_ARGUMENTS.search(given[text]))
    script = next((word for word in given if not word.startswith("-")), None)
    return script is not None and _script_runs(read(script), shebang=False)


def _script_runs(content: bytes | None, *, shebang: bool = True) -> bool:
    if content is None or (shebang and not content.startswith(b"#!")):
        return False
    return bool(_RUNS_ARGUMENTS.search(content.decode(errors="replace")))
