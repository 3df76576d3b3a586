"""Nodes as plain processes of the interpreter that runs the client: no container, no image.

For debugging, machines without Docker, and fast tests. The runner and the wire are the same as in containers.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from skyward.errors import NodeStartError, PoolClosedError
from skyward.model.accelerator import Accelerator
from skyward.model.image import Image
from skyward.model.spec import Cluster
from skyward.providers.base import Announcement, Exit, Host, Launch
from skyward.providers.gpus import check_gpu_count, gpus_of
from skyward.providers.output import NodeOutput, node_exit, start_failure
from skyward.providers.owner import Owner, current_user
from skyward.providers.ports import PortClaim, claim_port
from skyward.providers.rundir import PoolDirectory, note_process, pool_directories, sweep_orphans, temporary_base
from skyward.providers.signed import refuse_unsigned
from skyward.runner.config import DISMISS
from skyward.system import socket, threading, time
from skyward.wire.listen import dial

if TYPE_CHECKING:
    from skyward.build.events import Report

_GRACE_S = 1.0  # from the request to end to the kill
_DISMISSED_S = 3.0  # how long a node of another client may take to end when it is told to
_LOOK_S = 0.02
_told = threading.Event()


@dataclass(frozen=True)
class Local:
    """Processes on this machine that run the client's own interpreter and packages; the pool's image is not used."""

    _pools: dict[str, _Pool] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Name of the provider."""
        return "local"

    @property
    def lease_s(self) -> float:
        """Seconds a process outlives a client that is gone."""
        return 60.0

    def acquire(
        self,
        pool: str,
        nodes: int,
        accelerator: Accelerator | None,
        at_least: int | None = None,  # noqa: ARG002 - all or none
    ) -> Sequence[Host]:
        """Give this machine, once for each node.

        Raises:
            ProviderError: the machine has fewer GPUs than asked for.
        """
        if accelerator is not None:
            check_gpu_count(nodes, accelerator)
        sweep_orphans()
        self._pools[pool] = opened = _Pool(pool)
        return [LocalHost(opened)] * nodes

    def replace(self, pool: str, lost: Host | None, accelerator: Accelerator | None) -> Host:  # noqa: ARG002
        """Give this machine once more.

        Raises:
            PoolClosedError: the pool has ended.
        """
        opened = self._pools.get(pool)
        if opened is None:
            raise PoolClosedError(f"Pool {pool} has ended; no node of it can be started.")
        return LocalHost(opened)

    def prepare(
        self,
        hosts: Sequence[Host],  # noqa: ARG002 - nothing to prepare on them
        image: Image,
        cluster: Cluster,  # noqa: ARG002
        report: Report,
    ) -> str | None:
        """Nothing to prepare; says once per process that the image is not used."""
        refuse_unsigned(image, "not at all: they are processes of this interpreter")
        if not _told.is_set():
            _told.set()
            from skyward.build.events import note  # brings the compiler, of which nothing else is needed here

            report(note("sky.Local() runs nodes as processes of this interpreter; the pool's image is not used"))
        return None

    def release(self, pool: str) -> None:
        """End every process of the pool, whoever started it, and remove what else the pool holds here."""
        opened = self._pools.pop(pool, None)
        if opened:
            opened.close()
            return
        for directory in pool_directories():
            if directory.pool == pool:
                _dismiss([process for _, process in directory.processes()])
                directory.remove()

    def find(self) -> Iterable[Mapping[str, Any]]:
        """Every node process of this user on this machine: pool, node, name, state, user, pid."""
        user = current_user()  # the directories of others are not looked into
        return [
            {
                "pool": directory.pool,
                **about,
                "state": "exited" if process.is_gone() else "running",
                "user": user,
                "pid": process.pid,
            }
            for directory in pool_directories()
            for about, process in directory.processes()
        ]


class _Pool:
    """What a pool of this process holds here."""

    def __init__(self, pool: str) -> None:
        self.id = pool
        self.directory = PoolDirectory.create(pool, temporary_base())
        self.lock = threading.Lock()
        self.closed = False
        self.nodes: list[LocalNode] = []
        self.port: PortClaim | None = None

    def close(self) -> None:
        with self.lock:
            self.closed = True
        for node in self.nodes:
            node.ask_to_end()  # all of them first, so that their graces run side by side
        for node in self.nodes:
            node.end()
        if self.port is not None:
            self.port.release()
        self.directory.remove()


