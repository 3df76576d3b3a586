"""The plugin `metrics`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, cast
from urllib.request import urlopen

import pytest

import skyward as sky
from skyward.model.resource import GpuStats, NodeStats, PoolStats

needs_library = pytest.mark.skipif(find_spec("prometheus_client") is None, reason="prometheus_client is not installed")


class FakePool:
    """A pool that knows its figures."""

    id = "ab12"

    def stats(self) -> PoolStats:
        gpu = GpuStats(name="H200", utilization=0.5, memory=10, memory_limit=None)
        node = NodeStats(node=0, host="a", running=1, queued=0, done=7, failed=2, cores=1.5, gpus=(gpu,))
        return PoolStats(pool=self.id, at=0.0, nodes=(node,), running=1, queued=4, done=7, failed=2)


@needs_library
def test_figures_are_served_while_the_pool_is_open(capsys: pytest.CaptureFixture[str]) -> None:
    """On loopback; what is not known is left out; afterwards the port is free."""
    around = sky.plugins.metrics(port=0).around_client
    assert around is not None
    with around(FakePool(), cast(Any, None)):
        address = capsys.readouterr().err.split()[-1]
        assert address.startswith("http://127.0.0.1:")
        lines = urlopen(address, timeout=60).read().decode().splitlines()
    assert 'skyward_node_cpu_cores{node="0",pool="ab12"} 1.5' in lines
    assert 'skyward_node_calls_failed_total{node="0",pool="ab12"} 2.0' in lines
    assert 'skyward_gpu_utilization_ratio{gpu="0",name="H200",node="0",pool="ab12"} 0.5' in lines
    assert 'skyward_calls_waiting{pool="ab12"} 4.0' in lines
    assert not any(line.startswith("skyward_node_memory_bytes{") for line in lines)
    with pytest.raises(OSError, match="refused"):
        urlopen(address, timeout=60)


@needs_library
def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    """The error says what to do."""
    first = sky.plugins.metrics(port=0).around_client
    assert first is not None
    with first(FakePool(), cast(Any, None)):
        port = int(capsys.readouterr().err.strip().removesuffix("/metrics").rpartition(":")[2])
        second = sky.plugins.metrics(port=port).around_client
        assert second is not None
        with (
            pytest.raises(sky.errors.PluginError, match=r"give metrics\(\) another port"),
            second(FakePool(), cast(Any, None)),
        ):
            pass
