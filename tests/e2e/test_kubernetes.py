"""Pods on a Kubernetes of two nodes: made, reached through the API server, gone in the end."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
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
    where = ["--at", f"kubernetes://{NAMESPACE}?context=kube"]
    with sky.ComputePool(kubernetes(), nodes=2, image=IMAGE, display="quiet", memory=1, cpu=0.25) as pool:
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


def read(kube: Cluster, name: str) -> str:
    """A file of the cluster's keys and certificates, as kubeconfigs have it inline."""
    return base64.b64encode((kube.pki / name).read_bytes()).decode()


def test_credentials_that_expire(kubernetes: Make, kube: Cluster, tmp_path: Path) -> None:
    """The program that a kubeconfig names for them is asked again; the context is the one that the pool began with."""
    good = {name: (kube.pki / f"admin.{name}").read_text() for name in ("crt", "key")}
    answers = {"old": {"token": "expired"}, "new": {"clientCertificateData": good["crt"], "clientKeyData": good["key"]}}
    for name, status in answers.items():
        answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
        (tmp_path / name).write_text(json.dumps(answer))
    program = tmp_path / "credentials"
    program.write_text("#!/bin/sh\n[ -e asked ] && exec cat new\ntouch asked\nexec cat old\n")
    program.chmod(0o755)
    document = json.loads(kube.kubeconfig.read_text())
    document["clusters"][0]["cluster"] = {"server": kube.url, "certificate-authority-data": read(kube, "ca.crt")}
    document["users"][0]["user"] = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./credentials"}
    }
    document["contexts"].append({"name": "another", "context": {"cluster": "kube", "user": "nobody"}})
    file = tmp_path / "config"
    file.write_text(json.dumps(document))
    with sky.ComputePool(kubernetes(kubeconfig=file), image=IMAGE, display="quiet") as pool:
        assert (tmp_path / "asked").exists()
        file.write_text(json.dumps({**document, "current-context": "another"}))
        (before,) = pods_of(kube, pool.id)
        kubectl(kube, "delete", "pod", before["metadata"]["name"], "--wait=false")
        wait_until(lambda: pool.current_nodes() == 0, LONG_S)
        assert echo(b"again") >> pool == b"again"


def test_the_own_secret_owns_all(kubernetes: Make, kube: Cluster) -> None:
    """Deleting it deletes the pool, without any program of ours."""
    with sky.ComputePool(kubernetes(), image=IMAGE, display="quiet") as pool:
        kubectl(kube, "delete", "secret", f"skyward-{pool.id}")
        wait_until(lambda: not pods_of(kube, pool.id), LONG_S)
        wait_until(lambda: pool.current_nodes() == 0, LONG_S)
