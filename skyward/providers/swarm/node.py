"""A node in a task of the pool's service: told what to be, listened to, reached, and asked after when it is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from skyward.errors import EngineError, ProviderError
from skyward.providers.base import Announcement, Exit, Launch
from skyward.providers.output import NodeOutput, node_exit, start_failure
from skyward.providers.swarm.manager import Manager
from skyward.providers.swarm.seats import Seat, Seating, end
from skyward.providers.swarm.service import name_of
from skyward.runner.station import EXIT, GIVE_UP, HEADER, ORDER
from skyward.system import socket, time

_END_S = 10.0
_REASON_S = 1.5  # how long the swarm may take to tell how a task ended
_LOOK_S = 0.1


class SwarmNode:
    """A node in a task.

    Raises:
        ProviderError: the task has ended.
    """

    def __init__(self, manager: Manager, seating: Seating, seat: Seat, launch: Launch) -> None:
        self._manager, self._seating, self._seat = manager, seating, seat
        self.channel = seat.channel
        self._service = name_of(launch.pool)
        self._who = f"Node {launch.node} of pool {launch.pool} (task {seat.task[:12]} on {seat.machine})"
        self._code: int | None = None
        order = {
            "do": ORDER,
            "compute_pool": launch.compute_pool,
            "runner": launch.runner,
            "key": launch.key.hex(),
            "env": dict(launch.env),
        }
        try:
            seat.session.sendall(json.dumps(order).encode() + b"\n")
        except OSError as error:
            raise ProviderError(f"{self._who} cannot be started: its task has ended ({error}).") from error
        self._output = NodeOutput(self._hear(), launch.name)

    def wait_ready(self, timeout_s: float) -> Announcement:
        """Block until the runner has announced itself; see `Node`."""
        announcement = self._output.wait_announcement(timeout_s)
        if announcement:
            return announcement
        ended = self.wait_exit(_END_S) if self._output.ended else None
        raise start_failure(self._who, ended, timeout_s, self._output.tail)

    def connect(self, address: str) -> socket.socket:
        """A socket that leads, encrypted, to an address the node announced."""
        return self._seating.connect(self._seat, address)

    def wait_exit(self, timeout_s: float) -> Exit | None:
        """How the node ended, None if it still runs after `timeout_s`."""
        self._output.join(timeout_s)
        if not self._output.ended:
            return None
        if self._code is None:
            return self._fate()
        return node_exit(self._code, log=self._output.tail)

    def remove(self) -> None:
        """End the runner at once; the engine puts a new task in its place for as long as the service is there."""
        end(self._seat.session, GIVE_UP)
        self._output.join(_END_S if not self._manager.why_gone() else 0)
        try:
            self._seat.session.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended
        self._output.join(_END_S)
        self._seat.session.close()

    def _hear(self) -> Iterator[bytes]:
        """What the runner prints; its exit status comes last."""
        stream = self._seat.session.makefile("rb")
        while len(header := stream.read(HEADER.size)) == HEADER.size:
            kind, size = HEADER.unpack(header)
            data = stream.read(size)
            if kind == EXIT:
                self._code = json.loads(data)["code"]
            else:
                yield data

    def _fate(self) -> Exit:
        """What the swarm knows of a task that took its leave without a word."""
        deadline = time.monotonic() + _REASON_S
        log, task = self._output.tail, None
        try:
            while time.monotonic() < deadline:
                tasks = self._manager.api.tasks(self._service)
                task = next((task for task in tasks if task["ID"] == self._seat.task), None)
                if task is None:
                    text = f"was removed with service {self._service}"
                    return Exit(code=None, text=text, log=log)
                code = _exit_code(task)
                if code is not None:
                    return node_exit(code, log=log)
                time.sleep(_LOOK_S)
        except EngineError:
            pass  # the manager is gone, which is said below
        gone = self._manager.why_gone()
        return Exit(code=None, text=gone or f"is lost: its connection to {self._seat.machine} ended", log=log)


def _exit_code(task: Any) -> int | None:
    if task["Status"]["State"] in ("new", "pending", "assigned", "accepted", "preparing", "starting", "running"):
        return None
    code = (task["Status"].get("ContainerStatus") or {}).get("ExitCode")
    return None if code is None else int(code)
