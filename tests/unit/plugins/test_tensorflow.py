"""The tensorflow plugin: the image, and the cluster as ranks see it. With TensorFlow: tests/e2e/test_tensorflow.py."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import skyward as sky
from skyward.model.instance import ENV_VAR, InstanceInfo, Peer
from skyward.model.spec import Accelerator, Cluster, ClusterSpec
from skyward.plugins import _tensorflow as cluster
from skyward.plugins import transform_all
from skyward.runtime import environment
from skyward.runtime import ranks as group


def place(rank: int, ranks: int = 2) -> InstanceInfo:
    """Ranks on nodes with addresses of their own."""
    peers = tuple(Peer(node=node, private_ip=f"127.0.0.{node + 1}") for node in range(ranks))
    return InstanceInfo(node=rank, total_nodes=ranks, head_addr="127.0.0.1", head_port=1, peers=peers)


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("TF_CONFIG", "TF_GRPC_REUSE_PORT"):
        monkeypatch.setenv(name, "")  # so that it is put back as it was
        monkeypatch.delenv(name)
    yield
    environment.end_call()


class OtherRank:
    """A gather of two ranks in one process: this one, and another whose values are made up from this one's."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.names: list[str] = []

    def __call__(self, value: Any, name: str, _timeout_s: float | None) -> list[Any]:
        self.names.append(name)
        other = {"tensorflow: addresses": f"127.0.0.{2 - self.rank}:4242"}.get(name)
        return [value, other] if self.rank == 0 else [other, value]


@contextmanager
def described(monkeypatch: pytest.MonkeyPatch, rank: int) -> Iterator[dict[str, Any]]:
    monkeypatch.setenv(ENV_VAR, place(rank).to_json())
    monkeypatch.setattr(group, "_client", OtherRank(rank))
    with cluster.described(place(rank)):
        yield json.loads(os.environ["TF_CONFIG"])


@pytest.mark.parametrize(
    ("accelerator", "platform", "wanted"),
    [
        (None, "linux/amd64", "tensorflow-cpu"),
        (None, "linux/arm64", "tensorflow"),
        ("A100", "linux/amd64", "tensorflow[and-cuda]"),
        (Accelerator("A100", 2), "linux/amd64", "tensorflow[and-cuda]"),
    ],
)
def test_the_package_for_the_nodes(accelerator: Any, platform: str, wanted: str) -> None:
    """CPU nodes get the build without CUDA, where there is one."""
    spec = ClusterSpec(accelerator=Accelerator.of(accelerator), platform=platform)

    assert transform_all(sky.Image(), [sky.plugins.tensorflow()], Cluster(spec=spec)).pip == (wanted,)


def test_the_port_is_held_for_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else gets the port; a socket that shares it, as TensorFlow's is told to, does."""
    with described(monkeypatch, 0) as config:
        port = int(config["cluster"]["worker"][0].rpartition(":")[2])

        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))
        assert os.environ["TF_GRPC_REUSE_PORT"] == "true"
        with socket.create_server(("", port), reuse_port=True):
            socket.create_connection(("127.0.0.1", port), 5).close()
