"""Nodes as tasks of one service of an existing Docker Swarm."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from skyward.engine import find_engine
from skyward.errors import ConfigError, PoolClosedError
from skyward.model.accelerator import Accelerator
from skyward.model.image import Image
from skyward.model.rights import Rights
from skyward.model.spec import Cluster
from skyward.providers.base import Host, Terms
from skyward.providers.rundir import PoolDirectory, private_directory, runtime_base, sweep_orphans
from skyward.providers.swarm import checks, estate
from skyward.providers.swarm.manager import Manager, ManagerAddress
from skyward.providers.swarm.pool import SwarmHost, SwarmPool

if TYPE_CHECKING:
    from skyward.build.events import Report

LEASE_S = 60.0


@dataclass(frozen=True, init=False)
class Swarm:
    """Tasks of a service of a Docker Swarm: `sky.Swarm("ssh://user@manager", registry="registry.example.com/skyward")`.

    The swarm's engine places them, feeds them with the image and starts them again, elsewhere if their machine is lost.

    Attributes:
        manager: a manager of the swarm: `ssh://user@host`, `unix:///path` of its engine's socket on this machine, or
            None for the engine that the docker command would use (`DOCKER_HOST` may name one by SSH).
        registry: repository through which images reach the machines, such as "registry.example.com/team/skyward".
            None is for a swarm that is this one machine.
        rights: whom functions run as in their containers, and what they may do: `user` and `privileges`, which
            `sky.Docker` explains. The user of an image that names none is its user skyward.

    Raises:
        ConfigError: a value is wrong.
    """

    manager: ManagerAddress
    registry: str | None
    rights: Rights
    _terms: Terms = field(repr=False, compare=False)
    _pools: dict[str, SwarmPool] = field(repr=False, compare=False)

    def __init__(
        self,
        engine: str | None = None,
        *,
        key: str | os.PathLike[str] | None = None,
        known_hosts: str | os.PathLike[str] | None = None,
        registry: str | None = None,
        user: str | None = None,
        privileges: Sequence[str] = (),
    ) -> None:
        """Name the swarm.

        Args:
            engine: of the manager, as above.
            key: file of the private key for SSH; None for what agent and SSH configuration offer.
            known_hosts: file of the only host keys to trust, also of jump hosts; None for what the SSH configuration
                trusts.
            registry: as above.
            user: whom functions run as, by name or number, with a group if wanted ("app", "1000:100"). None for the
                user that the image names, and for its user skyward where it names none.
            privileges: capabilities(7) that their programs can have, or "default"; see `sky.Docker`.
        """
        files = (_file(name, path) for name, path in (("key", key), ("known_hosts", known_hosts)))
        if registry is not None:
            from skyward.build.registry import parse_reference

            parse_reference(registry)
        set_ = object.__setattr__
        set_(self, "manager", ManagerAddress.of(engine, *files))
        set_(self, "registry", registry)
        set_(self, "rights", Rights.of("sky.Swarm", user, privileges))
        set_(self, "_terms", Terms())
        set_(self, "_pools", {})

    @property
    def name(self) -> str:
        """Name of the provider."""
        return "swarm"

    @property
    def lease_s(self) -> float:
        """Seconds a task outlives a client that is silent."""
        return LEASE_S

    def on(self, terms: Terms) -> Self:
        """The same swarm, for a pool on these terms.

        Raises:
            ConfigError: they are for rented machines.
        """
        if (asked := terms.of_rented_machines) is not None:
            raise ConfigError(f"{asked}= is for providers of rented machines; sky.Swarm rents none.")
        bound = type(self).__new__(type(self))
        for name in ("manager", "registry", "rights", "_pools"):
            object.__setattr__(bound, name, getattr(self, name))
        object.__setattr__(bound, "_terms", terms)
        return bound

    def acquire(
        self, pool: str, nodes: int, accelerator: Accelerator | None, at_least: int | None = None
    ) -> Sequence[Host]:
        """See that the swarm can give so many nodes. Where they are is known once the image is prepared.

        Raises:
            ProviderError: the manager cannot be reached or is none; no machine fits; too few have the GPUs.
            EngineMissingError: no engine answers.
        """
        sweep_orphans()
        directory = PoolDirectory.create(pool, runtime_base())
        opened = SwarmPool(pool, self.manager, self._terms, self.rights, directory)
        self._pools[pool] = opened
        possible = opened.examine(nodes, nodes if at_least is None else at_least, accelerator, self.registry)
        return [SwarmHost(opened, node) for node in range(possible)]

    def replace(self, pool: str, lost: Host | None, accelerator: Accelerator | None) -> Host:  # noqa: ARG002
        """Wait until the engine has a new task in the slot of a lost one, on whichever machine it finds.

        Raises:
            ProviderError: it finds none.
            NodeStartError: tasks fail.
            PoolClosedError: the pool has ended, or another client has ended it.
        """
        opened = self._pools.get(pool)
        if opened is None:
            raise PoolClosedError(f"Pool {pool} has ended; no task is waited for any more.")
        return opened.another(lost if isinstance(lost, SwarmHost) else None)

    def prepare(self, hosts: Sequence[Host], image: Image, cluster: Cluster, report: Report) -> str | None:
        """Put the image into the registry unless it is there, make the service, and wait until its tasks have come.

        Raises:
            ImageError: the image cannot be had.
            ProviderError: the engine finds no machine for a task.
            NodeStartError: tasks fail.
        """
        from skyward.providers.swarm.supply import supply

        opened = next(host.pool for host in hosts if isinstance(host, SwarmHost))
        if opened.image is not None:  # a host that has been replaced: the service goes on as it is
            return opened.image
        platform = image.platform or cluster.spec.platform
        engine = find_engine() if self.registry else opened.manager.engine
        supplied = supply(image, cluster.spec.python, platform, self.registry, report, engine)
        opened.place(supplied, platform, report)
        return supplied.reference

    def release(self, pool: str) -> None:
        """Remove the pool's service with its tasks, and its secret, whoever made them.

        Raises:
            ProviderError: the manager cannot be reached; the tasks end by their lease.
            EngineError: it refuses.
        """
        opened = self._pools.pop(pool, None)
        if opened:
            opened.close()
            return
        with self._asked() as manager:
            estate.clear(manager.api, pool)

    def find(self) -> Iterable[Mapping[str, Any]]:
        """Every task of every pool in the swarm: pool, node, name, state, owner, image, id, host.

        Raises:
            ProviderError: the manager cannot be reached, or is none.
            EngineError: it refuses.
        """
        with self._asked() as manager:
            checks.check_manager(manager.api.url, manager.api.info())
            return list(estate.described(manager.api))

    @contextmanager
    def _asked(self) -> Iterator[Manager]:
        with private_directory() as folder:
            manager = Manager(self.manager, folder)
            try:
                yield manager
            finally:
                manager.close()


def _file(name: str, path: str | os.PathLike[str] | None) -> Path | None:
    if path is None:
        return None
    found = Path(path).expanduser().absolute()
    if not found.is_file():
        raise ConfigError(f"sky.Swarm: {name} names the file {found}, which does not exist.")
    return found
