"""The `ray` plugin: a Ray cluster on the pool's nodes, to which the client's program is connected.

The program is not a member of the cluster: members accept connections from all others, and it may be behind a router
that blocks them. It uses Ray's server for such programs on node 0, through the pool's own connection to that node.

On each node the first worker process runs `ray start`, and restarts it when it ends. Node 0 has Ray's head on the port
that the pool has claimed; the ports for programs and the dashboard are chosen with the plugin. Standard library only at
import, as nodes import this module.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from secrets import randbelow, token_hex
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from skyward.errors import PluginError
from skyward.model.instance import PROCESSES_VAR, RUN_DIR_VAR, InstanceInfo
from skyward.plugins._ranks import cpus, nodes_here
from skyward.plugins.base import Plugin, check_python

if TYPE_CHECKING:
    from skyward.model.call import OpenPool
    from skyward.model.image import Image
    from skyward.model.spec import Cluster

_NEEDED = ("ray", "grpc", "aiohttp_cors")
_PORTS = (20_000, 30_000)  # below the kernel's ephemeral ports, above those of `container.free_port`
_LOOK_S = 0.5
TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105 - the variable's name, which is Ray's own; its value is a secret of the pool
MODE = "RAY_AUTH_MODE"
_RUNS = "ray.runs"  # exists in the run directory while Ray runs on the node
_READY = "Ray runtime started"  # printed by `ray start` at that point
_OWN_ADDRESSES = ip_address("127.0.1.1")  # of node 0, if nodes share a machine; Ray does not accept 127.0.0.1
_HEAD_S = 120.0  # for node 0 to answer
_END_S = 3.0  # for Ray's processes to end by themselves
_PAUSE_S = 2.0  # after a failed attempt to restart Ray
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


class Ports(NamedTuple):
    """The ports of Ray's head on node 0: of the server for programs outside the cluster, and of the dashboard."""

    client: int
    dashboard: int


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
    first, end = _PORTS
    client = first + randbelow(end - first - 1)
    ports = Ports(client, client + 1)
    return (
        Plugin.create("ray")
        .with_image_transform(_add_ray)
        .with_pool_secrets(lambda: {TOKEN: token_hex(32)})
        .with_around_app(partial(joined, ports=ports))
        .with_around_client(partial(_connected, ports=ports))
    )


def _add_ray(image: Image, cluster: Cluster) -> Image:
    """Return the image with this machine's Ray version and its dashboard.

    Raises:
        PluginError: the nodes have another Python or another Ray, or this program uses Ray elsewhere.
    """
    from importlib.metadata import version

    from packaging.requirements import Requirement

    from skyward.model.image import requirement_name

    _check_free()
    here = version("ray")
    check_python("Ray", cluster)
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
def _connected(pool: OpenPool, _cluster: Cluster, *, ports: Ports) -> Iterator[None]:
    """Connect the program, and report the dashboard's address (the plugin's `around_client` hook)."""
    from skyward.plugins._ray_client import connected
    from skyward.ssh.forward import Forward

    token = dict(pool._settings.secrets)[TOKEN]
    with (
        closing(Forward.on_loopback(lambda: pool._head().dial(f"tcp:127.0.0.1:{ports.client}"))) as forward,
        connected(f"127.0.0.1:{forward.port}", token),
    ):
        pool._progress.tell(f"Ray's dashboard: skyward forward {pool.id}:0 {ports.dashboard}")
        yield


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
        ports: those to open on node 0.
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
    return [*words, "--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={ports.dashboard}"]


@contextmanager
def joined(info: InstanceInfo, *, ports: Ports) -> Iterator[None]:
    """Make this node part of the cluster, so that functions can use Ray in this process (the `around_app` hook).

    The first worker process of a node starts Ray; the others wait until it has.

    Raises:
        PluginError: Ray could not be started, or node 0 cannot be reached.
    """
    run_dir = Path(os.environ[RUN_DIR_VAR])
    runs = run_dir / _RUNS
    os.environ.update(_SETTINGS, RAY_ADDRESS=head_of(info))
    with (run_dir / "ray.lock").open("w") as lock:
        while not _is_first(lock):
            if runs.exists():
                yield
                return
            time.sleep(_LOOK_S)
        runs.unlink(missing_ok=True)
        with closing(RayNode(info, run_dir, ports)):
            runs.touch()
            yield


def _is_first(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class RayNode:
    """Ray's processes on this node. They are restarted when they end, and when node 0 has moved.

    Args:
        info: the node's place.
        run_dir: of the node, for Ray's files if its path is short enough.
        ports: of Ray's head.

    Raises:
        PluginError: Ray could not be started, or node 0 cannot be reached.
    """

    def __init__(self, info: InstanceInfo, run_dir: Path, ports: Ports) -> None:
        is_kept_short = PROCESSES_VAR in os.environ and len(str(run_dir)) <= _LONGEST
        self._base = run_dir if is_kept_short else Path("/tmp")
        self._ports = ports
        self._stopping = threading.Event()
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watching = threading.Thread(target=self._watch, name="skyward-ray", daemon=True)
        try:
            self._start(info)
        except BaseException:
            self._end()
            raise
        self._watching.start()

    def close(self) -> None:
        """End Ray's processes, and remove their files."""
        self._stopping.set()
        self._watching.join()
        self._end()

    def _start(self, info: InstanceInfo) -> None:
        """Run `ray start`, and return when Ray runs or this object is being closed."""
        self._head = head_of(info)
        os.environ["RAY_ADDRESS"] = self._head
        if info.node:
            self._wait_for_head(info)
        self._directory = Path(tempfile.mkdtemp(prefix="ray", dir=self._base))
        log = self._directory / "start.log"
        with log.open("wb") as output:
            self._process = process = subprocess.Popen(
                command(info, self._ports, self._directory),
                env={**os.environ, **_OF_PROCESSES, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        while not self._stopping.wait(_LOOK_S / 5):
            status, text = process.poll(), log.read_text(errors="replace")
            if _READY in text:
                break
            if status is not None:
                last = "".join(_COLOURS.sub("", text).splitlines(keepends=True)[-_LINES:]) or "(it printed nothing)"
                raise PluginError(
                    f"ray: Ray could not be started on node {info.node} ({address_of(info, info.node)}): it ended with "
                    f"status {status}. Its last output:\n{last}"
                )
        while not info.node and process.poll() is None and not self._stopping.is_set():
            with suppress(OSError):  # its server for programs starts later; if Ray ends meanwhile, it is restarted
                socket.create_connection(("127.0.0.1", self._ports.client), _LOOK_S).close()
                return
            self._stopping.wait(_LOOK_S / 10)

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

    def _watch(self) -> None:
        """Restart Ray when it has ended, or when its head no longer exists (runs in a separate thread)."""
        while not self._stopping.wait(_LOOK_S):
            info = InstanceInfo.current()
            assert info and self._process
            if self._process.poll() is None and head_of(info) == self._head:
                continue
            print(f"skyward: Ray on node {info.node} is started again", file=sys.__stderr__, flush=True)
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
