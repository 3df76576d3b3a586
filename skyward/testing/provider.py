"""Conformance tests of a provider: subclass `ProviderConformance` in a test module, and run pytest.

    from skyward.testing.provider import ProviderConformance

    class TestFolders(ProviderConformance):
        def provider(self):
            return Folders("/srv/nodes")

Each test checks one requirement of the contract in `skyward.providers.base`; its failure names what is not met.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from typing import Any, ClassVar

import cloudpickle
import pytest

from skyward._pool.pool import ComputePool
from skyward.errors import (
    ConfigError,
    PoolClosedError,
    PoolError,
    ProviderError,
    SkywardError,
    WireError,
    WorkerLostError,
)
from skyward.model.resource import Resource
from skyward.model.spec import Volume
from skyward.nodes.access import Program
from skyward.nodes.node import Host, Launch
from skyward.providers.base import Allocation, PoolRequest, Provider
from skyward.testing.client import CALLS, node_functions

_POLL_S = 0.2
_SILENT_S = 10.0  # how long after their lease nodes may end
_CLIENT_S = 600.0  # time limit of a process of clients, even if machines take minutes to start
_PROGRAM = [sys.executable, "-m", "skyward.testing.client"]


class ProviderConformance(ABC):
    """The tests. Override attributes and methods for what a provider needs beyond the defaults.

    Attributes:
        settings: parameters of all pools that are opened.
        lease_s: how long nodes live without their client; short, since tests wait for it.
        settle_s: how long resources of a dead client may remain after its lease.
        calls: the calls of the provider at which clients are killed.
        enters_all: whether other processes can enter each node, not only some of them.
    """

    settings: ClassVar[Mapping[str, Any]] = {}
    lease_s: ClassVar[float] = 3.0
    settle_s: ClassVar[float] = 60.0
    calls: ClassVar[Sequence[str]] = CALLS
    enters_all: ClassVar[bool] = True

    @abstractmethod
    def provider(self) -> Provider:
        """Return the provider under test; a new, equal value each time."""

    def lose(self, pool: ComputePool) -> None:
        """End one node of a pool, as by an accident; by default its own function ends it."""
        _, end_node = node_functions()
        with pytest.raises(WorkerLostError):
            end_node() >> pool

    # the value -------------------------------------------------------------------------------------------------

    def test_it_is_an_immutable_value(self) -> None:
        """Two that are made alike are equal, also in another process, and none can be changed."""
        provider = self.provider()
        assert provider == self.provider(), "two providers made alike are not equal: make it a frozen dataclass"
        copy = cloudpickle.loads(cloudpickle.dumps(provider))
        assert copy == provider, "a provider must survive pickling: the reaper and tests use it in other processes"
        with pytest.raises((AttributeError, dataclasses.FrozenInstanceError)):
            provider.name = "another"  # type: ignore[misc]

    def test_terms_of_rented_machines(self) -> None:
        """They are refused before anything exists, unless the provider declares that it rents machines."""
        if self.provider().capabilities.rents:
            pytest.skip("it rents machines")
        with pytest.raises(ConfigError, match="max_hourly_cost= is for providers of rented machines"):
            ComputePool(self.provider(), max_hourly_cost=1.0)

    def test_volumes(self) -> None:
        """They are refused before anything exists, unless the provider declares that its nodes may mount."""
        if self.provider().capabilities.mounts:
            pytest.skip("its nodes may mount")
        with pytest.raises(ConfigError, match="nodes cannot mount volumes"):
            ComputePool(self.provider(), volumes=[Volume("data", "/data")])

    def test_offers(self) -> None:
        """There is at least one, which costs nothing where nothing is rented."""
        first = self.provider().offers(PoolRequest(pool_id="00000000", nodes=2))[0]
        if not self.provider().capabilities.rents:
            assert first.hourly_cost == 0.0

    def test_open_makes_nothing(self) -> None:
        """An allocation that has acquired nothing has nothing to find and nothing to close; then it has ended."""
        allocation = self.provider().open(PoolRequest(pool_id="0badcafe"))
        assert isinstance(allocation, Allocation)
        assert not self.left(["0badcafe"]), "open() made something; only acquire() may"
        allocation.close()
        allocation.close()
        with pytest.raises(PoolClosedError):
            allocation.replace(None)

    # a pool ----------------------------------------------------------------------------------------------------

    def test_a_pool_runs_calls_and_is_found(self) -> None:
        """Each node has a host, runs functions and is listed under its number; afterwards nothing is left."""
        incarnation, _ = node_functions()
        with self.pool() as pool:
            assert len(set(incarnation() @ pool)) == 2, "two nodes must be two runners"
            found = self.left([pool.id])
            assert {each["node"] for each in found if each["node"] >= 0} == {0, 1}, "find() must list nodes 0 and 1"
            assert all(each["user"] for each in found), "find() must tell who started a pool"
        assert not self.left([pool.id]), "close() must leave nothing"

    def test_a_lost_node_is_replaced(self) -> None:
        """Another takes its place while the other goes on."""
        incarnation, _ = node_functions()
        with self.pool() as pool:
            before = incarnation() @ pool
            self.lose(pool)
            after = incarnation() @ pool
            assert len(set(before) & set(after)) == 1, "one node must be another one, and one the same"

    def test_nothing_starts_after_the_close(self) -> None:
        """A start that comes late is refused, and leaves nothing."""
        with self.pool() as pool:
            host: Host = pool._table.nodes[0].host
            launch = Launch(
                pool=pool.id, node=0, name="late", image=None, compute_pool="{}", runner="{}", key=bytes(32)
            )
        with pytest.raises(SkywardError):
            host.start(launch)
        assert not self.left([pool.id])

    # other processes -------------------------------------------------------------------------------------------

    def test_another_process_finds_and_destroys_a_pool(self) -> None:
        """By labels alone; its own client does not start it again, and destroying it twice is no error."""
        with self.pool() as pool:
            before, after = map(json.loads, self.run_client("destroy", pool_id=pool.id))
            assert {each["node"] for each in before if each["node"] >= 0} == {0, 1}
            assert after == [], "destroy() must not return before everything has gone"
            wait_until(lambda: pool.current_nodes() == 0, self.settle_s, "the pool has nodes after destroy()")
            with pytest.raises(PoolError):
                node_functions()[0]() >> pool
            time.sleep(1.0)
            assert not self.left([pool.id]), "replace() must raise PoolClosedError for a pool that was destroyed"

    def test_another_process_looks_into_a_node(self) -> None:
        """A command runs there in the environment of calls, and ends when the way in is closed."""
        if type(self.provider()).enter is Provider.enter:
            pytest.skip("it has no way into a node for another process")
        with self.pool() as pool:
            seen = {self._place_in(node) for node in self.left([pool.id]) if node["node"] >= 0}
            if self.enters_all:
                assert seen == {(pool.id, 0), (pool.id, 1)}, "commands must see the places of their nodes"
            assert seen <= {(pool.id, 0), (pool.id, 1), None}

    def test_destroy_of_an_unknown_pool_does_nothing(self) -> None:
        """It may have ended a moment ago."""
        self.provider().destroy("0badcafe")

    def test_nodes_end_by_their_lease(self) -> None:
        """A client that is silent for longer loses its nodes; when it speaks again, others take their place."""
        with self.client("silence") as client:
            assert client.stdout
            opened = client.stdout.readline()
            assert opened, f"the client could not use a pool: status {client.wait(_CLIENT_S)}"
            time.sleep(self.lease_s)
            deadline = time.monotonic() + _SILENT_S
            while self.left([opened.strip()]) and time.monotonic() < deadline:  # rented machines stay a while longer
                time.sleep(_POLL_S)
            client.send_signal(signal.SIGCONT)
            said, _ = client.communicate(timeout=_CLIENT_S)
            assert client.returncode == 0, f"the client could not go on after its silence: status {client.returncode}"
            kept = json.loads(said)
            assert not kept, f"a node lived on while its client was silent for longer than the lease, {self.lease_s} s"

    def test_clients_that_die_leave_nothing(self) -> None:
        """Before or after any call of the provider: leases, the reaper, or the next pool's `acquire` remove it."""
        calls = [(name, when) for name in self.calls for when in ("before", "after")]
        pools = {}
        for line in self.run_client("crash", calls=calls):
            name, when, pool, status = json.loads(line)
            assert status == -signal.SIGKILL, f"a client was to die {when} {name}(), and ended with status {status}"
            pools[pool] = f"{when} {name}()"
        assert len(pools) == len(calls)
        deadline = time.monotonic() + self.lease_s + 2
        while (left := self.left(pools)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if left:
            with self.pool():
                pass
        wait_until(
            lambda: not self.left(pools),
            self.settle_s,
            lambda: (
                "left by clients that were killed: "
                + "; ".join(f"{pools[found['pool']]}: {found}" for found in self.left(pools))
            ),
        )

    # helpers ---------------------------------------------------------------------------------------------------

    def pool(self) -> ComputePool:
        """Return a pool of two nodes."""
        return ComputePool(self.provider(), nodes=2, **self._settings)

    def left(self, pools: Collection[str]) -> list[Resource]:
        """Return the existing resources of these pools."""
        return [found for found in self.provider().find() if found["pool"] in pools]

    def run_client(self, action: str, **more: Any) -> list[str]:
        """Run a process of clients and return the lines it prints."""
        with self.client(action, **more) as client:
            output, _ = client.communicate(timeout=_CLIENT_S)
            assert client.returncode == 0, f"the clients failed to {action}: status {client.returncode}"
            return output.splitlines()

    def client(self, action: str, **more: Any) -> subprocess.Popen[str]:
        """Start a process of clients: `python -m skyward.testing.client`."""
        settings = {"nodes": 1, **self._settings}
        document = cloudpickle.dumps((action, self.provider(), settings, more))
        paths = os.pathsep.join(path for path in sys.path if path)
        with tempfile.TemporaryFile() as order_file:
            order_file.write(document)
            order_file.seek(0)
            return subprocess.Popen(
                _PROGRAM, stdin=order_file, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
            )

    def _place_in(self, node: Resource) -> tuple[str, int] | None:
        """Return pool and number of a node as a command on it sees them; None if the provider refuses to enter it."""
        try:
            access = self.provider().enter(node)
        except ProviderError:
            return None
        with access:
            words = ["sh", "-c", 'printf %s "$COMPUTE_POOL"; exit 3']
            with closing(Program(access, words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)) as place:
                assert place.process.stdout
                seen = json.loads(place.process.stdout.read())
                assert place.wait() == 3, "the exit status of a command must be passed on"
            endless = Program(access, ["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            endless.close()
            with pytest.raises(WireError):
                endless.wait()
        return seen["job_id"], seen["node"]

    @property
    def _settings(self) -> dict[str, Any]:
        return {"ttl": self.lease_s, "display": "quiet", **self.settings}


def wait_until(condition: Callable[[], object], seconds: float, what: str | Callable[[], str]) -> None:
    """Wait for a condition, or fail with this message."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(_POLL_S)
