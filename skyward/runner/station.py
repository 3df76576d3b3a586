"""`python -m skyward.runner.station`: a task of a Swarm service, which waits for its pool's client and is then a node.

A task learns where the engine has put it, and nobody else's place, so its client has to come to it. The station listens
at its machine's address in the swarm, with TLS 1.3, and lets in whoever shows the certificate that came with its
secret: the pool's client. That hands over what the node is to be, the node's key included. Further connections lead to
the runner's sockets. It ends with the runner; by itself when no client has come for the lease.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import ssl
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from skyward.errors import WireError
from skyward.runner.acceptor import Acceptor
from skyward.runner.account import account_variables, gain_no_privileges
from skyward.runner.config import CHANNEL_VAR, KEY_FILE, RUN_DIR_VAR, SETTINGS_VAR
from skyward.runner.signals import on_signals
from skyward.system import Empty, SimpleQueue, socket, threading, time
from skyward.wire.listen import dial, tune
from skyward.wire.tls import Identity, plain_end, splice

STATION_VAR, SLOT_VAR = "SKYWARD_STATION", "SKYWARD_SLOT"
SECRET = Path("/run/secrets/skyward")
_WORK_DIR = Path("/work")  # where functions run in images that name no directory of their own
# what a client says once it has the station for itself: be this; end, and another will come; end for good
ORDER, GIVE_UP, STOP = "be", "give up", "stop"
OUTPUT, EXIT = 0, 1  # kinds of what it hears then
HEADER = struct.Struct("!BI")
EXIT_GIVEN_UP = 75  # not 0: the engine is to start the task again
_EXIT_LEASE = 3  # the runner's, when no client has been there; see skyward.runner.agent
_HANDSHAKE_S = 10.0
_LINE_BYTES = 256
_FLUSH_S = 2.0
_PORTS = (20_000, 30_000)  # below those that the kernel gives to connections


class End(NamedTuple):
    """That the station is to end, and how."""

    status: int


class Client(NamedTuple):
    """The client that has the station for itself, and what it wants the node to be."""

    sock: socket.socket
    said: Mapping[str, Any]


def ports(pool: str, slot: int) -> tuple[int, ...]:
    """Where the station of a slot listens: at the first of these ports that is free there."""
    digest = hashlib.sha256(f"{pool}/{slot}".encode()).digest()
    first, after = _PORTS
    return tuple(first + int.from_bytes(digest[at : at + 4]) % (after - first) for at in range(0, 16, 4))


def main() -> int:
    """Be a station until there is nothing more to do; the exit status is 0 if the task is not to be started again."""
    if Path.cwd() == Path("/"):  # there every top-level directory would be importable as a package
        _WORK_DIR.mkdir(exist_ok=True)
        os.chdir(_WORK_DIR)
    settings = json.loads(os.environ[STATION_VAR])
    if not settings["gains_privileges"]:
        gain_no_privileges()
    slot = int(os.environ[SLOT_VAR])
    try:
        identity = Identity(**json.loads(SECRET.read_text()))
        listener = listen_at(local_address(settings["managers"]), ports(settings["pool"], slot))
    except (OSError, ValueError, KeyError, TypeError) as error:
        say(f"The task for slot {slot} of pool {settings['pool']} cannot wait for its client: {error}")
        return 2
    return Station(listener, identity, float(settings["lease_s"])).run()


def local_address(managers: list[str]) -> str:
    """The machine's address in the network in which it reaches a manager of its swarm.

    Raises:
        OSError: none can be reached.
    """
    failure = OSError("no manager of the swarm is known")
    for manager in managers:
        host, _, port = manager.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # sends nothing; the kernel says what it would take
            try:
                probe.connect((host.strip("[]"), int(port)))
                return str(probe.getsockname()[0])
            except OSError as error:
                failure = error
    raise failure


def listen_at(address: str, candidates: tuple[int, ...]) -> socket.socket:
    """A listening socket at the first port that is free.

    Raises:
        OSError: none of them is.
    """
    for port in candidates:
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address, port))
            sock.listen(128)
            return sock
        except OSError:
            sock.close()
    raise OSError(f"all of the ports {', '.join(map(str, candidates))} are in use at {address}")


class Station:
    """A task before it is a node, and while it is one."""

    def __init__(self, listener: socket.socket, identity: Identity, lease_s: float) -> None:
        self._listener, self._context, self._lease_s = listener, identity.context(server=True), lease_s
        self._channel = identity.end_point
        self._news: SimpleQueue[End | Client | None] = SimpleQueue()  # None: look again
        self._lock = threading.Lock()  # guards what follows
        self._client: socket.socket | None = None
        self._contact = time.monotonic()
        self._relays: list[threading.Thread] = []
        self._run_dir: Path | None = None
        self._runner: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Wait for the client, then be the node it describes; the exit status."""
        on_signals((signal.SIGTERM, signal.SIGINT), self._on_signal)
        acceptor = Acceptor(
            self._listener, wrap=self._wrap, authenticate=self._authenticate, serve=self._welcome, say=say
        )
        threading.Thread(target=acceptor.run, daemon=True).start()
        news = self._wait()
        if news is None:
            say(f"The task ends: no client came for {self._lease_s:g} s (its lease).")
            return 0
        if isinstance(news, End):
            return news.status
        with tempfile.TemporaryDirectory(prefix="skyward-") as folder:
            return self._be(news, Path(folder))

    def _wait(self) -> End | Client | None:
        """What happens first: the client says what to be, or that nothing is to be; or the lease is over: None."""
        while True:
            with self._lock:
                left = None if self._client else self._contact + self._lease_s - time.monotonic()
            if left is not None and left <= 0:
                return None
            try:
                news = self._news.get(timeout=left)
            except Empty:
                continue
            if news is not None:
                return news

    def _be(self, client: Client, run_dir: Path) -> int:
        """Run the runner to its end; 0 where it has ended as it should."""
        order = client.said
        with open(os.open(run_dir / KEY_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(bytes.fromhex(order["key"]))
        own = {
            "COMPUTE_POOL": order["compute_pool"],
            SETTINGS_VAR: order["runner"],
            RUN_DIR_VAR: str(run_dir),
            CHANNEL_VAR: self._channel.hex(),
        }
        environment = {name: value for name, value in os.environ.items() if name not in (STATION_VAR, SLOT_VAR)}
        runner = subprocess.Popen(
            [sys.executable, "-m", "skyward.runner"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**environment, **account_variables(), **gpus(environment), **order["env"], **own},
            start_new_session=True,
        )
        with self._lock:
            self._run_dir, self._runner = run_dir, runner
        meanwhile = self._orders_to_end()  # what came before there was a runner to be ended
        if meanwhile:
            _kill_group(runner)
        ended = threading.Thread(target=self._watch, args=(runner,), daemon=True)
        ended.start()
        self._tell_output(runner, client.sock)
        ended.join()
        code = runner.wait()
        code = 128 - code if code < 0 else code
        self._last_words(client.sock, code)
        if ends := (*meanwhile, *self._orders_to_end()):
            return max(end.status for end in ends)
        return 0 if code == _EXIT_LEASE else code

    def _orders_to_end(self) -> list[End]:
        news = []
        while not self._news.empty():
            news.append(self._news.get())
        return [each for each in news if isinstance(each, End)]

    def _watch(self, runner: subprocess.Popen[bytes]) -> None:
        """End what the runner has started when it has ended (a thread)."""
        os.waitid(os.P_PID, runner.pid, os.WEXITED | os.WNOWAIT)
        _kill_group(runner)

    def _tell_output(self, runner: subprocess.Popen[bytes], client: socket.socket) -> None:
        """Pass on what the runner prints, to the client as long as it listens and to the service's log."""
        assert runner.stdout
        while data := os.read(runner.stdout.fileno(), 1 << 16):
            _write(data)
            _tell(client, OUTPUT, data)

    def _last_words(self, client: socket.socket, code: int) -> None:
        """Let what has been said reach the client: how it ended, and what relays still carry."""
        _tell(client, EXIT, json.dumps({"code": code}).encode())
        try:
            client.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the client was faster
        with self._lock:
            relays = tuple(self._relays)
        deadline = time.monotonic() + _FLUSH_S
        for relay in relays:
            relay.join(max(0.0, deadline - time.monotonic()))

    def _on_signal(self, number: int) -> None:
        """Whoever ends the task ends the runner in its own way, and no task is started again for it."""
        with self._lock:
            runner = self._runner
        if runner is None:
            self._news.put(End(0))
        elif runner.poll() is None:
            runner.send_signal(number)

    # connections -------------------------------------------------------------------------------------------------

    def _wrap(self, sock: socket.socket) -> ssl.SSLSocket:
        tune(sock)
        keep_alive(sock)
        sock.settimeout(_HANDSHAKE_S)
        return self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def _authenticate(self, sock: socket.socket) -> tuple[ssl.SSLSocket, str]:
        """The connection, and what its client wants of it; nothing is read of one without the pool's certificate."""
        assert isinstance(sock, ssl.SSLSocket)
        try:
            sock.do_handshake()
            return sock, sock.recv(_LINE_BYTES).decode().strip()
        except (OSError, ValueError) as error:
            sock.close()
            raise WireError(f"It has not shown the certificate of the pool's client ({error}).") from error

    def _welcome(self, client: tuple[ssl.SSLSocket, str]) -> None:
        """Do what a client has come for (a thread per connection)."""
        tls, wish = client
        word, _, address = wish.partition(" ")
        with self._lock:
            own = threading.current_thread()
            self._relays = [relay for relay in self._relays if relay.is_alive()] + [own]
        try:
            if word == "station":
                self._serve(tls)
            else:
                self._lead(tls, address)
        except OSError:
            tls.close()  # the client is gone

    def _lead(self, tls: ssl.SSLSocket, address: str) -> None:
        """Connect the client with a socket of the runner."""
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

    def _serve(self, tls: ssl.SSLSocket) -> None:
        """Have the client as the one that says what to be, until it goes; a second one may only end all this."""
        with self._lock:
            busy = self._client is not None or self._runner is not None
            self._client = self._client or tls
        near: socket.socket = tls
        try:
            tls.sendall(f"{json.dumps({'busy': busy, 'port': _free_port()})}\n".encode())
            near = plain_end(tls, "station")
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(_FLUSH_S), 0))
            for line in near.makefile("r", encoding="utf-8"):
                self._hear(near, json.loads(line), busy=busy)
        except ValueError as error:
            say(f"A client said something that is not understood ({error}); its connection was closed.")
        finally:
            near.close()
            if not busy:
                with self._lock:
                    self._client, self._contact = None, time.monotonic()
            self._news.put(None)

    def _hear(self, client: socket.socket, said: Mapping[str, Any], *, busy: bool) -> None:
        if said["do"] == ORDER and not busy:
            self._news.put(Client(client, said))
        elif said["do"] in (GIVE_UP, STOP):
            self._news.put(End(EXIT_GIVEN_UP if said["do"] == GIVE_UP else 0))
            if self._runner is not None:
                _kill_group(self._runner)


