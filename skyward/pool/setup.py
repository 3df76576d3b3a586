"""Plugins on their way into the workers: sent to all at once, waited for together, the late ones named."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import TimeoutError as FutureTimeout

from skyward.errors import PluginError
from skyward.pool.node import SETUP, NodeLink
from skyward.pool.settings import PoolSettings
from skyward.pool.worker import WorkerLink
from skyward.wire import payload
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind


def set_up(workers: Sequence[tuple[NodeLink, WorkerLink]], settings: PoolSettings) -> None:
    """Let all these workers enter the pool's plugins together, since collective ones wait for each other.

    Raises:
        PluginError: some were not done in time; the message names their ranks.
        The error a hook raised on one of them.
    """
    if not settings.plugins or not workers:
        return
    from skyward.plugins import node_setup

    limit_s = settings.provision_timeout_s
    data, buffers = payload.dumps(node_setup(settings.plugins, settings.cluster))
    for _, worker in workers:
        worker.connection.send(Frame(Kind.SETUP, SETUP, data, buffers))
    deadline = time.monotonic() + limit_s
    for node, worker in workers:
        try:
            node.setups[worker.rank].result(max(0.0, deadline - time.monotonic()))
        except FutureTimeout:
            late = [w.rank for n, w in workers if not n.setups[w.rank].done()]
            names = ", ".join(plugin.name for plugin in settings.plugins)
            raise PluginError(
                f"The plugins ({names}) were not set up on rank{'s' * (len(late) > 1)} {', '.join(map(str, late))} "
                f"within {limit_s:g} s; the other ranks were waiting for them. Look at those nodes' output above, or "
                "give provision_timeout= more time."
            ) from None
