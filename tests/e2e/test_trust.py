"""What a node that is in somebody else's hands can do to the others and to the client."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import skyward as sky
from skyward._pool.nodes.node_client import NodeClient
from skyward.errors import AuthenticationError, ConfigError, PluginError, RemoteError, SerializationError
from skyward.wire.handshake import agent_endpoint, connect, worker_endpoint
from tests.e2e import data_functions as functions
from tests.e2e.data_functions import Score


def test_the_key_of_one_node_opens_no_other() -> None:
    """Neither its agent nor its worker, under whichever name; to its own node it does."""
    with sky.ComputePool(sky.Local(), nodes=2, display="quiet") as pool:
        own, other = pool._table.nodes
        there = other._node.wait_ready(1)
        doors = [(there.agent, agent_endpoint(1)), (there.agent, agent_endpoint(0))]
        doors += [(there.workers[0], worker_endpoint(node, 0, 0)) for node in (0, 1)]
        for address, endpoint in doors:
            with pytest.raises(AuthenticationError, match="does not hold its key"):
                connect(other._node.connect(address), own._key, endpoint)
        connect(other._node.connect(there.agent), other._key, agent_endpoint(1)).close()


def test_a_node_that_is_replaced_leaves_no_key_behind() -> None:
    """The one in its place, which has its index, has another key."""
    with sky.ComputePool(sky.Local(), nodes=2, display="quiet") as pool:
        first: NodeClient = pool._table.nodes[1]
        first.declare_lost("the test wants another")
        assert first.removed.wait(60)
        while len(pool._table.nodes) < 2 or (second := pool._table.nodes[1]) is first or not second.told:
            pass
        assert second._key != first._key


@pytest.fixture(scope="module")
def careful() -> Iterator[sky.ComputePool]:
    """A pool that unpickles no code of its nodes."""
    with sky.ComputePool(sky.Local(), results="data", display="quiet") as pool:
        yield pool


def ran_here(mark: Path) -> bool:
    """Whether something hostile has run in this process; on its node it may."""
    return mark.exists() and str(os.getpid()) in mark.read_text().split()


def test_data_comes_as_it_is_returned(careful: sky.ComputePool) -> None:
    """Of plain calls, broadcasts, gathers, maps and in the background."""
    expected = [Score("a", 0.5), Score("bc", 1.0)]
    call = functions.scores(["a", "bc"])
    assert (call >> careful) == expected
    assert (call @ careful) == [expected]
    assert (call > careful).result(60) == expected
    assert list(sky.gather(call, call) >> careful) == [expected, expected]
    place = functions.place() >> careful
    assert place is not None
    assert place.node == 0


def test_a_hostile_value_runs_nothing(careful: sky.ComputePool, tmp_path: Path) -> None:
    """It is refused by its type's name, whether the node's own part of skyward refuses it or the client has to."""
    mark = tmp_path / "ran"
    with pytest.raises(SerializationError, match=r"The result of hostile\(\) holds a .*Hostile\. .*results='any'"):
        functions.hostile(str(mark)) >> careful
    with pytest.raises(SerializationError, match=r"taken_over\(\) holds tests\..*\.ran\. .*results='any'"):
        functions.taken_over(str(mark)) >> careful
    assert not ran_here(mark)


def test_a_hostile_item_runs_nothing(careful: sky.ComputePool, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    stream = functions.items(str(mark)) >> careful
    assert next(stream) == Score("first", 1.0)
    with pytest.raises(SerializationError, match=r"An item of the generator of items\(\) holds a .*Hostile"):
        next(stream)
    assert not ran_here(mark)


def test_exceptions_come_as_text(careful: sky.ComputePool, tmp_path: Path) -> None:
    """In a call and in a broadcast, with the node's traceback."""
    mark = tmp_path / "ran"
    for run in (lambda: functions.raises(str(mark)) >> careful, lambda: functions.raises(str(mark)) @ careful):
        with pytest.raises(RemoteError, match=r"HostileError: with a sting") as caught:
            run()
        assert caught.value.type_name.endswith("HostileError")
        assert "in raises" in caught.value.traceback
    assert not ran_here(mark)


def test_a_plugin_that_fails_comes_as_text(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    plugin = sky.Plugin("hostile").with_around_app(functions.set_up_hostile(str(mark)))
    pool = sky.ComputePool(sky.Local(), results="data", plugins=[plugin], display="quiet")
    with pytest.raises(PluginError, match="HostileError: with a sting"), pool:
        pass
    assert not ran_here(mark)


def test_without_it_everything_comes(tmp_path: Path) -> None:
    """The default, which these tests would not pass with."""
    mark = tmp_path / "ran"
    with sky.ComputePool(sky.Local(), display="quiet") as pool:
        functions.hostile(str(mark)) >> pool
    assert ran_here(mark)


@pytest.mark.parametrize("name", ["dask", "ray"])
def test_a_plugin_whose_own_client_unpickles_is_refused(name: str) -> None:
    """What Dask's and Ray's nodes send does not pass through the pool."""
    with pytest.raises(ConfigError, match=f"the client of the plugin '{name}' unpickles what they send"):
        sky.ComputePool(sky.Local(), results="data", plugins=[sky.plugins.Plugin.create(name)])


def test_other_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="results must be 'any' or 'data'; found 'none'"):
        sky.ComputePool(sky.Local(), results="none")  # type: ignore[arg-type]