def keep_alive(sock: socket.socket) -> None:
    """Notice within some seconds that the other machine is gone without a word."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    wishes = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 7000}
    for name, value in wishes.items():
        if hasattr(socket, name):  # some are Linux's
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def gpus(environment: Mapping[str, str]) -> dict[str, str]:
    """Which GPUs the engine has reserved for this task, where it has given their names, in CUDA's words."""
    for name, value in environment.items():
        if name.startswith("DOCKER_RESOURCE_") and value.startswith("GPU-"):
            return {"CUDA_VISIBLE_DEVICES": value}
    return {}


def say(text: str) -> None:
    """Write a line into the service's log."""
    _write(f"skyward: {text}\n".encode(errors="replace"))


def _write(data: bytes) -> None:
    try:
        os.write(1, data)
    except OSError:
        pass  # nobody keeps a log


def _tell(client: socket.socket, kind: int, data: bytes) -> None:
    """A message for the client; nothing happens if it is gone. One that is silent must not hold up the runner."""
    try:
        client.sendall(HEADER.pack(kind, len(data)) + data)
    except OSError:
        _shut(client)


def _kill_group(runner: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(runner.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _shut(sock: socket.socket) -> None:
    try:
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not TLS's own, after which a read would be one in the clear
    except OSError:
        pass  # it has just been closed


def _free_port() -> int:
    """A port on which nothing listens, for what frameworks agree on."""
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            try:
                sock.bind(("", random.randrange(10_000, 20_000)))  # noqa: S311 - guards nothing
            except OSError:
                continue
            return int(sock.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
