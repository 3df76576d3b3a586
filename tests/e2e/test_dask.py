"""Dask on the nodes of a pool: its own programs run there unchanged, encrypted, also after nodes were replaced."""

from __future__ import annotations

import os
import re
import socket
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from urllib.request import urlopen

import pytest

import skyward as sky
from skyward.errors import PoolError, WorkerLostError
from tests.e2e import dask_functions as functions
from tests.e2e.stand import ssh, stand
from tests.waiting import wait_until

dask = pytest.importorskip("dask", reason="Dask is not installed here; `pip install -e .[dev]` brings it")
distributed = pytest.importorskip("distributed")

__all__ = ["ssh", "stand"]

LOOPBACK = "0100007F"
AGAIN_S = 180.0
# Dask sends functions of modules by their names: the nodes must have the modules
IMAGE = sky.Image(includes=["tests/e2e/dask_functions.py"])
SETTINGS: dict[str, Any] = {"image": IMAGE, "plugins": [sky.plugins.dask()], "display": "quiet"}


@pytest.fixture(scope="module")
def pool() -> Iterator[sky.ComputePool]:
    """Two containers."""
    with sky.ComputePool(sky.Docker(), nodes=2, **SETTINGS) as pool:
        yield pool


def nodes_used(client: Any) -> set[int]:
    return set(client.gather(client.map(functions.where, range(8), pure=False)))


def has_both(client: Any) -> Callable[[], bool]:
    def look() -> bool:
        found = client.scheduler_info(n_workers=-1)["workers"].values()
        return {each["name"].split()[1] for each in found} == {"0", "1"}

    return look


def test_a_program_of_delayed_functions_runs_on_the_nodes(pool: sky.ComputePool) -> None:
    """`dask.compute` and `.compute()` mean the pool's cluster; so does a `Client()` that the program makes itself."""

    @dask.delayed
    def inc(x: int) -> int:
        return x + 1

    @dask.delayed
    def total(values: list[int]) -> tuple[int, int]:
        return sum(values), functions.where()

    found, node = total([inc(number) for number in range(10)]).compute()

    assert found == 55
    assert node in (0, 1)
    assert nodes_used(pool.dask) == {0, 1}
    with warnings.catch_warnings(), distributed.Client() as own:
        assert own.scheduler_info()["id"] == pool.dask.scheduler_info()["id"]
        assert own.submit(functions.where, pure=False).result() in (0, 1)
    assert distributed.default_client() is pool.dask


def test_nothing_listens_beyond_the_address_of_the_nodes(pool: sky.ComputePool) -> None:
    """Neither the workers nor the scheduler nor its dashboard; functions find nothing of the private key."""
    address = pool.dask.scheduler.address
    assert re.fullmatch(r"tls://127\.0\.0\.1:\d+", address)
    for found in pool.dask.run(functions.listening).values():
        assert set(found) == {LOOPBACK}
    assert set(pool.dask.run_on_scheduler(functions.listening)) == {LOOPBACK}
    assert b"Dask" in urlopen(pool.dask.dashboard_link, timeout=20).read()
    assert functions.secret_is_there() @ pool == [[], []]


def test_without_the_certificate_nobody_gets_in(pool: sky.ComputePool) -> None:
    """Neither in plain text nor with the certificate of another pool."""
    other = distributed.Security.temporary()
    address = pool.dask.scheduler.address
    for there, security in ((address, other), (address.replace("tls://", "tcp://"), distributed.Security())):
        security.require_encryption = False
        with pytest.raises(OSError, match=r"Timed out|TLS|reset"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            distributed.Client(there, security=security, timeout=1, set_as_default=False)


def test_lost_processes_and_nodes_join_again(engine: Any) -> None:
    """A worker that ends, a node that is replaced, and node 0 with the scheduler itself: `pool.dask` goes on."""
    with sky.ComputePool(sky.Docker(), nodes=2, **SETTINGS) as pool:
        client = pool.dask
        with pytest.raises(WorkerLostError):
            functions.end_process() >> pool
        wait_until(has_both(client), AGAIN_S)
        assert nodes_used(client) == {0, 1}
        for node in (1, 0):
            engine.containers.get(f"skyward-{pool.id}-{node}").kill()
            wait_until(lambda: pool.current_nodes() < 2, AGAIN_S)
            wait_until(lambda: pool.current_nodes() == 2, AGAIN_S)
            wait_until(lambda: client.status == "running", AGAIN_S)
            wait_until(has_both(client), AGAIN_S)
            assert nodes_used(client) == {0, 1}
    with pytest.raises(PoolError):
        _ = pool.dask


def test_processes_of_this_machine(capfd: pytest.CaptureFixture[str]) -> None:
    """Two processes on each of two nodes; nothing is printed, and afterwards Dask is as it was before."""
    client = distributed.client._get_global_client()
    filters, config = list(warnings.filters), dict(dask.config.config)
    worker = sky.Worker(concurrency=2, executor="process")
    with sky.ComputePool(sky.Local(), nodes=2, worker=worker, plugins=[sky.plugins.dask()], display="quiet") as pool:
        assert len(pool.dask.scheduler_info(n_workers=-1)["workers"]) == 4
        assert nodes_used(pool.dask) == {0, 1}
        local = distributed.LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0")
        with local as cluster, distributed.Client(cluster) as beside:
            assert beside.submit(functions.where).result() == -1

    assert capfd.readouterr().err == ""
    assert warnings.filters == filters
    assert dask.config.config == config
    assert distributed.client._get_global_client() is client


def test_hosts_that_are_reached_by_ssh(ssh: Callable[..., sky.SSH]) -> None:
    """Through the pool's own connection; nodes talk to each other at their addresses and listen at no other."""
    with sky.ComputePool(ssh(1, 2), nodes=2, **SETTINGS) as pool:
        hosts = {address.split("//")[1].partition(":")[0] for address in pool.dask.scheduler_info()["workers"]}
        assert len(hosts) == 2
        assert "127.0.0.1" not in hosts
        assert nodes_used(pool.dask) == {0, 1}
        own = {socket.inet_aton(host)[::-1].hex().upper() for host in hosts}
        for found in (*pool.dask.run(functions.listening).values(), pool.dask.run_on_scheduler(functions.listening)):
            assert set(found) <= own | {LOOPBACK}
        data = os.urandom(8_000_000)
        assert pool.dask.submit(bytes, data).result() == data
