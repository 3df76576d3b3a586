"""The `dask` plugin: a Dask cluster on the pool's nodes, and its client as `pool.dask`.

The scheduler runs on node 0, where the other nodes can reach it: this machine may be behind a router that blocks
incoming connections. It is a separate process (`python -m skyward.plugins._dask`), since it would compete with
functions for the interpreter's lock. Each worker process of the pool has a Dask worker. Standard library only at
import, as nodes import this module.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward.errors import PluginError
from skyward.model.instance import RUN_DIR_VAR, SETTINGS_VAR, InstanceInfo
from skyward.plugins._ranks import cpus, nodes_here, source_address
from skyward.plugins.base import Plugin, check_python
from skyward.runner.config import RunnerSettings

if TYPE_CHECKING:
    from distributed import Client, Security, Worker

    from skyward.model.call import OpenPool
    from skyward.model.image import Image
    from skyward.model.spec import Cluster

_NEEDED = ("distributed", "cryptography")
_JOIN_S = 60.0  # for the workers of all nodes to join, once those are set up
_LOOK_S = 0.02
_AGAIN_S = 600.0  # for the client to find a lost scheduler again, while its node is replaced
# on the nodes
IDENTITY = "POOL_DASK_IDENTITY"  # the secret: certificate and private key (PEM) as JSON
_SCHEDULER = ("-P", "-m", "skyward.plugins._dask")
_START_S = 30.0  # for a worker to join the cluster, before it looks for the scheduler again
_PAUSE_S = 0.2
_END_S = 3.0


def dask() -> Plugin:
    """A Dask cluster on the pool's nodes: `dask.compute` runs there while the pool is open, `pool.dask` is its client.

    Each worker process of the pool is a worker of the cluster, with its share of the node's processors as threads. The
    nodes have the Dask version that is installed here. All connections are encrypted, and require a certificate that
    only this pool has.

    Raises:
        PluginError: Dask is not installed here.
    """
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise PluginError(
            f"The plugin dask needs {' and '.join(missing)} on this machine: pip install 'skyward[dask]'."
        )
    return (
        Plugin.create("dask")
        .with_image_transform(_add_dask)
        .with_pool_secrets(_new_identity)
        .with_around_app(joined)
        .with_around_client(_connected)
    )


def _add_dask(image: Image, cluster: Cluster) -> Image:
    """Return the image with this machine's Dask version, its dashboard's needs, and a package to create certificates.

    Raises:
        PluginError: the nodes have another Python version, whose functions this one cannot read.
    """
    from importlib.metadata import version

    check_python("Dask", cluster)
    return image.pip_install(f"distributed=={version('distributed')}", "bokeh>=3.1", "cryptography>=42")


def _new_identity() -> Mapping[str, str]:
    from skyward.nodes.claimed import new_certificate

    certificate, key = new_certificate("skyward dask", user="The plugin dask", extra="dask")
    return {IDENTITY: json.dumps({"certificate": certificate, "key": key})}


def security(identity: str) -> Security:
    """Return Dask's settings for connections that are encrypted and require this certificate at both ends."""
    from distributed import Security

    parts = json.loads(identity)
    pair = {
        f"tls_{role}_{what}": parts["certificate" if what == "cert" else "key"]
        for role in ("client", "scheduler", "worker")
        for what in ("cert", "key")
    }
    return Security(require_encryption=True, tls_ca_file=parts["certificate"], **pair)


def scheduler_address(info: InstanceInfo) -> str:
    """Return the address of a pool's scheduler, on the port that the pool has claimed on node 0."""
    return f"tls://{info.head_addr}:{info.head_port}"


@contextmanager
def _connected(pool: OpenPool, _cluster: Cluster) -> Iterator[None]:
    """Make Dask's client the default one of this program (the plugin's `around_client` hook)."""
    import dask.config
    from distributed import Client

    identity = dict(pool._settings.secrets)[IDENTITY]
    with _way_to_scheduler(pool) as address, dask.config.set(_defaults(address, identity)), _no_word_of_versions():
        client = Client(address, security=security(identity), timeout=_JOIN_S, name="skyward")
        try:
            _wait_for_workers(pool, client)
            client._timeout = _AGAIN_S
            pool._dask = client
            port = client.scheduler_info(n_workers=0)["services"].get("dashboard")
            pool._progress.tell(f"Dask's dashboard: skyward forward {pool.id}:0 {port}")
            yield
        finally:
            pool._dask = None
            _close(client)


@contextmanager
def _way_to_scheduler(pool: OpenPool) -> Iterator[str]:
    """Yield the scheduler's address for this machine, which stays the same when node 0 is replaced."""
    from skyward.nodes.local_host import LocalHost
    from skyward.ssh.forward import Forward

    head = pool._head()
    if isinstance(head.host, LocalHost):
        yield scheduler_address(InstanceInfo.from_json(head.document))
        return

    def dial() -> Any:
        node = pool._head()
        return node.dial(scheduler_address(InstanceInfo.from_json(node.document)).replace("tls://", "tcp:"))

    with closing(Forward.on_loopback(dial)) as forward:
        yield f"tls://127.0.0.1:{forward.port}"


def _defaults(address: str, identity: str) -> dict[str, Any]:
    """Return settings by which the program's own `Client()` without parameters finds this cluster, too.

    They do not require encryption: other clusters of the program may have none.
    """
    parts = json.loads(identity)
    tls = "distributed.comm.tls"
    return {
        "scheduler-address": address,
        f"{tls}.ca-file": parts["certificate"],
        f"{tls}.client.cert": parts["certificate"],
        f"{tls}.client.key": parts["key"],
    }


@contextmanager
def _no_word_of_versions() -> Iterator[None]:
    """Mute Dask's warning about different versions: those that affect its protocol are the same.

    It would report each patch release of Python and tornado. `pool.dask.get_versions()` lists them all.
    """
    warnings.filterwarnings("ignore", message="Mismatched versions found")
    added = warnings.filters[0]
    try:
        yield
    finally:
        if added in warnings.filters:
            warnings.filters.remove(added)  # type: ignore[attr-defined]  # a list, which typeshed calls a sequence


def _wait_for_workers(pool: OpenPool, client: Client) -> None:
    expected = pool.current_nodes() * pool._settings.worker.processes
    deadline = time.monotonic() + _JOIN_S
    while True:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        if len(workers) >= expected:
            return
        if time.monotonic() > deadline:
            nodes = sorted({worker["name"].rpartition(" process")[0] for worker in workers}) or ["none"]
            raise PluginError(
                f"Of {expected} workers only {len(workers)} have joined Dask's scheduler within {_JOIN_S:g} s: those "
                f"of {', '.join(nodes)}. Nodes must reach node 0 on every TCP port: look at what the others print "
                "above, and at the firewalls between them."
            )
        time.sleep(_LOOK_S)


def _close(client: Client) -> None:
    """Close the client, muting its messages about a lost scheduler."""
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        client.close()
    finally:
        logger.setLevel(before)


@contextmanager
def joined(info: InstanceInfo) -> Iterator[None]:
    """Run a worker of the cluster in this process, and the scheduler on node 0 (the plugin's `around_app` hook).

    Raises:
        PluginError: the scheduler could not be started.
    """
    identity = os.environ.pop(IDENTITY)  # functions, and the programs they start, do not need it
    with ExitStack() as stack:
        if info.node == 0:
            stack.enter_context(_scheduler(info, identity))
        member = _Member(info, identity)
        stack.callback(member.close)
        yield


@contextmanager
def _scheduler(info: InstanceInfo, identity: str) -> Iterator[None]:
    """Run the scheduler, unless another process of this node does."""
    with (Path(os.environ[RUN_DIR_VAR]) / "dask-scheduler").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield
            return
        paths = os.pathsep.join(filter(None, sys.path))  # it unpickles the functions of tasks, as a worker does
        process = subprocess.Popen(
            [sys.executable, *_SCHEDULER],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin and process.stdout
        try:
            host = info.head_addr if _is_own(info.head_addr) else ""  # translated on the way here
            order = {"host": host, "port": info.head_port, "identity": identity}
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline().strip()
            if answer != "ready":
                raise PluginError(
                    f"dask: the scheduler could not be started on node 0 at {info.head_addr}, port {info.head_port}: "
                    f"{answer or 'it ended; its output is above.'}"
                )
            yield
        finally:
            process.stdin.close()  # ends the process
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


class _Member:
    """The Dask worker of this process: joins the scheduler, and rejoins it wherever node 0 is, until it is closed."""

    def __init__(self, info: InstanceInfo, identity: str) -> None:
        self._info, self._identity = info, identity
        self._closed = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="dask", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave the cluster."""
        self._closed.set()
        self._thread.join(_END_S)

    async def _serve(self) -> None:
        from distributed import Worker

        quieten()
        closed = asyncio.ensure_future(asyncio.to_thread(self._closed.wait))
        settings = self._settings()
        folder = _scratch()
        try:
            while not self._closed.is_set():
                address = scheduler_address(InstanceInfo.current() or self._info)
                worker = Worker(address, local_directory=folder, **settings)
                joining = asyncio.ensure_future(self._join(worker, address))
                await asyncio.wait({joining, closed}, return_when=asyncio.FIRST_COMPLETED)
                await worker.close(timeout=_END_S / 2)
                await asyncio.wait({closed}, timeout=_PAUSE_S)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _join(self, worker: Worker, address: str) -> None:
        """Return when the worker has ended, or has not reached the scheduler in time."""
        try:
            await worker
            await worker.finished()
        except (OSError, RuntimeError, ValueError) as error:
            sys.stderr.write(
                f"skyward: node {self._info.node} has not joined Dask's scheduler at {address} so far "
                f"({type(error).__name__}: {error}). It goes on trying.\n"
            )

    def _settings(self) -> dict[str, Any]:
        info = self._info
        own = next((peer.private_ip for peer in info.peers if peer.node == info.node), info.head_addr)
        processes = RunnerSettings.from_json(os.environ[SETTINGS_VAR]).processes
        return {
            "name": f"node {info.node} process {os.getpid()}",
            "nthreads": max(1, cpus(nodes_here(info)) // processes),
            "security": security(self._identity),
            "protocol": "tls",
            "host": own if _is_own(own) else source_address(info.head_addr) or own,
            "dashboard_address": "127.0.0.1:0",  # without a value it would listen on all addresses
            "death_timeout": _START_S,
        }


def quieten() -> None:
    """Limit Dask's log to problems.

    Lost nodes are reported by the pool; Dask's scheduler would name every result that was there.
    """
    logging.getLogger("distributed").setLevel(logging.WARNING)
    logging.getLogger("distributed.scheduler").setLevel(logging.ERROR)
    logging.getLogger("distributed.worker").addFilter(_is_no_heartbeat)


def _is_no_heartbeat(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Failed to communicate with scheduler during heartbeat")


def _scratch() -> str:
    """Create a directory for data beyond memory: in the working directory, removed with the node, if it is writable."""
    here = Path.cwd()
    return tempfile.mkdtemp(prefix="dask-", dir=here if os.access(here, os.W_OK) else None)


def _is_own(address: str) -> bool:
    """Return whether this machine itself has the address."""
    try:
        with socket.create_server((address, 0)):
            return True
    except OSError:
        return False


async def serve(order: dict[str, Any]) -> None:
    """Run the scheduler until standard input ends."""
    from distributed import Scheduler

    quieten()
    scheduler = await Scheduler(
        host=order["host"],
        port=order["port"],
        protocol="tls",
        security=security(order["identity"]),
        dashboard_address="127.0.0.1:0",
    )
    _answer("ready")
    await asyncio.to_thread(sys.stdin.read)
    await scheduler.close()


def _answer(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Read the order, and serve; return 1 as exit status if that was not possible.

    The order, `host`, `port` and `identity`, is a line of JSON on standard input, so that the key is in no command line
    and no environment. The answer is "ready", or a sentence that says why the scheduler could not be started.
    """
    try:
        asyncio.run(serve(json.loads(sys.stdin.readline())))
    except OSError as error:
        _answer(f"{error.strerror or error}.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
