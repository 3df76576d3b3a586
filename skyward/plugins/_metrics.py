"""Figures of a pool for Prometheus, and for readers of its format, such as OpenTelemetry collectors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from skyward.errors import ConfigError, PluginError
from skyward.plugins.base import Plugin

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from skyward.model.resource import PoolStats
    from skyward.model.spec import Cluster

_HOST = "127.0.0.1"
_PORT = 9464  # the default port of OpenTelemetry's own exporter for Prometheus
_PORTS = 65_536
# name, description, attribute of `NodeStats` and kind; then of `GpuStats`, which are all gauges
_FIGURES = (
    ("skyward_node_calls_running", "Calls that run.", "running", "gauge"),
    ("skyward_node_calls_done", "Calls that were answered.", "done", "counter"),
    ("skyward_node_calls_failed", "Calls that were answered by an error.", "failed", "counter"),
    ("skyward_node_cpu_cores", "Processors in use.", "cores", "gauge"),
    ("skyward_node_cpu_seconds", "Processor time used.", "cpu_s", "counter"),
    ("skyward_node_memory_bytes", "Memory in use, without the cache of files.", "memory", "gauge"),
    ("skyward_node_memory_limit_bytes", "Memory that may be used.", "memory_limit", "gauge"),
    ("skyward_node_network_received_bytes", "Bytes received.", "received", "counter"),
    ("skyward_node_network_sent_bytes", "Bytes sent.", "sent", "counter"),
)
_GPU_FIGURES = (
    ("skyward_gpu_utilization_ratio", "Share of the time in which the GPU computes.", "utilization"),
    ("skyward_gpu_memory_bytes", "Memory of the GPU in use.", "memory"),
    ("skyward_gpu_memory_limit_bytes", "Memory of the GPU.", "memory_limit"),
)


def metrics(port: int = _PORT) -> Plugin:
    """Serve the figures of `pool.stats()` while the pool is open, reachable from this machine only.

    The pool is measured only on request.

    Args:
        port: of http://127.0.0.1:PORT/metrics; 0 for any free one. The address is printed on standard error.

    Raises:
        ConfigError: `port` is not a valid port.
        PluginError: `prometheus_client` is not installed here.
    """
    given: object = port
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < _PORTS:
        raise ConfigError(f"metrics(port=...) takes a number from 0 to {_PORTS - 1}; found {port!r}.")
    if find_spec("prometheus_client") is None:
        raise PluginError("The plugin metrics needs prometheus_client on this machine: pip install 'skyward[metrics]'.")

    @contextmanager
    def around_client(pool: Any, _cluster: Cluster) -> Iterator[None]:
        from prometheus_client import start_http_server
        from prometheus_client.core import CollectorRegistry

        registry = CollectorRegistry()
        registry.register(_Collector(pool))
        try:
            server, thread = start_http_server(port, addr=_HOST, registry=registry)
        except OSError as error:
            raise PluginError(
                f"Figures cannot be served at {_HOST}:{port} ({error.strerror}); give metrics() another port, or 0 for "
                "any that is free."
            ) from error
        if sys.stderr is not None:
            sys.stderr.write(f"skyward: figures of pool {pool.id}: http://{_HOST}:{server.server_port}/metrics\n")
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    return Plugin.create("metrics").with_around_client(around_client)


class _Collector:
    """Queries the pool whenever it is queried itself."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        stats: PoolStats = self._pool.stats()
        labels = ("pool", "node")
        for name, what, field, kind in _FIGURES:
            family = (GaugeMetricFamily if kind == "gauge" else CounterMetricFamily)(name, what, labels=labels)
            for node in stats.nodes:
                if (value := getattr(node, field)) is not None:
                    family.add_metric((stats.pool, str(node.node)), value)
            yield family
        for name, what, field in _GPU_FIGURES:
            family = GaugeMetricFamily(name, what, labels=(*labels, "gpu", "name"))
            for node in stats.nodes:
                for number, gpu in enumerate(node.gpus):
                    if (value := getattr(gpu, field)) is not None:
                        family.add_metric((stats.pool, str(node.node), str(number), gpu.name), value)
            yield family
        waiting = GaugeMetricFamily("skyward_calls_waiting", "Calls that have not begun.", labels=("pool",))
        waiting.add_metric((stats.pool,), stats.queued)
        yield waiting
