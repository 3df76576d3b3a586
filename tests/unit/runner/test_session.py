"""The program that runs one command in a node: how it ends, and what becomes of it when its client is gone."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.waiting import wait_until

SESSION = [sys.executable, "-m", "skyward.runner.entry.session"]


@contextmanager
def session(*argv: str, **order: Any) -> Iterator[tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]]:
    """The command's program and the client's second one."""
    token = secrets.token_hex(8)
    about = {"token": token, "pool": "none", "node": 0, "cwd": "/", **order}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen([*SESSION, "control", token], **pipes) as control,
        subprocess.Popen([*SESSION, "run", json.dumps(about), *argv], stderr=subprocess.PIPE, **pipes) as run,
    ):
        try:
            yield run, control
        finally:
            run.kill()
            control.kill()


@pytest.mark.parametrize(
    ("argv", "status", "said"),
    [
        (["sh", "-c", "cat; exit 3"], 3, b""),
        (["sh", "-c", "kill -TERM $$"], 143, b""),
        (["no-such-program"], 127, b"no-such-program was not found on the node; its PATH is "),
        (["/"], 126, b"/ cannot be run on the node (Permission denied)."),
    ],
)
def test_the_status_of_a_command_is_reported(argv: list[str], status: int, said: bytes) -> None:
    """On both ways; why it cannot be run is printed."""
    with session(*argv) as (run, control):
        out, err = run.communicate(b"given", timeout=60)
        assert (run.returncode, int(control.communicate(timeout=60)[0])) == (status, status)

    assert out == (b"given" if status == 3 else b"")
    assert said in err


def test_signals_reach_the_command() -> None:
    """Each byte of the client is one."""
    with session("sh", "-c", "trap 'exit 9' USR1; echo ready; while :; do sleep 0.1; done") as (run, control):
        assert run.stdout and control.stdin
        assert run.stdout.readline() == b"ready\n"
        control.stdin.write(bytes([signal.SIGUSR1]))
        control.stdin.flush()
        assert run.wait(60) == 9


def test_nothing_is_left_when_the_client_is_gone() -> None:
    """Whatever session it has, and although it ignores a hangup."""
    mark = f"9{secrets.randbelow(10**6):06}"
    with session("sh", "-c", f"setsid sleep {mark} & trap '' HUP; echo ready; sleep {mark}; :") as (run, control):
        assert run.stdout and control.stdin
        assert run.stdout.readline() == b"ready\n"
        control.stdin.close()
        run.wait(60)
        wait_until(
            lambda: subprocess.run(["pgrep", "-f", f"sleep {mark}"], capture_output=True, check=False).returncode, 60
        )
