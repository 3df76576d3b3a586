"""A node in standby, and the relay to its sockets, as processes of this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skyward.model.instance import InstanceInfo
from skyward.runner.config import RunnerSettings
from skyward.runner.entry.standby import EXIT_TAKEN, GREETING, LEASE_VAR

LIMIT_S = 60  # of what takes a second on a quiet machine
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Run a part of a node, with a temporary directory of its own, as in a container."""
    started = []

    def run(*words: str, **env: str) -> subprocess.Popen[bytes]:
        program = subprocess.Popen(
            [sys.executable, "-m", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(tmp_path), **env},
        )
        started.append(program)
        return program

    yield run
    for program in started:
        with program:
            program.kill()


def greeting(node: subprocess.Popen[bytes]) -> dict[str, object]:
    assert node.stdout
    line = node.stdout.readline().decode()
    assert line.startswith(GREETING), line
    facts: dict[str, object] = json.loads(line.removeprefix(GREETING))
    return facts


def end(node: subprocess.Popen[bytes]) -> int:
    """Close a program's input and wait for its end."""
    node.communicate(timeout=LIMIT_S)
    return node.returncode


def order(**more: object) -> bytes:
    place = InstanceInfo(
        node=0,
        total_nodes=1,
        head_addr="127.0.0.1",
        head_port=1,
        peers=(),
        accelerators=0,
        job_id="0",
        workers_per_node=1,
    )
    document = {
        "compute_pool": place.to_json(),
        "runner": RunnerSettings(lease_s=LIMIT_S).to_json(),
        "key": "ab" * 32,
        "env": {},
        **more,
    }
    return json.dumps(document).encode() + b"\n"


def test_one_client_at_a_time_has_the_node(start: Start, tmp_path: Path) -> None:
    """A second one is told so by the exit status, and gets it as soon as the first has gone, whichever way."""
    start("skyward.runner.entry.standby")
    first = start("skyward.runner.entry.standby", "take")
    assert 1024 < int(str(greeting(first)["port"])) < 32768

    assert end(start("skyward.runner.entry.standby", "take")) == EXIT_TAKEN

    first.kill()
    first.wait(LIMIT_S)
    second = start("skyward.runner.entry.standby", "take")
    run_dir = Path(str(greeting(second)["run_dir"]))
    assert run_dir.stat().st_mode & 0o777 == 0o700
    assert end(second) == 0
    assert not run_dir.exists()


def test_a_taken_node_becomes_what_it_is_told_and_ends_with_its_input(start: Start) -> None:
    """It announces itself; its key is in no file by then; it and its directory are gone when the client is."""
    start("skyward.runner.entry.standby")
    node = start("skyward.runner.entry.standby", "take")
    run_dir = Path(str(greeting(node)["run_dir"]))
    assert node.stdin
    assert node.stdout
    node.stdin.write(order())
    node.stdin.flush()

    assert node.stdout.readline().startswith(b"skyward-ready ")
    assert not (run_dir / "key").exists()
    assert (run_dir / "agent.sock").is_socket()

    assert end(node) == 128 + 9
    assert not run_dir.exists()


def test_a_standby_ends_when_nobody_has_had_it_for_its_lease(start: Start) -> None:
    """While somebody has it, it does not."""
    standby = start("skyward.runner.entry.standby", **{LEASE_VAR: "6"})
    taken = start("skyward.runner.entry.standby", "take")
    greeting(taken)
    with pytest.raises(subprocess.TimeoutExpired):
        standby.wait(8)

    end(taken)

    assert standby.wait(LIMIT_S) == 0


def test_the_relay_passes_bytes_on_both_ways_until_the_runner_closes(start: Start, tmp_path: Path) -> None:
    data = os.urandom(1 << 20)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "w.sock"))
        server.listen()
        relay = start("skyward.runner.entry.relay", str(tmp_path), "unix:w.sock")
        runner, _ = server.accept()
    assert relay.stdin
    assert relay.stdout
    with runner:
        relay.stdin.write(data)
        relay.stdin.flush()
        assert runner.makefile("rb").read(len(data)) == data
        runner.sendall(data[:50_000])  # no more than a pipe holds that nobody reads yet
    assert relay.stdout.read() == data[:50_000]
    relay.stdin.close()
    assert relay.wait(LIMIT_S) == 0
