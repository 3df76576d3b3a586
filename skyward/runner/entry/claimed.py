"""Programs of nodes that wait for their pool's client: a pod of Kubernetes, a job of Slurm.

Such a program knows where its cluster has placed it, and no other address, so the client connects to it. It listens
with TLS 1.3, and accepts only the certificate of its pool's client. A connection starts with a
line: `claim` reserves the task for this client, which then sends the node's settings, including its key; `open ADDRESS`
connects to one of the runner's sockets. The task ends with its runner, or when no client has come within the lease.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import ssl
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skyward.errors import WireError
from skyward.model.instance import EXIT_CONFIG, EXIT_LEASE, WORK_FOLDER
from skyward.model.rights import WORK_DIR
from skyward.runner.clients import Acceptor, shut
from skyward.runner.entry.container import (
    end_group_with,
    exit_status,
    free_port,
    gain_no_privileges,
    kill_group,
    start_runner,
)
from skyward.system import Empty, SimpleQueue, socket, threading, time
from skyward.system.process_end import on_signals
from skyward.wire.frames import dial, tune
from skyward.wire.tls import Identity, plain_end, splice

POD_VAR, ADDRESS_VAR = "SKYWARD_POD", "SKYWARD_POD_ADDRESS"
POD_SECRETS, POD_IDENTITY = Path("/run/skyward"), "identity"  # where a pod's Secret is mounted, and the file in it
SETTINGS, IDENTITY, ADDRESS = "settings.json", "identity.json", "address.json"  # files in a job's folder
CLAIM, OPEN = "claim", "open"  # first word of a connection
# requests of the client that has claimed the task: run this node; end
START, STOP = "start", "stop"
OUTPUT, EXIT = 0, 1  # kinds of the messages sent to it from then on
HEADER = struct.Struct("!BI")  # of those messages: kind and length
_HANDSHAKE_S = 10.0
_LINE_BYTES = 256
_FLUSH_S = 2.0
_PORTS = (20_000, 30_000)  # below the kernel's ephemeral ports


def main() -> int:
    """Run the program named by the first argument; return the exit status of the node, 0 if it ended as it should."""
    what, *words = sys.argv[1:]
    return run_job(Path(words[0])) if what == "job" else run_pod()


def run_pod() -> int:
    """Run a pod of Kubernetes. Its client connects through the API server's port forwarding, which leads to loopback.

    A client inside the cluster connects to the pod's own address.
    """
    _leave_root()
    settings, address = json.loads(os.environ.pop(POD_VAR)), os.environ.pop(ADDRESS_VAR)
    if not settings["gains_privileges"]:
        gain_no_privileges()
    try:
        identity = Identity(**json.loads((POD_SECRETS / POD_IDENTITY).read_text()))
        where = address if settings["inside"] else "127.0.0.1"
        listener = listen_at(where, port_of(settings["pool"], settings["number"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return _refuse("The pod", error)
    return Task(listener, identity, float(settings["lease_s"]), kills=True).run()


def run_job(folder: Path) -> int:
    """Run a job of Slurm, which writes the address that it listens at to a folder.

    The folder is on the cluster's shared disk and accessible to the job's user only. It holds the job's settings and
    its certificate, which is removed from there at once.
    """
    try:
        settings = json.loads((folder / SETTINGS).read_text())
        identity = Identity(**json.loads((folder / IDENTITY).read_text()))
        (folder / IDENTITY).unlink()
        listener = listen_at(local_address(settings["controllers"]), 0)
        _announce(folder, listener)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return _refuse("The job", error)
    os.environ.update(settings["env"])
    with tempfile.TemporaryDirectory(prefix="skyward-") as private:
        work = Path(private) / WORK_FOLDER
        work.mkdir()
        os.chdir(work)
        return Task(listener, identity, float(settings["lease_s"])).run()


def _leave_root() -> None:
    """Change to another directory from /, where every top-level directory would be importable as a package."""
    if Path.cwd() == Path("/"):
        Path(WORK_DIR).mkdir(exist_ok=True)
        os.chdir(WORK_DIR)


def _refuse(who: str, error: Exception) -> int:
    _log(f"{who} cannot wait for its client: {error}")
    return EXIT_CONFIG


# where it listens -----------------------------------------------------------------------------------------------------


def port_of(pool: str, number: int) -> int:
    """Return the port that a pod listens at, which differs between pods that share their machine's network."""
    first, after = _PORTS
    return first + int.from_bytes(hashlib.sha256(f"{pool}/{number}".encode()).digest()[:4]) % (after - first)


