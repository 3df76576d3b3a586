"""A worker whose agent is killed ends, also when the agent had not read what the worker said."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from skyward.model.instance import ENV_VAR
from skyward.runner.config import WorkerStart
from tests.unit.runner.node import PATIENCE_S, PLACE


@pytest.mark.parametrize("heard", [True, False], ids=["heard", "unheard"])
def test_a_worker_ends_with_its_agent(tmp_path: Path, heard: bool) -> None:
    """A socket that is closed with unread bytes in it is reset, which is no end of file to the other side."""
    ours, theirs = socket.socketpair()
    start = WorkerStart(index=0, generation=0, slots=1, run_dir=str(tmp_path), key="00" * 32)
    with theirs:
        worker = subprocess.Popen(
            [sys.executable, "-m", "skyward.runner.worker", str(theirs.fileno())],
            cwd=tmp_path,
            env={**os.environ, ENV_VAR: PLACE.to_json()},
            pass_fds=(theirs.fileno(),),
            stderr=subprocess.DEVNULL,
        )
    try:
        ours.sendall(json.dumps(asdict(start)).encode() + b"\n")
        assert select.select([ours], [], [], PATIENCE_S)[0]  # it listens
        if heard:
            assert b"listening" in ours.recv(4096)
        ours.close()
        assert worker.wait(PATIENCE_S) == 1
    finally:
        worker.kill()
        worker.wait()
