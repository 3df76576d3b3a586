"""Functions that the tests of checkpoints call."""

from __future__ import annotations

import os
import signal
import socket
import time

import skyward as sky


@sky.compute(retries=5)
def count(name: str, to: int, lost_at: tuple[int, ...], size: int = 10) -> tuple[int, list[int]]:
    """Count in a checkpoint; its worker is killed while one of these numbers is committed.

    A negative number means that the node is, after that. Returns the number, and those at which runs began.
    """
    state = sky.checkpoint(name)
    begun = [int(line) for line in (state / "begun").read_text().split()] if state.commits else []
    start = int((state / "n").read_text()) if state.commits else 0
    (state / "begun").write_text("\n".join(map(str, [*begun, start])))
    for n in range(start + 1, to + 1):
        (state / "n").write_text(str(n))
        (state / "large").write_bytes(b"%d" % n * size)
        if n in lost_at and start + 1 < n:
            if os.fork() == 0:
                time.sleep(0.003)
                os.kill(os.getppid(), signal.SIGKILL)
                os._exit(0)
            while True:
                state.commit()
        state.commit()
        if -n in lost_at:
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
    assert (state / "large").read_bytes() == b"%d" % to * size
    return to, [*begun, start]


@sky.compute
def commits(name: str, rank: int | None = None) -> tuple[int, dict[str, str]]:
    """How often it was committed, and its files."""
    state = sky.checkpoint(name, rank=rank)
    return state.commits, {path.name: path.read_text() for path in sorted(state.path.iterdir())}


@sky.compute
def write(name: str, text: str, rank: int | None = None, until: tuple[str, int] | None = None) -> int:
    """Commit a string; `until` whoever listens at that address closes the connection, the call keeps the checkpoint."""
    info = sky.instance_info()
    assert info is not None
    state = sky.checkpoint(name, rank=rank)
    (state / "text").write_text(f"{text} of {info.global_worker_index}")
    if rank is None or rank == info.global_worker_index:
        state.commit()
    if until is not None:
        with socket.create_connection(until) as connection:
            connection.recv(1)
    return state.commits


@sky.compute
def write_as_another_rank() -> None:
    sky.checkpoint("other", rank=1 - sky.instance_info().node).commit()  # type: ignore[union-attr]
