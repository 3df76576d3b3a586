"""The `ray` plugin: a Ray cluster on the pool's nodes, to which the client's program is connected.

The program is not a member of the cluster: members accept connections from all others, and it may be behind a router
that blocks them. It uses Ray's server for such programs on node 0, through the pool's own connection to that node.

On each node the first worker process runs `ray start`, and restarts it when it ends. Node 0 has Ray's head on the port
that the pool has claimed; its other ports are free ones, which the client queries at a socket in the run directory of
the node. Standard library only at import, as nodes import this module.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from secrets import token_hex
from typing import IO, TYPE_CHECKING, Any

from skyward.errors import PluginError, SkywardError
from skyward.model.instance import PROCESSES_VAR, RUN_DIR_VAR, InstanceInfo
from skyward.plugins._ranks import cpus, nodes_here
from skyward.plugins.base import Plugin

if TYPE_CHECKING:
    from skyward.model.call import OpenPool
    from skyward.model.image import Image
    from skyward.model.spec import Cluster

_NEEDED = ("ray", "grpc")
_AGAIN_S = 120.0  # for Ray to be restarted after it has ended
_LOOK_S = 0.5
TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105 - the variable's name, which is Ray's own; its value is a secret of the pool
MODE = "RAY_AUTH_MODE"
_SOCKET = "ray.sock"
_READY = "Ray runtime started"  # printed by `ray start` at that point
_OWN_ADDRESSES = ip_address("127.0.1.1")  # of node 0, if nodes share a machine; Ray does not accept 127.0.0.1
_HEAD_S = 120.0  # for node 0 to answer
_END_S = 3.0  # for Ray's processes to end by themselves
_PAUSE_S = 2.0  # after a failed attempt to restart Ray
_ATTEMPTS = 2  # at the first start: `ray start` allows its own processes 30 s, which a busy machine may exceed
_LINES = 20  # of Ray's output, in an error
_LONGEST = 30  # characters of a directory that leaves room for the paths of Ray's sockets
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# for functions that use Ray, and for Ray's processes
_SETTINGS = {
    MODE: "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_LOGGER_LEVEL": "warning",  # functions that use Ray need not report that they are connected
    "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
}
_OF_PROCESSES = {
    "RAY_enable_metrics_collection": "0",  # its port would be open to everybody, without the token
    "DASHBOARD_METRIC_PORT": "-1",  # the same for the dashboard's; an invalid port number opens none
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",  # a node whose head is lost ends, and joins the next one
    "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "120",  # the server for programs starts a process for each of them
    # with gRPC's fork handlers, that process may die before it runs its program (seen in most starts)
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}


def ray() -> Plugin:
    """A Ray cluster on the pool's nodes, one of Ray's nodes on each. While the pool is open, `ray.init()` is done.

    Tasks and actors that the program creates run on the nodes; functions that the pool runs there can use Ray, too. The
    nodes have the Ray version that is installed here. The whole cluster requires a token that only this pool has. One
    pool with this plugin can be open in a program.

    Raises:
        PluginError: Ray, or a package that its client needs, is not installed here.
    """
    if any(find_spec(name) is None for name in _NEEDED):
        raise PluginError("The plugin ray needs Ray with its client on this machine: pip install 'skyward[ray]'.")
    return (
        Plugin.create("ray")
        .with_image_transform(_add_ray)
        .with_pool_secrets(lambda: {TOKEN: token_hex(32)})
        .with_around_app(joined)
        .with_around_client(_connected)
    )


def _add_ray(image: Image, cluster: Cluster) -> Image:
    """Return the image with this machine's Ray version and its dashboard.

    Raises:
        PluginError: the nodes have another Python or another Ray, or this program uses Ray elsewhere.
    """
    from importlib.metadata import version

    from packaging.requirements import Requirement

    from skyward.model.image import requirement_name
    from skyward.model.image_fields import local_minor

    _check_free()
    here = version("ray")
    if cluster.spec.python != local_minor():
        raise PluginError(
            f"Ray takes the same Python on both sides: the nodes would have {cluster.spec.python}, this program runs "
            f"on {local_minor()}. Leave python= out of the image, or run this program with Python "
            f"{cluster.spec.python}."
        )
    for entry in image.pip:
        if requirement_name(entry) == "ray" and not Requirement(entry).specifier.contains(here, prereleases=True):
            raise PluginError(
                f"Ray takes the same version on both sides: the image asks for {entry!r}, installed here is {here}. "
                "Leave ray out of the image, which the plugin adds it to, or install that version here."
            )
    return image.pip_install(f"ray[default]=={here}")


def _check_free() -> None:
    """Refuse a program that has, or is about to make, a connection of another kind."""
    loaded: Any = sys.modules.get("ray")
    if loaded is not None and loaded.is_initialized():
        raise PluginError(
            "This program is connected to Ray already, by ray.init() or by another pool. The plugin connects it, so "
            "leave ray.init() out; or call ray.shutdown() before the pool is opened."
        )
    if os.environ.get(MODE, "").lower() == "token":
        raise PluginError(
            f"{MODE}=token is set here, and would make Ray add a token of its own to that of the pool. Start the "
            f"program without it. A ray.init() that made a cluster here before has set it, too: set {MODE}=disabled "
            "before that, or open the pool in another process."
        )


@contextmanager
def _connected(pool: OpenPool, _cluster: Cluster) -> Iterator[None]:
    """Connect the program, and report the dashboard's address (the plugin's `around_client` hook)."""
    from skyward.plugins._ray_client import connected
    from skyward.wire.forward import Forward

    token = dict(pool._settings.secrets)[TOKEN]
    with (
        closing(Forward.on_loopback(partial(_dial, pool))) as forward,
        connected(f"127.0.0.1:{forward.port}", token),
    ):
        if dashboard := read_ports(pool._head().dial).dashboard:
            pool._progress.tell(f"Ray's dashboard: skyward forward {pool.id}:0 {dashboard}")
        yield


def _dial(pool: OpenPool) -> Any:
    """Connect to Ray's server for programs, wherever node 0 is now; wait while Ray is restarted there."""
    deadline = time.monotonic() + _AGAIN_S
    while True:
        head = pool._head()
        try:
            return head.dial(f"tcp:127.0.0.1:{read_ports(head.dial).client}")
        except SkywardError:
            if time.monotonic() > deadline or not pool.is_active:
                raise
            time.sleep(_LOOK_S)


