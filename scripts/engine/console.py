"""How the engine script talks and runs things: one line per step with its time, commands with a log.

Knows nothing of engines.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_name = "engine"


class SetupError(Exception):
    """Something that cannot be had; the message says what was tried, what was found and what to do."""


def command_line(name: str, **commands: Callable[[], None]) -> int:
    """Run the command that the arguments name; return 1, with a sentence on stderr, if something is missing."""
    global _name
    _name = name
    parser = argparse.ArgumentParser(prog=f"python3 -m scripts.{name}")
    parser.add_argument("command", choices=commands)
    chosen = parser.parse_args().command
    try:
        commands[chosen]()
    except (SetupError, OSError) as problem:
        print(f"{name}: {problem}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print(f"{name}: interrupted; run the same command again to go on.", file=sys.stderr, flush=True)
        return 1
    return 0


def say(line: str) -> None:
    """Print one line at once, also when the output is a pipe."""
    print(f"{_name}: {line}", flush=True)


@contextmanager
def step(doing: str) -> Iterator[None]:
    """Announce a step and, when it ends, say on the same line how long it took."""
    print(f"{_name}: {doing} ... ", end="", flush=True)
    started_s = time.monotonic()
    try:
        yield
    except BaseException:
        print(f"failed after {time.monotonic() - started_s:.1f} s", flush=True)
        raise
    print(f"{time.monotonic() - started_s:.1f} s", flush=True)


def capture(argv: Sequence[str], *, timeout_s: float = 30, env: Mapping[str, str] | None = None) -> str | None:
    """Return what a command prints, or None when it is missing, fails or does not end in time."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=timeout_s, env=env, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def run(argv: Sequence[str], *, log: Path, timeout_s: float = 900, env: Mapping[str, str] | None = None) -> None:
    """Run a command with its output appended to `log`; on failure raise `SetupError` with the last lines."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        output.write(f"\n$ {' '.join(argv)}\n".encode())
        output.flush()
        start = output.tell()
        try:
            done = subprocess.run(
                argv,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                timeout=timeout_s,
                env=env,
                check=False,
            )
        except subprocess.TimeoutExpired as e:
            raise SetupError(f"{argv[0]} did not end within {timeout_s:.0f} s; its output is in {log}.") from e
        except OSError as e:
            raise SetupError(f"{argv[0]} could not be started: {e}.") from e
    if done.returncode != 0:
        raise SetupError(
            f"{argv[0]} failed with status {done.returncode}. Its last words:\n{tail(log, start=start)}\n"
            f"All of its output is in {log}."
        )


def tail(log: Path, *, start: int = 0, lines: int = 8) -> str:
    """Return the last lines of a log file, from byte `start` on."""
    with log.open("rb") as text:
        text.seek(start)
        kept = text.read().decode(errors="replace").strip().splitlines()[-lines:]
    return "\n".join(f"    {line}" for line in kept)
