"""A node in a task of the pool's service: told what to be, listened to, reached, and asked after when it is gone."""

from __future__ import annotations

from typing import Any, ClassVar

from skyward.errors import EngineError
from skyward.nodes.claimed import ClaimedProcess
from skyward.nodes.node import Exit, Launch, exit_of
from skyward.providers.swarm.claims import ClaimedTask, TaskClaimer
from skyward.providers.swarm.manager import Manager
from skyward.providers.swarm.service import name_of
from skyward.runner.entry.swarm_task import RESTART
from skyward.system import socket, time

_REASON_S = 1.5  # how long the swarm may take to tell how a task ended
_LOOK_S = 0.1


class SwarmProcess(ClaimedProcess):
    """A runner in a task of the pool's service, in whose place the engine puts a new one while the service is there.

    Raises:
        ProviderError: the task has ended.
    """

    ending: ClassVar[str] = RESTART

    def __init__(self, manager: Manager, claimer: TaskClaimer, task: ClaimedTask, launch: Launch) -> None:
        self._manager, self._claimer, self._task = manager, claimer, task
        self._service = name_of(launch.pool)
        super().__init__(launch, task.claim, f"task {task.task[:12]} on {task.machine}")

    def dial(self, address: str) -> socket.socket:
        """A socket that leads, encrypted, to an address that the runner announced."""
        return self._claimer.connect(self._task, address)

    def is_unreachable(self) -> bool:
        """Whether the manager is gone."""
        return bool(self._manager.why_gone())

    def how_lost(self) -> Exit:
        """What the swarm knows of a task that exited without reporting."""
        deadline = time.monotonic() + _REASON_S
        try:
            while time.monotonic() < deadline:
                tasks = self._manager.api.tasks(self._service)
                task = next((task for task in tasks if task["ID"] == self._task.task), None)
                if task is None:
                    return Exit(code=None, text=f"was removed with service {self._service}")
                code = _exit_code(task)
                if code is not None:
                    return exit_of(code)
                time.sleep(_LOOK_S)
        except EngineError:
            pass  # the manager is gone, which is said below
        gone = self._manager.why_gone()
        return Exit(code=None, text=gone or f"is lost: its connection to {self._task.machine} ended")


def _exit_code(task: Any) -> int | None:
    if task["Status"]["State"] in ("new", "pending", "assigned", "accepted", "preparing", "starting", "running"):
        return None
    code = (task["Status"].get("ContainerStatus") or {}).get("ExitCode")
    return None if code is None else int(code)