@dataclass(frozen=True, slots=True)
class LocalHost:
    """The machine at hand, as a host of one pool's nodes."""

    _pool: _Pool

    @property
    def name(self) -> str:
        """The machine's name."""
        return socket.gethostname()

    @property
    def address(self) -> str:
        """Loopback: all nodes are on this machine."""
        return "127.0.0.1"

    def claim_port(self) -> int:
        """A port that no other pool on this machine gets until this one is released or claims another."""
        earlier, self._pool.port = self._pool.port, claim_port()
        if earlier is not None:
            earlier.release()  # that of a head that has been replaced
        return self._pool.port.port

    def start(self, launch: Launch) -> LocalNode:
        """Start the process of one node."""
        with self._pool.lock:
            if self._pool.closed:
                raise PoolClosedError(f"Pool {self._pool.id} is ending; no node of it can be started.")
            node = LocalNode(launch, self._pool.directory.add(launch.node, launch.key))
            self._pool.nodes.append(node)
        return node


class LocalNode:
    """A node as a process, with its workers in a session and process group of its own."""

    channel = b""  # a unix socket of this machine

    def __init__(self, launch: Launch, directory: Path) -> None:
        work = directory / "work"
        work.mkdir()
        self._directory = directory
        self._who = f"Node {launch.node} of pool {launch.pool} (process {launch.name})"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "skyward.runner"],
                cwd=work,
                env=_environment(launch, directory),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal is the client's alone
            )
        except OSError as error:
            raise NodeStartError(f"{self._who} could not be started: {error}.") from error
        note_process(directory, self._process.pid, node=launch.node, name=launch.name)
        assert self._process.stdout is not None
        self._output = NodeOutput(_chunks(self._process.stdout), launch.name)
        self._reaping = threading.Lock()  # a signal must not reach a process number that is free again
        self._ended = threading.Event()
        threading.Thread(target=self._wait, name=f"{launch.name}-end", daemon=True).start()

    def wait_ready(self, timeout_s: float) -> Announcement:
        """Block until the runner has announced itself; see `Node`."""
        announcement = self._output.wait_announcement(timeout_s)
        if announcement:
            return announcement
        ended = self.wait_exit(_GRACE_S) if self._output.ended else None
        raise start_failure(self._who, ended, timeout_s, self._output.tail)

    def connect(self, address: str) -> socket.socket:
        """A connected, blocking socket to an address the node announced."""
        connected = dial(self._directory, address)
        connected.settimeout(None)
        return connected

    def wait_exit(self, timeout_s: float) -> Exit | None:
        """How the process ended, None if it still runs after `timeout_s`."""
        if not self._ended.wait(timeout_s):
            return None
        self._output.join(0.5)
        code = self._process.returncode
        return node_exit(128 - code if code < 0 else code, log=self._output.tail)

    def remove(self) -> None:
        """End the process and everything it started, and remove its directory."""
        self.ask_to_end()
        self.end()

    def ask_to_end(self) -> None:
        """Ask the process and its group to end, without waiting."""
        self._signal(signal.SIGTERM)

    def end(self) -> None:
        """Wait for the end that was asked for, for a short grace, then force it; remove the directory."""
        self._ended.wait(_GRACE_S)
        self._signal(signal.SIGKILL)
        self._ended.wait()
        self._output.join(_GRACE_S)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _signal(self, number: int) -> None:
        with self._reaping:
            if not self._ended.is_set():
                _signal_group(self._process.pid, number)

    def _wait(self) -> None:
        """When the first process has ended, the rest of its group goes too, as in a container."""
        if hasattr(os, "waitid"):  # macOS has it from Python 3.13 on
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        with self._reaping:
            _signal_group(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._ended.set()


def _environment(launch: Launch, directory: Path) -> dict[str, str]:
    """The client's environment, the pool's, and the way to every module the client can import."""
    own = Path(__file__).parents[2]  # an editable install may not show in sys.path
    paths = [launch.env.get("PYTHONPATH", ""), *(str(Path(entry).absolute()) for entry in sys.path), str(own)]
    variables = {
        **os.environ,
        **launch.env,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, paths))),
        "COMPUTE_POOL": launch.compute_pool,
        "SKYWARD_RUNNER": launch.runner,
        "SKYWARD_RUN_DIR": str(directory),
    }
    if launch.accelerator:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus_of(launch)))
    return variables


def _chunks(pipe: IO[bytes]) -> Iterator[bytes]:
    with pipe:
        while chunk := os.read(pipe.fileno(), 65536):
            yield chunk


def _dismiss(processes: Sequence[Owner]) -> None:
    """End nodes of another client in a way by which that client knows not to replace them."""
    for process in processes:
        if not process.is_gone():
            with suppress(ProcessLookupError):
                os.kill(process.pid, DISMISS)
    deadline = time.monotonic() + _DISMISSED_S
    while not all(process.is_gone() for process in processes) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    for process in processes:
        if not process.is_gone():
            _signal_group(process.pid, signal.SIGKILL)


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass
