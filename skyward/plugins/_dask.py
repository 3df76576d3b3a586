"""The `dask` plugin: a Dask cluster on the pool's nodes, and its client as `pool.dask`.

The scheduler is on node 0, where the other nodes reach it: this machine may be behind a router that lets nobody in.
"""

from __future__ import annotations

import json
import logging
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from skyward.errors import PluginError
from skyward.model.image import Image
from skyward.model.image_fields import local_minor
from skyward.model.instance import InstanceInfo
from skyward.model.spec import Cluster
from skyward.nodes.certificate import new_certificate
from skyward.nodes.forward import PortForward
from skyward.nodes.local_host import LocalHost
from skyward.plugins._dask_node import IDENTITY, joined, scheduler_address
from skyward.plugins.base import Plugin

if TYPE_CHECKING:
    from distributed import Client

    from skyward._pool.pool import ComputePool

_NEEDED = ("distributed", "cryptography")
_JOIN_S = 60.0  # for the workers of all nodes to join, once those are set up
_LOOK_S = 0.02
_AGAIN_S = 600.0  # for the client to find a scheduler again that was lost, while its node is replaced


def dask() -> Plugin:
    """A Dask cluster on the pool's nodes: `dask.compute` runs there while the pool is open, `pool.dask` is its client.

    Each worker process of the pool is a worker of the cluster, with its share of the node's processors as threads. The
    nodes get Dask in the version that is installed here. All connections are encrypted, and take a certificate that
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
    """Dask as it is here, what its dashboard needs, and what a program that opens a pool there makes certificates with.

    Raises:
        PluginError: the nodes have another Python, whose functions this one cannot read.
    """
    if cluster.spec.python != local_minor():
        raise PluginError(
            f"Dask sends functions as Python's own code, which takes the same Python on both sides: the nodes would "
            f"have {cluster.spec.python}, this program runs on {local_minor()}. Leave python= out of the image, or run "
            f"this program with Python {cluster.spec.python}."
        )
    return image.pip_install(f"distributed=={version('distributed')}", "bokeh>=3.1", "cryptography>=42")


def _new_identity() -> Mapping[str, str]:
    certificate, key = new_certificate("skyward dask", user="The plugin dask", extra="dask")
    return {IDENTITY: json.dumps({"certificate": certificate, "key": key})}


@contextmanager
def _connected(pool: ComputePool, _cluster: Cluster) -> Iterator[None]:
    """The plugin's `around_client` hook: Dask's client, the default one of this program meanwhile."""
    import dask.config
    from distributed import Client

    from skyward.plugins._dask_node import security

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
def _way_to_scheduler(pool: ComputePool) -> Iterator[str]:
    """The scheduler's address for this machine, which stays the same when node 0 is replaced."""
    head = pool._head()
    if isinstance(head.host, LocalHost):
        yield scheduler_address(InstanceInfo.from_json(head.told))
        return

    def dial() -> Any:
        node = pool._head()
        return node.dial(scheduler_address(InstanceInfo.from_json(node.told)).replace("tls://", "tcp:"))

    forward = PortForward(dial)
    try:
        yield f"tls://127.0.0.1:{forward.port}"
    finally:
        forward.close()


def _defaults(address: str, identity: str) -> dict[str, Any]:
    """Settings by which a `Client()` that the program makes without parameters finds this cluster, too.

    Not that encryption is required: other clusters of the program may have none.
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
    """Mute Dask's warning of other versions than here: those that its protocol is made of are the same.

    Whoever connects is warned of each patch release of Python and tornado. `pool.dask.get_versions()` has them all.
    """
    warnings.filterwarnings("ignore", message="Mismatched versions found")
    added = warnings.filters[0]
    try:
        yield
    finally:
        if added in warnings.filters:
            warnings.filters.remove(added)  # type: ignore[attr-defined]  # a list, which typeshed calls a sequence


def _wait_for_workers(pool: ComputePool, client: Client) -> None:
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
    """Close it; what it says of a scheduler that is gone is of no use to anybody now."""
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        client.close()
    finally:
        logger.setLevel(before)