@dataclass(frozen=True)
class Ports:
    """The ports of Ray's head that its node has chosen; all None on other nodes.

    Attributes:
        client: of the server for programs outside the cluster.
        dashboard: also None if the dashboard's packages are not installed.
    """

    client: int | None = None
    dashboard: int | None = None


def read_ports(dial: Callable[[str], socket.socket]) -> Ports:
    """Ask a node for its ports, once its plugin is set up.

    Args:
        dial: connects to an address of the node.
    """
    with dial(f"unix:{_SOCKET}") as sock, sock.makefile("r", encoding="utf-8") as answer:
        return Ports(**json.loads(answer.read()))


def address_of(info: InstanceInfo, node: int) -> str:
    """Return the address of a node in the cluster: the pool's, or a loopback address if they share a machine."""
    known = {peer.node: peer.private_ip for peer in info.peers}
    address = known.get(node, info.head_addr)
    return str(_OWN_ADDRESSES + node) if ip_address(address).is_loopback else address


def head_of(info: InstanceInfo) -> str:
    """Return address and port of the cluster."""
    return f"{address_of(info, 0)}:{info.head_port}"


def command(info: InstanceInfo, ports: Ports, directory: Path) -> list[str]:
    """Return the command that starts Ray on a node.

    Args:
        info: the node's place.
        ports: on node 0, those to open.
        directory: for Ray's logs and sockets.
    """
    words = [sys.executable, "-u", "-m", "skyward.plugins._ray", "start", "--block"]
    words += [f"--node-ip-address={address_of(info, info.node)}", f"--temp-dir={directory}"]
    words += ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]  # any free ones
    here = address_of(info, info.node)
    if (sharing := nodes_here(info)) > 1:
        words += [f"--num-cpus={cpus(sharing)}", f"--node-name={here}"]
    if info.node:
        return [*words, f"--address={head_of(info)}"]
    words += ["--head", f"--port={info.head_port}", f"--ray-client-server-port={ports.client}", "--no-monitor"]
    if ports.dashboard is None:
        return [*words, "--include-dashboard=false"]
    return [*words, "--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={ports.dashboard}"]


@contextmanager
def joined(info: InstanceInfo) -> Iterator[None]:
    """Make this node part of the cluster, so that functions can use Ray in this process (the `around_app` hook).

    The first worker process of a node starts Ray; the others wait until it has.

    Raises:
        PluginError: Ray could not be started, or node 0 cannot be reached.
    """
    run_dir = Path(os.environ[RUN_DIR_VAR])
    os.environ.update(_SETTINGS, RAY_ADDRESS=head_of(info))
    with (run_dir / "ray.lock").open("w") as lock:
        while not _is_first(lock):
            if _answers(run_dir):
                yield
                return
            time.sleep(_LOOK_S)
        (run_dir / _SOCKET).unlink(missing_ok=True)
        with closing(RayNode(info, run_dir)):
            yield


