"""Plugins on their way into the workers: sent to all at once, waited for together, the late ones named."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import TimeoutError as FutureTimeout

from skyward.errors import PluginError
from skyward.pool.code import bundle_paths, local_modules
from skyward.pool.node import SETUP, NodeLink
from skyward.pool.settings import PoolSettings
from skyward.pool.worker import WorkerLink
from skyward.wire import payload
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind


class WorkerSetup:
    """What a pool's workers get before their first call: included files, plugins. Made before any node exists.

    Raises:
        ConfigError: an included file is missing, or they are too large.
        PluginError: a plugin's bootstrap is not what it should be, or cannot be pickled.
    """

    def __init__(self, settings: PoolSettings) -> None:
        self._names = ", ".join(plugin.name for plugin in settings.plugins)
        self._limit_s = settings.provision_timeout_s
        self._code: Frame | None = None
        self._plugins: Frame | None = None
        files = bundle_paths(settings.image.includes, settings.image.excludes).files
        if settings.plugins:
            from skyward.plugins import node_setup

            several = settings.worker.processes > 1
            setup = node_setup(settings.plugins, settings.cluster, several_processes=several)
            self._plugins = Frame(Kind.SETUP, SETUP, *payload.dumps(setup))
            files = (*local_modules(setup).files, *files)  # hooks may stand in modules of the user's own
        if files:
            self._code = Frame(Kind.CODE, 0, *payload.dumps(files))

    def leave_code_out(self) -> None:
        """Send no included files: the nodes' image has them."""
        self._code = None

    def enter(self, workers: Sequence[tuple[NodeLink, WorkerLink]]) -> None:
        """Give these workers the files, then let all enter the plugins together: collective ones wait for each other.

        Raises:
            PluginError: some were not done in time; the message names their ranks.
            The error a hook raised on one of them.
        """
        for _, worker in workers:
            worker.connection.send(*(frame for frame in (self._code, self._plugins) if frame is not None))
        if self._plugins is None:
            return
        deadline = time.monotonic() + self._limit_s
        for node, worker in workers:
            try:
                node.setups[worker.rank].result(max(0.0, deadline - time.monotonic()))
            except FutureTimeout:
                raise PluginError(self._late([w.rank for n, w in workers if not n.setups[w.rank].done()])) from None

    def _late(self, ranks: list[int]) -> str:
        return (
            f"The plugins ({self._names}) were not set up on rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} "
            f"within {self._limit_s:g} s; the other ranks were waiting for them. Look at those nodes' output above, or "
            "give provision_timeout= more time."
        )