def local_address(controllers: list[str]) -> str:
    """Return the machine's address in the network through which it reaches a controller of its cluster.

    Raises:
        OSError: no controller can be reached.
    """
    failure = OSError("no controller of the cluster is known")
    for controller in controllers:
        host, _, port = controller.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # sends nothing; the kernel picks the address
            try:
                probe.connect((host.strip("[]"), int(port)))
                return str(probe.getsockname()[0])
            except OSError as error:
                failure = error
    raise failure


def listen_at(address: str, port: int) -> socket.socket:
    """Return a socket that listens at a port, or at a free one if that is 0.

    Raises:
        OSError: another program listens there.
    """
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, port))
    sock.listen(128)
    return sock


def _announce(folder: Path, listener: socket.socket) -> None:
    """Write where the job listens, atomically."""
    address, port = listener.getsockname()[:2]
    draft = folder / f"{ADDRESS}.draft"
    draft.write_text(json.dumps({"address": address, "port": port, "machine": socket.gethostname()}))
    draft.replace(folder / ADDRESS)


# the node -------------------------------------------------------------------------------------------------------------


_Order = tuple[socket.socket, Mapping[str, Any]]  # the client that has claimed the task, and the node that it asks for


class Task:
    """A task, before it is a node and while it is one.

    Args:
        listener: where its clients connect.
        identity: its certificate.
        lease_s: seconds after which it ends without a client.
        kills: whether a signal ends its runner at once and as a whole: the client of a pod that was deleted or evicted
            asks the cluster for the reason, and workers ended one by one would be reported first.
    """

    def __init__(self, listener: socket.socket, identity: Identity, lease_s: float, *, kills: bool = False) -> None:
        self._kills = kills
        self._listener, self._context, self._lease_s = listener, identity.context(server=True), lease_s
        self._channel = identity.end_point
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()  # None: look at the state again
        self._ending = threading.Event()  # set when the task was asked to end
        self._lock = threading.Lock()  # guards the attributes below
        self._client: socket.socket | None = None  # the one that has claimed the task
        self._contact = time.monotonic()
        self._connections: list[threading.Thread] = []
        self._run_dir: Path | None = None
        self._runner: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Wait for the client, then run the node that it describes; return the exit status."""
        on_signals((signal.SIGTERM, signal.SIGINT), self._on_signal)
        acceptor = Acceptor(
            self._listener, wrap=self._wrap, authenticate=self._authenticate, serve=self._serve, say=_log
        )
        threading.Thread(target=acceptor.run, daemon=True).start()
        ordered = self._wait()
        if ordered is None:
            return 0
        with tempfile.TemporaryDirectory(prefix="skyward-") as folder:
            return self._run_node(*ordered, Path(folder))

    def _wait(self) -> _Order | None:
        """Return the order of a client; None if the task is to end or its lease has expired."""
        while not self._ending.is_set():
            with self._lock:
                left = None if self._client else self._contact + self._lease_s - time.monotonic()
            if left is not None and left <= 0:
                _log(f"The task ends: no client came for {self._lease_s:g} s (its lease).")
                break
            try:
                ordered = self._orders.get(timeout=left)
            except Empty:
                continue
            if ordered is not None:
                return ordered
        return None

    def _run_node(self, client: socket.socket, order: Mapping[str, Any], run_dir: Path) -> int:
        """Run the runner to its end; return 0 if it ended as it should."""
        runner = start_runner(order, run_dir, dict(os.environ), self._channel.hex(), subprocess.PIPE)
        with self._lock:
            self._run_dir, self._runner = run_dir, runner
        if self._ending.is_set():
            kill_group(runner)
        ending = threading.Thread(target=end_group_with, args=(runner,), daemon=True)
        ending.start()
        self._forward_output(runner, client)
        ending.join()
        code = exit_status(runner)
        self._report_exit(client, code)
        return 0 if self._ending.is_set() or code == EXIT_LEASE else code

    def _end(self) -> None:
        """End the task, and its runner if it has one, at once."""
        self._ending.set()
        self._orders.put(None)
        with self._lock:
            runner = self._runner
        if runner is not None:
            kill_group(runner)

    def _forward_output(self, runner: subprocess.Popen[bytes], client: socket.socket) -> None:
        """Pass the runner's output on to the client while it is connected, and to the log."""
        assert runner.stdout
        while data := os.read(runner.stdout.fileno(), 1 << 16):
            _write(data)
            _send(client, OUTPUT, data)

    def _report_exit(self, client: socket.socket, code: int) -> None:
        """Send the client the runner's exit status, and wait until its connections have delivered pending data."""
        _send(client, EXIT, json.dumps({"code": code}).encode())
        try:
            client.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the client has closed it already
        with self._lock:
            connections = tuple(self._connections)
        deadline = time.monotonic() + _FLUSH_S
        for connection in connections:
            connection.join(max(0.0, deadline - time.monotonic()))

    def _on_signal(self, number: int) -> None:
        """Pass the signal on to the runner; without one, end the task with status 0."""
        with self._lock:
            runner = self._runner
        if runner is None:
            self._end()
        elif self._kills:
            kill_group(runner)
        elif runner.poll() is None:
            runner.send_signal(number)

    # connections -------------------------------------------------------------------------------------------------

    def _wrap(self, sock: socket.socket) -> ssl.SSLSocket:
        tune(sock)
        keep_alive(sock)
        sock.settimeout(_HANDSHAKE_S)
        return self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def _authenticate(self, sock: socket.socket) -> tuple[ssl.SSLSocket, str]:
        """Return the connection and its first line; nothing is read from one without the pool's certificate."""
        assert isinstance(sock, ssl.SSLSocket)
        try:
            sock.do_handshake()
            return sock, sock.recv(_LINE_BYTES).decode().strip()
        except (OSError, ValueError) as error:
            sock.close()
            raise WireError(f"It has not shown the certificate of the pool's client ({error}).") from error

    def _serve(self, client: tuple[ssl.SSLSocket, str]) -> None:
        """Serve a connection according to its first line (a thread per connection)."""
        tls, line = client
        word, _, address = line.partition(" ")
        with self._lock:
            own = threading.current_thread()
            self._connections = [each for each in self._connections if each.is_alive()] + [own]
        try:
            if word == CLAIM:
                self._serve_claim(tls)
            else:
                self._serve_open(tls, address)
        except OSError:
            tls.close()  # the client has disconnected

    def _serve_open(self, tls: ssl.SSLSocket, address: str) -> None:
        """Connect the client to a socket of the runner."""
        with self._lock:
            run_dir = self._run_dir
        try:
            if run_dir is None:
                raise WireError("There is no runner yet.")
            there = dial(run_dir, address)
        except WireError as error:
            tls.sendall(f"{error}\n".encode())
            tls.close()
            return
        tls.sendall(b"ok\n")
        splice(there, tls)

    def _serve_claim(self, tls: ssl.SSLSocket) -> None:
        """Reserve the task for the client until its connection ends, and carry out its requests."""
        with self._lock:
            if self._client is not None or self._runner is not None:
                tls.close()
                return
            self._client = tls
        near: socket.socket = tls
        try:
            tls.sendall(f"{json.dumps({'port': free_port()})}\n".encode())
            near = plain_end(tls, "claim")
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(_FLUSH_S), 0))
            for line in near.makefile("r", encoding="utf-8"):
                request = json.loads(line)
                if request["do"] == START:
                    self._orders.put((near, request))
                else:
                    self._end()
        except ValueError as error:
            _log(f"A client sent a request that is not understood ({error}); its connection was closed.")
        finally:
            near.close()
            with self._lock:
                self._client, self._contact = None, time.monotonic()
            self._orders.put(None)


def keep_alive(sock: socket.socket) -> None:
    """Enable TCP keep-alive, so that the kernel notices within seconds if the other machine disappears silently."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 7000}
    for name, value in options.items():
        if hasattr(socket, name):  # some exist only on Linux
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _log(text: str) -> None:
    """Write a line to the log."""
    _write(f"skyward: {text}\n".encode(errors="replace"))


def _write(data: bytes) -> None:
    try:
        os.write(1, data)
    except OSError:
        pass  # there is no log


def _send(client: socket.socket, kind: int, data: bytes) -> None:
    """Send a message to the client; do nothing if it has disconnected.

    A client that does not read must not block the runner, so it is disconnected.
    """
    try:
        client.sendall(HEADER.pack(kind, len(data)) + data)
    except OSError:
        shut(client)


if __name__ == "__main__":
    sys.exit(main())
