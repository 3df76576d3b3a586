"""Functions and plugins of the tests of failing ranks; nodes have no pytest to import."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import skyward as sky
from skyward.runtime.environment import declare
from skyward.runtime.ranks import gather


def rank() -> int:
    info = sky.instance_info()
    assert info is not None
    return info.global_worker_index


def ring() -> sky.Plugin:
    """A group that knows its members' processes: what a framework's process group is to its ranks."""

    @contextmanager
    def around_app(info: sky.InstanceInfo) -> Iterator[None]:
        members = gather((info.global_worker_index, os.getpid()), name="ring")
        os.environ["RING"] = repr(members)
        yield

    return sky.Plugin.create("ring").with_around_app(around_app).with_collective()


def ring_once(marker: str) -> sky.Plugin:
    """A group that can be made once: its second set-up fails on rank 1."""

    @contextmanager
    def around_app(info: sky.InstanceInfo) -> Iterator[None]:
        path = Path(tempfile.gettempdir()) / f"{marker}-{info.global_worker_index}"
        if path.exists() and info.global_worker_index == 1:
            raise RuntimeError("no second ring for this rank")
        path.touch()
        yield

    return sky.Plugin.create("ring-once").with_around_app(around_app).with_collective()


def wait_for_peers() -> None:
    """What a collective call looks like to the others when one rank does not come."""
    ours, _theirs = socket.socketpair()
    print("waits", flush=True)
    ours.recv(1)


def fall(how: str) -> None:
    """End as a rank may."""
    if how == "raise":
        raise LookupError("row 7 is missing")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(7)


@sky.compute
def members() -> tuple[int, list[tuple[int, int]], str]:
    """This process, all that gather with it, and what its ring was set up with."""
    return os.getpid(), gather((rank(), os.getpid()), name="members"), os.environ["RING"]


@sky.compute
def pid() -> int:
    return os.getpid()


@sky.compute
def fails_on(victim: int, how: str) -> None:
    """One rank falls, the others wait for it."""
    gather(None, name="all are here")
    if rank() == victim:
        time.sleep(0.3)
        fall(how)
    wait_for_peers()  # here they are


def _fails_together(victim: int, how: str) -> int:
    if how == "return":
        return os.getpid()
    gather(None, name="all are here")
    if rank() == victim:
        time.sleep(0.3)
        fall(how)
    wait_for_peers()
    return 0


fails_together = sky.compute(declare(_fails_together, collective=True))  # as a framework's decorator makes it


@sky.compute
def fails_later(victim: int, noticed: str) -> None:
    """Another rank tells of a broken connection before the one that broke it has ended."""
    gather(None, name="all are here")
    if rank() == victim:
        time.sleep(0.4)
        os._exit(9)
    if noticed == "wrapped":
        try:
            raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:2269")
        except RuntimeError as error:
            raise ValueError("epoch 3 failed") from error
    raise ConnectionResetError(104, "Connection reset by peer")


@sky.compute
def yields_until(victim: int, how: str) -> Iterator[int]:
    """Three items from each rank; then one falls and the others wait."""
    yield from range(3)
    gather(None, name="all are here")
    if rank() == victim:
        time.sleep(0.3)
        fall(how)
    wait_for_peers()


@sky.compute
def ignores_its_end(seconds: float) -> None:
    """Does not heed interrupts, as C code that waits does not."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    print("does not heed", flush=True)
    time.sleep(seconds)


@sky.compute
def falls_alone() -> None:
    os._exit(5)


@sky.compute
def notes(token: str, number: int, seconds: float) -> int:
    """Leaves a trace of every run in its node's temporary directory."""
    folder = Path(tempfile.gettempdir()) / token
    folder.mkdir(exist_ok=True)
    (folder / f"{number}-{rank()}-{time.monotonic_ns()}").touch()
    time.sleep(seconds)
    return number


@sky.compute
def noted(token: str) -> list[str]:
    """The traces on this node, which are removed."""
    folder = Path(tempfile.gettempdir()) / token
    found = sorted(path.name for path in folder.glob("*"))
    for name in found:
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):  # processes share it, where they are the nodes
        folder.rmdir()
    return found


@sky.compute(retries=1)
def falls_once(token: str) -> tuple[int, list[int]]:
    """Rank 1 ends the first time."""
    path = Path(tempfile.gettempdir()) / f"{token}-{rank()}"
    if rank() == 1 and not path.exists():
        path.touch()
        os._exit(4)
    gathered = gather(rank(), name="second try")
    path.unlink(missing_ok=True)
    return os.getpid(), gathered


@sky.compute
def counted(number: int) -> Iterator[int]:
    yield from range(number)


@sky.compute
def waits_in(module: str, seconds: float) -> None:
    """Wait in a function of this module, as in its C code."""
    names: dict[str, Any] = {"__name__": module, "sleep": time.sleep}
    exec("def wait(seconds): sleep(seconds)", names)
    names["wait"](seconds)
