"""The program that runs one command in a node: how it ends, and how it gets signals."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
from typing import Any

import pytest

from skyward.nodes.process_id import ProcessId
from tests.waiting import wait_until

SESSION = [sys.executable, "-m", "skyward.runner.entry.session"]


def session(*argv: str, token: str = "x") -> subprocess.Popen[bytes]:
    """The command's program."""
    order = {"token": token, "pool": "none", "node": 0, "cwd": "/"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*SESSION, "run", json.dumps(order), *argv], **pipes)


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
    """Why it cannot be run is printed."""
    with session(*argv) as run:
        out, err = run.communicate(b"given", timeout=60)
        assert run.returncode in (status, 128 - status)

    assert out == (b"given" if status == 3 else b"")
    assert said in err


def test_signals_reach_the_command_and_all_that_it_has_started() -> None:
    """Whatever session and environment that has; other commands get none."""
    script = "env -i setsid sleep 600 & echo $!; trap 'exit 9' USR1; while :; do sleep 0.1; done"
    token = secrets.token_hex(8)
    with session("env", "-i", "sh", "-c", script, token=token) as run, session("cat", token=token + "x") as other:
        assert run.stdout and other.stdin
        child = ProcessId.of(int(run.stdout.readline()))
        subprocess.run([*SESSION, "signal", token, str(int(signal.SIGUSR1))], check=True)
        assert run.wait(60) == 9
        wait_until(child.is_gone, 60)
        other.stdin.close()
        assert other.wait(60) == 0