def _is_first(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _answers(run_dir: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        return sock.connect_ex(str(run_dir / _SOCKET)) == 0


class RayNode:
    """Ray's processes on this node. They are restarted when they end, and when node 0 has moved.

    Args:
        info: the node's place.
        run_dir: where the client can ask for the ports.

    Raises:
        PluginError: Ray could not be started, or node 0 cannot be reached.
    """

    def __init__(self, info: InstanceInfo, run_dir: Path) -> None:
        self._stopping = threading.Event()
        is_kept_short = PROCESSES_VAR in os.environ and len(str(run_dir)) <= _LONGEST
        self._base = run_dir if is_kept_short else Path("/tmp")
        self._directory: Path | None = None
        self._process: subprocess.Popen[str] | None = None
        self._listener: socket.socket | None = None
        self._watching = threading.Thread(target=self._watch, name="skyward-ray", daemon=True)
        try:
            self._start_first(info)
            self._serve_ports(run_dir)
        except BaseException:
            self.close()
            raise
        self._watching.start()

    def close(self) -> None:
        """End Ray's processes, and remove their files."""
        self._stopping.set()
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        self._end()
        if self._watching.ident is not None:
            self._watching.join()

    def _start_first(self, info: InstanceInfo) -> None:
        for left in reversed(range(_ATTEMPTS)):
            try:
                self._start(info)
                return
            except PluginError:
                self._end()
                if not left:
                    raise

    def _start(self, info: InstanceInfo) -> None:
        self._head = head_of(info)
        os.environ["RAY_ADDRESS"] = self._head
        self._ports = Ports()
        if info.node == 0:
            client, dashboard = _free_ports(2)
            self._ports = Ports(client, dashboard if find_spec("aiohttp_cors") else None)
        else:
            self._wait_for_head(info)
        if self._stopping.is_set():
            return
        self._directory = Path(tempfile.mkdtemp(prefix="ray", dir=self._base))
        process = subprocess.Popen(
            command(info, self._ports, self._directory),
            env={**os.environ, **_OF_PROCESSES, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._process = process
        output = _Output(process)
        if self._stopping.is_set():
            self._end()
        if not output.wait_ready() and not self._stopping.is_set():
            process.kill()
            raise PluginError(
                f"ray: Ray could not be started on node {info.node} ({address_of(info, info.node)}): it ended with "
                f"status {process.wait()}. Its last output:\n{output.last()}"
            )
        if self._ports.client is not None:
            _wait_for_server(self._ports.client, process)

    def _wait_for_head(self, info: InstanceInfo) -> None:
        """Wait until Ray's head listens: `ray start` would load and fail meanwhile."""
        deadline = time.monotonic() + _HEAD_S
        while not self._stopping.wait(_LOOK_S / 5):
            try:
                socket.create_connection((address_of(info, 0), info.head_port), _LOOK_S).close()
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise PluginError(
                        f"ray: node {info.node} cannot reach Ray's head on node 0 at {head_of(info)} ({error}). Nodes "
                        "must reach each other on every TCP port: look at the firewalls between them."
                    ) from error

    def _serve_ports(self, run_dir: Path) -> None:
        path = run_dir / _SOCKET
        self._listener = listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        path.chmod(0o666)  # the client may be another user than the container's; only it can enter the directory
        listener.listen()
        threading.Thread(target=self._tell_ports, args=(listener,), name="skyward-ray-ports", daemon=True).start()

    def _tell_ports(self, listener: socket.socket) -> None:
        while True:
            try:
                asking, _ = listener.accept()
            except OSError:
                return  # closed
            with asking, suppress(OSError):
                asking.sendall(json.dumps(asdict(self._ports)).encode())

    def _watch(self) -> None:
        """Restart Ray when it has ended, or when its head no longer exists (runs in a separate thread)."""
        while not self._stopping.wait(_LOOK_S):
            info = InstanceInfo.current()
            assert info and self._process
            if self._process.poll() is None and head_of(info) == self._head:
                continue
            why = "the cluster's head has moved" if self._process.poll() is None else "it has ended"
            print(f"skyward: Ray on node {info.node} is started again: {why}", file=sys.__stderr__, flush=True)
            self._end()
            try:
                self._start(info)
            except PluginError as error:
                print(f"skyward: {error}", file=sys.__stderr__, flush=True)
                self._stopping.wait(_PAUSE_S)

    def _end(self) -> None:
        """End `ray start`, by force after a short grace period, together with its children; remove their files."""
        if self._process is not None:
            assert self._process.stdin
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process.stdin.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


class _Output:
    """Reads the output of `ray start` for as long as it runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._news = threading.Event()
        self._is_ready = False
        threading.Thread(target=self._read, args=(process.stdout,), name="skyward-ray-output", daemon=True).start()

    def wait_ready(self) -> bool:
        """Block until Ray runs or has ended; return whether it runs."""
        self._news.wait()
        return self._is_ready

    def last(self) -> str:
        """Return the last lines."""
        return "".join(self._lines) or "(it printed nothing)"

    def _read(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                self._lines.append(_COLOURS.sub("", line))
                if _READY in line:
                    self._is_ready = True
                    self._news.set()
        self._news.set()


def _free_ports(count: int) -> list[int]:
    """Return TCP ports that nothing listens on, at any address."""
    holders = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [holder.getsockname()[1] for holder in holders]
    for holder in holders:
        holder.close()
    return ports


def _wait_for_server(port: int, process: subprocess.Popen[str]) -> None:
    """Wait until Ray's server for programs listens; return early if Ray ends, as it is then restarted."""
    while process.poll() is None:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), _LOOK_S).close()
            return
        time.sleep(_LOOK_S / 10)


def main() -> None:
    """Run Ray's command line with the parameters of this program, until its standard input ends.

    This way Ray does not outlive the worker process that started it, however that ends: Ray's processes end with this
    one.
    """
    threading.Thread(target=_end_with_input, daemon=True).start()
    from ray.scripts.scripts import main as command_line

    sys.argv[0] = "ray"
    command_line()


def _end_with_input() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
