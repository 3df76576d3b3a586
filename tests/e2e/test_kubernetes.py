"""Pods on a Kubernetes of two nodes: made, reached through the API server, gone in the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import skyward as sky
from examples import digits
from scripts.kube.place import Cluster
from skyward.cli.main import main
from tests.e2e.kube import IMAGE, LONG_S, NAMESPACE, kube, kubectl, kubernetes, left_nothing, pods_of, repository
from tests.e2e.rights_functions import rights, writable
from tests.e2e.slurm_functions import echo
from tests.waiting import wait_until

__all__ = ["kube", "kubernetes", "left_nothing", "repository"]

pytestmark = pytest.mark.usefixtures("left_nothing")

Make = Callable[..., sky.Kubernetes]


def demo(pool: sky.ComputePool) -> list[dict[str, Any]]:
    """Train on handwritten digits, each node on its part."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return digits.train(x / 16, y) @ pool


def test_a_pool(
    kubernetes: Make, kube: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the restricted profile; large data pass; another process sees and ends it."""
    monkeypatch.setenv("KUBECONFIG", str(kube.kubeconfig))
    where = ["--kubernetes", "kube", "--namespace", NAMESPACE]
    with sky.ComputePool(kubernetes(), nodes=2, image=IMAGE, display="quiet", memory_gb=1, cpu=0.25) as pool:
        assert sum(result["samples"] for result in demo(pool)) == 1797
        for found in rights() @ pool:
            assert (found["uid"], found["name"], found["home"]) == (10001, "skyward", "/home/skyward")
            assert (int(found["CapBnd"], 16), found["NoNewPrivs"], found["cwd"]) == (0, "1", "/work")
        assert writable() @ pool == [[]] * 2
        data = bytes(256 << 20)
        assert echo(data) >> pool == data
        pods = pods_of(kube, pool.id)
        assert [pod["metadata"]["labels"]["skyward.node"] for pod in pods] == ["0", "1"]
        assert not any(node._key.hex() in json.dumps(pods) for node in pool._table.nodes)
        assert not any(pod["spec"].get("hostNetwork") for pod in pods)
        assert main(["ps", *where, "--json"]) == 0
        listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert {each["node"] for each in listed if each.get("pool") == pool.id} == {0, 1}
        assert main(["down", pool.id, *where]) == 0
        wait_until(lambda: pool.current_nodes() == 0, LONG_S)


def test_the_own_secret_owns_all(kubernetes: Make, kube: Cluster) -> None:
    """Deleting it deletes the pool, without any program of ours."""
    with sky.ComputePool(kubernetes(), image=IMAGE, display="quiet") as pool:
        kubectl(kube, "delete", "secret", f"skyward-{pool.id}")
        wait_until(lambda: not pods_of(kube, pool.id), LONG_S)
        wait_until(lambda: pool.current_nodes() == 0, LONG_S)
