"""Program of a container of a compose file: it waits, and becomes the node of one pool after another.

`python -m skyward.runner.entry.standby` waits for clients. A pool's client runs `... standby take` in the same
container through the engine; a client with access to the engine controls the container anyway, so no other proof is
required. `take` claims the container from the waiting process, or ends with EXIT_TAKEN if another client has it. It
then reads the node's settings from standard input, and runs the node. When that input ends, however the client ended,
the node ends at once. The waiting process then restores the container to its initial state for the next client.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from skyward.runner.entry import container
from skyward.runner.entry.container import (
    adopt_orphans,
    end_descendants,
    end_group_with,
    exit_status,
    free_port,
    kill_group,
    start_runner,
)
from skyward.system import select, socket, threading, time

LEASE_VAR = "SKYWARD_STANDBY_LEASE"  # seconds without a client after which the container ends; empty: never
GREETING = "skyward-standby "  # start of the line by which `take` reports that the client has the container
EXIT_TAKEN = 75  # another client has the container
_SOCKET = Path(tempfile.gettempdir()) / "skyward-standby.sock"  # where `wait` accepts requests for the container
_KNOWN = Path(tempfile.gettempdir()) / "skyward-standby.json"  # the files that existed before the first client
_YOURS, _TAKEN = b"y", b"t"
_PATIENCE_S = 1.0  # how long the next client waits for one that may be ending
_START_S = 10.0  # how long `wait` may take to start on a busy machine
_STEP_S = 0.05


def wait() -> int:
    """Assign the container to one client after another, until asked to end or until none has come for the lease.

    Each client finds the container as the first did: processes, files and shared memory of the previous one are
    removed. If that fails, the container ends.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    try:
        clean = _cleaner()
        _SOCKET.unlink(missing_ok=True)  # exists if the container has been restarted
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(_SOCKET))
            listener.listen(128)
            while (client := _next_client(listener)) is not None:
                with client:
                    _serve(client, listener)
                clean()
                if not _SOCKET.is_socket():
                    raise container.NotCleanError(f"{_SOCKET}, where clients ask for the container, has been removed.")
    except container.NotCleanError as error:
        _say(f"skyward: The container ends, because what its last client left cannot be removed. {error}\n")
        return 1
    return 0


def _cleaner() -> Callable[[], None]:
    """Return a function that restores the container to its state at its first start."""
    if not container.is_alone():
        _say("skyward: Other programs run here, so this container is not cleaned: what clients leave is not removed.\n")
        return lambda: None
    try:
        known = json.loads(_KNOWN.read_text())
    except FileNotFoundError:
        known = container.files()

    def clean() -> None:
        container.end_processes()
        container.remove_files(known, keep=(str(_SOCKET), str(_KNOWN)))
        container.remove_ipc()
        _KNOWN.write_text(json.dumps(known))

    clean()
    return clean


def _next_client(listener: socket.socket) -> socket.socket | None:
    """Return the next client that requests the container; None if there was none for the lease."""
    listener.settimeout(float(os.environ.get(LEASE_VAR) or 0) or None)
    try:
        client, _ = listener.accept()
    except TimeoutError:
        return None
    client.setblocking(True)
    return client


def _serve(client: socket.socket, listener: socket.socket) -> None:
    """Reserve the container for a client until it ends; others that request it are refused after a moment."""
    if not _tell(client, _YOURS):
        return
    both = select.poll()
    both.register(client, select.POLLIN)
    both.register(listener, select.POLLIN)
    while all(number != client.fileno() for number, _ in both.poll()):
        other, _ = listener.accept()
        with other:
            ends = select.poll()
            ends.register(client, select.POLLIN)
            if not ends.poll(_PATIENCE_S * 1000):
                _tell(other, _TAKEN)


def take() -> int:
    """Run the node that standard input describes, until it ends."""
    with _claim() as wait:
        if wait is None:
            return EXIT_TAKEN
        adopt_orphans()
        run_dir = Path(tempfile.mkdtemp(prefix="skyward-"))
        try:
            facts = {"run_dir": str(run_dir), "port": free_port(), "volumes": container.volumes()}
            _say(f"{GREETING}{json.dumps(facts)}\n")
            line = sys.stdin.buffer.readline()
            return _run_node(json.loads(line), run_dir) if line else 0
        finally:
            end_descendants()
            shutil.rmtree(run_dir, ignore_errors=True)


@contextmanager
def _claim() -> Iterator[socket.socket | None]:
    """Hold the container while this connection to `wait` is open; yields None if another client has it."""
    deadline = time.monotonic() + _START_S
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            try:
                sock.connect(str(_SOCKET))
                answer = sock.recv(1)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise SystemExit(f"No standby listens at {_SOCKET} in this container: {error}") from error
                answer = b""  # it may just have been started
            if answer == _YOURS:
                yield sock
                return
        if answer == _TAKEN:
            yield None
            return
        time.sleep(_STEP_S)  # also if the previous client has just left


def _run_node(order: dict[str, Any], run_dir: Path) -> int:
    """Run the node's runner to its end; return its exit status."""
    runner = start_runner(order, run_dir, os.environ)
    threading.Thread(target=_end_with_input, args=(runner,), daemon=True).start()
    end_group_with(runner)
    return exit_status(runner)


def _end_with_input(runner: subprocess.Popen[bytes]) -> None:
    """Kill the runner and everything it started when the client disconnects (a thread)."""
    while os.read(0, 4096):
        pass
    kill_group(runner)


def _tell(client: socket.socket, answer: bytes) -> bool:
    """Answer a client; return False if it has disconnected."""
    try:
        client.sendall(answer)
    except OSError:
        return False
    return True


def _say(text: str) -> None:
    os.write(1, text.encode())


if __name__ == "__main__":
    sys.exit(take() if sys.argv[1:] == ["take"] else wait())
