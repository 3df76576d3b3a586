"""The `ray` plugin: a Ray cluster on the pool's nodes, to which the client's program is connected.

The program is no member of the cluster: it may be behind a router that lets nobody in, and a member is connected to by
all others. It speaks with Ray's server for such programs on node 0, through the pool's own connection to that node.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from skyward.errors import PluginError, SkywardError
from skyward.model.image import Image, requirement_name
from skyward.model.image_fields import local_minor
from skyward.model.spec import Cluster
from skyward.nodes.forward import PortForward
from skyward.plugins._ray_node import MODE, TOKEN, joined, read_ports
from skyward.plugins.base import Plugin

if TYPE_CHECKING:
    from skyward._pool.pool import ComputePool

_NEEDED = ("ray", "grpc")
_AGAIN_S = 120.0  # for Ray to be started again where it has ended
_LOOK_S = 0.5


def ray() -> Plugin:
    """A Ray cluster on the pool's nodes, one of Ray's nodes on each. While the pool is open, `ray.init()` is done.

    Tasks and actors that the program makes run on the nodes; functions that the pool runs there can use Ray, too. The
    nodes get Ray in the version that is installed here. A token that only this pool has is asked for by all of the
    cluster. One pool with this plugin can be open in a program.

    Raises:
        PluginError: Ray, or what its client needs, is not installed here.
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
    """Ray as it is here, with its dashboard.

    Raises:
        PluginError: the nodes have another Python or another Ray, or this program uses Ray elsewhere.
    """
    _check_free()
    here = version("ray")
    if cluster.spec.python != local_minor():
        raise PluginError(
            f"Ray takes the same Python on both sides: the nodes would have {cluster.spec.python}, this program runs "
            f"on {local_minor()}. Leave python= out of the image, or run this program with Python "
            f"{cluster.spec.python}."
        )
    from packaging.requirements import Requirement

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
def _connected(pool: ComputePool, _cluster: Cluster) -> Iterator[None]:
    """The plugin's `around_client` hook: connect the program, and tell where the dashboard is."""
    from skyward.plugins._ray_client import connected

    token = dict(pool._settings.secrets)[TOKEN]
    with (
        closing(PortForward(partial(_dial, pool))) as forward,
        connected(f"127.0.0.1:{forward.port}", token),
    ):
        if dashboard := read_ports(pool._head().dial).dashboard:
            pool._progress.tell(f"Ray's dashboard: skyward forward {pool.id}:0 {dashboard}")
        yield


def _dial(pool: ComputePool) -> Any:
    """A connection to Ray's server for programs, wherever node 0 is now; waits while Ray is started again there."""
    deadline = time.monotonic() + _AGAIN_S
    while True:
        head = pool._head()
        try:
            return head.dial(f"tcp:127.0.0.1:{read_ports(head.dial).client}")
        except SkywardError:
            if time.monotonic() > deadline or not pool.is_active:
                raise
            time.sleep(_LOOK_S)
