"""Nodes as plain processes of this interpreter on this machine, without containers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from skyward.errors import NodeStartError
from skyward.model.instance import DISMISS, ENV_VAR, PROCESSES_VAR, RUN_DIR_VAR, SETTINGS_VAR, WORK_FOLDER
from skyward.nodes.local_host import gpus_of
from skyward.nodes.node import Exit, Launch, exit_of
from skyward.nodes.process_id import ProcessId
from skyward.nodes.run_directory import note_process, noted_process, remove
from skyward.runner.children import wait_unreaped
from skyward.runner.config import GPUS_VAR
from skyward.system import socket, threading, time
from skyward.wire.frames import dial

_GRACE_S = 1.0  # from the request to end until the kill
_KILLED_S = 10.0  # how long the kernel may take for that
_DISMISSED_S = 3.0  # how long a dismissed node of another client may take to end
_LOOK_S = 0.02


class AdoptedProcess:
    """The runner of a node that another process of this user has started. It is not a child of this process.

    Args:
        name: name of the node.
        directory: its run directory, which records the process.
    """

    channel = b""  # a unix socket of this machine

    def __init__(self, name: str, directory: Path) -> None:
        self.title, self._directory = f"process {name}", directory
        self._id = noted_process(directory)
        self._asked = False  # whether it was asked to end

    def output(self) -> Iterator[bytes]:
        """Return an empty iterator: the output goes to the client that started the process."""
        return iter(())

    def dial(self, address: str) -> socket.socket:
        """Return a socket connected to an address that the runner announced."""
        return dial(self._directory, address)

    def wait(self, timeout_s: float) -> Exit | None:
        """Return that the process has ended, None if it runs after `timeout_s`; only the parent knows the status."""
        if self._id is not None and not _wait_gone([self._id], timeout_s):
            return None
        return Exit(code=None, text="has ended")

    def ask_to_end(self) -> None:
        """Ask the process and its group to end, without waiting. Repeated calls do nothing."""
        if not self._asked:
            self._asked = True
            self._signal(signal.SIGTERM)

    def end(self) -> None:
        """End the process and everything it has started, by force after _GRACE_S, and remove its directory."""
        self.ask_to_end()
        if self.wait(_GRACE_S) is None:
            self._signal(signal.SIGKILL)
            self.wait(_KILLED_S)
        remove(self._directory)

    def _signal(self, number: int) -> None:
        if self._id is not None and not self._id.is_gone():
            _signal_group(self._id.pid, number)


class LocalProcess(AdoptedProcess):
    """A runner as a process, which shares a session and process group with its workers.

    Args:
        launch: the node to start.
        directory: the node's run directory.

    Raises:
        NodeStartError: the process could not be started.
    """

    def __init__(self, launch: Launch, directory: Path) -> None:
        work, process = directory / WORK_FOLDER, None
        try:
            work.mkdir()
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", "skyward.runner"],
                cwd=work,
                env=environment_of(launch, directory),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal reaches only the client
            )
            note_process(directory, process.pid, node=launch.node, name=launch.name)
        except OSError as error:
            if process is not None:  # the pool was closed meanwhile and the directory removed
                _signal_group(process.pid, signal.SIGKILL)
                process.communicate()
            raise NodeStartError(
                f"Node {launch.node} of pool {launch.pool} (process {launch.name}) could not be started: {error}."
            ) from error
        super().__init__(launch.name, directory)
        self._reaping = threading.Lock()  # guards against sending a signal to a process ID that has been released
        self._silent = threading.Event()  # its output has ended
        self._ended = threading.Event()
        threading.Thread(target=self._wait, name=f"{launch.name}-end", daemon=True).start()

    def output(self) -> Iterator[bytes]:
        """Yield the output of the process and its workers."""
        pipe = self._process.stdout
        assert pipe is not None
        with pipe:
            while chunk := os.read(pipe.fileno(), 65536):
                yield chunk
        self._silent.set()

    def wait(self, timeout_s: float) -> Exit | None:
        """Return how the process ended, None if it still runs after `timeout_s`."""
        if not self._ended.wait(timeout_s):
            return None
        code = self._process.returncode
        return exit_of(128 - code if code < 0 else code)

    def _signal(self, number: int) -> None:
        with self._reaping:
            if self._process.returncode is None:
                _signal_group(self._process.pid, number)

    def _wait(self) -> None:
        """Wait for the first process to end, then kill the rest of its group, as happens in a container."""
        wait_unreaped(self._process.pid)
        with self._reaping:
            _signal_group(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._silent.wait(_GRACE_S)  # until the rest of the group has ended too
        self._ended.set()


def dismiss(processes: Sequence[ProcessId]) -> None:
    """End another client's runners, with an exit status that keeps that client from replacing the nodes."""
    for process in processes:
        if not process.is_gone():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.Signals[DISMISS])
    _wait_gone(processes, _DISMISSED_S)
    for process in processes:
        if not process.is_gone():
            _signal_group(process.pid, signal.SIGKILL)


def _wait_gone(processes: Sequence[ProcessId], timeout_s: float) -> bool:
    """Wait until all of these have ended; return whether they have."""
    deadline = time.monotonic() + timeout_s
    while not all(process.is_gone() for process in processes):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(_LOOK_S, left))
    return True


def environment_of(launch: Launch, directory: Path) -> dict[str, str]:
    """Return the variables of the client and the pool, and the path to every module that the client can import."""
    own = Path(__file__).parents[2]  # sys.path may not show an editable install
    paths = [launch.env.get("PYTHONPATH", ""), *(str(Path(entry).absolute()) for entry in sys.path), str(own)]
    variables = {
        **os.environ,
        **launch.env,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, paths))),
        ENV_VAR: launch.compute_pool,
        SETTINGS_VAR: launch.runner,
        RUN_DIR_VAR: str(directory),
        PROCESSES_VAR: "1",
    }
    if launch.accelerator:
        variables[GPUS_VAR] = ",".join(map(str, gpus_of(launch)))
    return variables


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, number)
