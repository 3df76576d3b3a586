"""The program that runs one command in a node: its frames, and what becomes of commands whose client is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skyward.errors import WireError
from skyward.wire.session import WINDOW, Decoder, Kind, encode, encode_json
from tests.waiting import wait_until


@contextmanager
def session() -> Iterator[subprocess.Popen[bytes]]:
    """The program, with pipes as an engine gives them."""
    command = [sys.executable, "-m", "skyward.runner.entry.session"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            yield process
        finally:
            process.kill()


def order(*argv: str, **more: object) -> bytes:
    return encode_json(Kind.START, {"argv": argv, "pool": "none", "node": 0, "cwd": "/", **more})


def frames(process: subprocess.Popen[bytes]) -> Iterator[tuple[Kind, bytes]]:
    assert process.stdout
    decoder = Decoder()
    while data := process.stdout.read(65536):
        yield from decoder.feed(data)


def test_frames_are_found_wherever_the_data_is_cut() -> None:
    """Byte by byte and all at once give the same."""
    data = encode(Kind.OUTPUT, b"abc") + encode_json(Kind.TAKEN, 7) + encode(Kind.END)
    expected = [(Kind.OUTPUT, b"abc"), (Kind.TAKEN, b"7"), (Kind.END, b"")]
    decoder = Decoder()

    assert [frame for byte in data for frame in decoder.feed(bytes([byte]))] == expected
    assert list(Decoder().feed(data)) == expected


@pytest.mark.parametrize("data", [b"Traceback (most", bytes([16]) + b"\xff" * 4])
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    """A kind that is not known, and a length that none has."""
    with pytest.raises(WireError, match="sent no frame"):
        list(Decoder().feed(data))


def test_a_command_that_reads_nothing_takes_no_more_than_the_window() -> None:
    """Signals and its end are heard all the same."""
    with session() as process:
        assert process.stdin
        process.stdin.write(order("sleep", "60"))
        for _ in range(WINDOW >> 16):
            process.stdin.write(encode(Kind.INPUT, bytes(1 << 16)))
        process.stdin.write(encode_json(Kind.SIGNAL, 15))

        found = list(frames(process))

    assert {kind for kind, _ in found} == {Kind.TAKEN, Kind.EXIT}
    assert json.loads(found[-1][1]) == {"status": None, "signal": 15}


def test_all_output_comes_before_the_end(tmp_path: Path) -> None:
    """More than pipes hold, on both streams, while nobody reads at first."""
    with session() as process:
        assert process.stdin
        process.stdin.write(order("sh", "-c", "head -c 3000000 /dev/zero; head -c 2000000 /dev/zero >&2; exit 5"))
        found = list(frames(process))

    sizes = {each: sum(len(data) for kind, data in found if kind == each) for each in (Kind.OUTPUT, Kind.ERRORS)}
    assert sizes == {Kind.OUTPUT: 3_000_000, Kind.ERRORS: 2_000_000}
    assert json.loads(found[-1][1]) == {"status": 5, "signal": None}


def test_what_a_command_has_left_ends_with_it(tmp_path: Path) -> None:
    """Also what has gone to a session of its own and heeds no request; its pipes do not hold the end up for long."""
    note = tmp_path / "pid"
    daemon = f"trap '' HUP; echo $$ >{note}; sleep 60; sleep 60"
    script = f'setsid sh -c "$1" & while ! [ -s {note} ]; do sleep 0.01; done'
    with session() as process:
        assert process.stdin
        process.stdin.write(order("sh", "-c", script, "sh", daemon))
        found = list(frames(process))

    assert found[-1][0] == Kind.EXIT
    assert not Path(f"/proc/{note.read_text().strip()}").exists()


def test_the_end_of_the_client_ends_the_command(tmp_path: Path) -> None:
    """In a terminal too."""
    for size in ({}, {"rows": 24, "columns": 80}):
        note = tmp_path / f"pid{len(size)}"
        with session() as process:
            assert process.stdin
            process.stdin.write(order("sh", "-c", f"trap '' HUP; echo $$ >{note}; sleep 60; sleep 60", **size))
            wait_until(lambda note=note: note.exists() and note.read_text())  # type: ignore[misc]
            process.stdin.close()
            assert process.wait(30) == 0
        assert not Path(f"/proc/{note.read_text().strip()}").exists()


def test_the_end_of_the_node_ends_the_command(tmp_path: Path) -> None:
    """The runner whose place it is in is looked for by pool and node, and watched."""
    place = json.dumps({"job_id": "p1", "node": 3, "total_nodes": 4, "head_addr": "", "head_port": 1})
    fake = tmp_path / "skyward"
    fake.mkdir()
    (fake / "runner.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(60)")
    (fake / "__init__.py").touch()
    env = {**os.environ, "COMPUTE_POOL": place, "PYTHONPATH": str(tmp_path), "ONLY_THERE": "yes"}
    runner = subprocess.Popen([sys.executable, "-m", "skyward.runner"], env=env, cwd=tmp_path, stdout=subprocess.PIPE)
    with runner, session() as process:
        assert runner.stdout and process.stdin
        runner.stdout.readline()
        process.stdin.write(order("sh", "-c", "pwd; echo $ONLY_THERE; sleep 60", pool="p1", node=3))
        said = b""
        for kind, data in frames(process):
            said += data if kind == Kind.OUTPUT else b""
            if said.endswith(b"yes\n"):
                runner.kill()
                runner.wait()
        assert said == f"{tmp_path}\nyes\n".encode()
        assert (kind, data) == (Kind.LOST, b"The node has ended.")
