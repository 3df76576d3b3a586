"""JAX in containers: the ranks of a pool are one JAX, train one model on all devices, and can compute alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import skyward as sky
from skyward.errors import PluginError
from tests.e2e import jax_functions as functions
from tests.e2e.jax_image import plain_pool, pool_with


@pytest.fixture(scope="module")
def pool() -> Iterator[sky.ComputePool]:
    """Two nodes whose workers form a group."""
    with pool_with(sky.plugins.jax(), sky.plugins.keras(), nodes=2) as pool:
        yield pool


@pytest.fixture(scope="module")
def undecorated() -> Iterator[sky.ComputePool]:
    """Two nodes with JAX and without the plugin, for the decorators."""
    with plain_pool(nodes=2) as pool:
        yield pool


def test_the_nodes_are_one_jax(pool: sky.ComputePool) -> None:
    """Each rank sees the devices of all and one of its own; the variables describe the group."""
    first, second = functions.place_in_the_group() @ pool

    assert (first["devices"], first["here"], first["process"]) == (2, 1, 0)
    assert (second["devices"], second["here"], second["process"]) == (2, 1, 1)
    assert first["variables"] == {**second["variables"], "JAX_PROCESS_ID": "0"}
    assert (second["variables"]["JAX_NUM_PROCESSES"], second["variables"]["JAX_PROCESS_ID"]) == ("2", "1")
    assert first["variables"]["JAX_LOCAL_DEVICE_COUNT"] == "1"
    address, _, port = first["variables"]["JAX_COORDINATOR_ADDRESS"].partition(":")
    assert address == "127.0.0.1"
    assert int(port) > 1024


def test_a_collective_reaches_all(pool: sky.ComputePool) -> None:
    """A `psum` over the mesh of all devices sums what the ranks have, in one call after another."""
    assert functions.psum() @ pool == [3.0, 3.0]
    assert functions.psum() @ pool == [3.0, 3.0]


def test_a_pytree_goes_to_a_worker_and_back(pool: sky.ComputePool) -> None:
    """Arrays arrive as JAX arrays, with their types, at a worker and at a client that has JAX."""
    back = functions.round_trip() >> pool

    assert back["kind"] == "ArrayImpl"
    assert "Cpu" in back["devices"]


def test_the_decorator_refuses_one_rank_alone(undecorated: sky.ComputePool) -> None:
    """A call that would wait for other ranks for ever is refused at once, before the group is there and after."""
    call = functions.psum_decorated({}).with_timeout(60)
    for _ in range(2):
        with pytest.raises(PluginError, match=r"jax: this call runs on rank \d only, of 2 .* Call the function with @"):
            call >> undecorated
        assert call @ undecorated == [(3.0, 0.0)] * 2
