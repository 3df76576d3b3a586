"""Pods on a Kubernetes of two nodes: made, reached through the API server, gone in the end."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

import skyward as sky
from examples import digits
from scripts.kube.place import Cluster
from skyward.cli.main import main
from skyward.errors import WorkerLostError
from tests.e2e.kube import IMAGE, LONG_S, NAMESPACE, kube, kubectl, kubernetes, left_nothing, pods_of, repository
from tests.e2e.kube_functions import end_worker
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


def kubeconfig(kube: Cluster, path: Path, cluster: dict[str, str], user: dict[str, Any]) -> Path:
    """A kubeconfig of the cluster, with these ways to know its API server and to be known by it."""
    document = json.loads(kube.kubeconfig.read_text())
    document["clusters"][0]["cluster"] = {"server": kube.url, **cluster}
    document["users"][0]["user"] = user
    document["contexts"].append({"name": "another", "context": {"cluster": "kube", "user": "nobody"}})
    path.write_text(json.dumps(document))
    return path


def read(kube: Cluster, name: str) -> str:
    """A file of the cluster's keys and certificates, as kubeconfigs have it inline."""
    return base64.b64encode((kube.pki / name).read_bytes()).decode()


def delete_pod(kube: Cluster, pool: sky.ComputePool) -> None:
    """Delete the one pod of a pool, and wait until another one serves it."""
    (before,) = pods_of(kube, pool.id)
    kubectl(kube, "delete", "pod", before["metadata"]["name"], "--wait=false")
    wait_until(lambda: pool.current_nodes() == 0, LONG_S)
    assert echo(b"again") >> pool == b"again"


def test_pools_of_one_kubeconfig(kubernetes: Make, kube: Cluster, tmp_path: Path) -> None:
    """Its certificates are inline: a pool that ends takes nothing from another one that uses them."""
    user = {"client-certificate-data": read(kube, "admin.crt"), "client-key-data": read(kube, "admin.key")}
    file = kubeconfig(kube, tmp_path / "config", {"certificate-authority-data": read(kube, "ca.crt")}, user)
    with ExitStack() as last:
        with sky.ComputePool(kubernetes(kubeconfig=file), image=IMAGE, display="quiet") as first:
            pool = last.enter_context(sky.ComputePool(kubernetes(kubeconfig=file), image=IMAGE, display="quiet"))
            assert echo(b"once") >> first == echo(b"once") >> pool
        delete_pod(kube, pool)


def short_certificate(kube: Cluster, seconds: float) -> tuple[str, str]:
    """A certificate of the administrator that is valid for so long, and its key; both PEM."""
    authority = x509.load_pem_x509_certificate((kube.pki / "ca.crt").read_bytes())
    signer = serialization.load_pem_private_key((kube.pki / "ca.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    names = ((x509.NameOID.ORGANIZATION_NAME, "system:masters"), (x509.NameOID.COMMON_NAME, "admin"))
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(*each) for each in names]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(seconds=seconds))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    formats = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return made.public_bytes(serialization.Encoding.PEM).decode(), key.private_bytes(*formats).decode()


def test_certificates_that_expire(kubernetes: Make, kube: Cluster, tmp_path: Path) -> None:
    """The program that a kubeconfig names for them is asked again, for calls of the API and for connections to pods."""
    lasts_s = 15.0
    good = tuple((kube.pki / name).read_text() for name in ("admin.crt", "admin.key"))
    for name, (certificate, key) in {"short": short_certificate(kube, lasts_s), "good": good}.items():
        status = {"clientCertificateData": certificate, "clientKeyData": key}
        document = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    program = tmp_path / "credentials"
    program.write_text("#!/bin/sh\n[ -e asked ] && exec cat good.json\ntouch asked\nexec cat short.json\n")
    program.chmod(0o755)
    (tmp_path / "ca.crt").write_bytes((kube.pki / "ca.crt").read_bytes())
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./credentials"}}
    file = kubeconfig(kube, tmp_path / "config", {"certificate-authority": "ca.crt"}, user)
    began = time.monotonic()
    with sky.ComputePool(kubernetes(kubeconfig=file), image=IMAGE, display="quiet") as pool:
        assert echo(b"once") >> pool == b"once"
        time.sleep(max(0.0, began + lasts_s + 2.0 - time.monotonic()))
        document = json.loads(file.read_text())
        file.write_text(json.dumps({**document, "current-context": "another"}))  # it is the one of before that counts
        with pytest.raises(WorkerLostError):  # the next worker takes a new connection to the pod
            end_worker() >> pool
        assert echo(b"more") >> pool == b"more"
        delete_pod(kube, pool)


def test_the_own_secret_owns_all(kubernetes: Make, kube: Cluster) -> None:
    """Deleting it deletes the pool, without any program of ours."""
    with sky.ComputePool(kubernetes(), image=IMAGE, display="quiet") as pool:
        kubectl(kube, "delete", "secret", f"skyward-{pool.id}")
        wait_until(lambda: not pods_of(kube, pool.id), LONG_S)
        wait_until(lambda: pool.current_nodes() == 0, LONG_S)
