"""What goes wrong with pods, each said in a sentence with what to do; and what a minimal Role and a namespace allow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from scripts.kube import control, node
from scripts.kube.place import Cluster
from scripts.stand import faults
from skyward.errors import NodeStartError, ProviderError, SkywardError, WorkerLostError
from tests.e2e.kube import IMAGE, LONG_S, NAMESPACE, kube, kubectl, kubernetes, left_nothing, pods_of, repository
from tests.e2e.kube_functions import fill
from tests.e2e.slurm_functions import where, work
from tests.e2e.stand_functions import places
from tests.waiting import wait_until

__all__ = ["kube", "kubernetes", "left_nothing", "repository"]

pytestmark = pytest.mark.usefixtures("left_nothing")

Make = Callable[..., sky.Kubernetes]
_SOON_S = 20.0  # from the request to the error: 8 s of patience, the 10 s of the cluster, and some


def refusal(provider: sky.Kubernetes, **settings: Any) -> str:
    """What a pool that cannot start says; within a time."""
    began = time.monotonic()
    with (
        pytest.raises((ProviderError, NodeStartError)) as caught,
        sky.ComputePool(provider, **{"image": IMAGE, "display": "quiet", **settings}),
    ):
        raise AssertionError("the pool started")
    assert time.monotonic() - began < _SOON_S
    return str(caught.value)


def test_what_the_cluster_cannot_give(kubernetes: Make, kube: Cluster) -> None:
    """Room, an image, a quota, a kind of machine, an API server, a namespace: a sentence each, and nothing is left."""
    assert "has no room for the pod" in (said := refusal(kubernetes(), cpu=64)) and "Insufficient cpu" in said
    said = refusal(kubernetes(room_s=1), accelerator="A100")
    assert "has no room for the pod" in said and "node affinity" in said
    patch: dict[str, Any]
    nowhere = f"{kube.state['registry']}/nothing@sha256:{'0' * 64}"
    patch = {"spec": {"containers": [{"name": "node", "image": nowhere}]}}
    assert f"cannot pull the image {nowhere}" in refusal(kubernetes(patch=patch))
    patch = {"spec": {"containers": [{"name": "node", "command": ["/no/such/program"]}]}}
    assert "no such file or directory" in refusal(kubernetes(patch=patch))
    assert "namespaces" in refusal(kubernetes(namespace="nowhere"))
    kubectl(kube, "create", "quota", "one", "--hard=pods=1")
    try:
        assert "quota" in (said := refusal(kubernetes(), nodes=2)) and "pods=1" in said
    finally:
        kubectl(kube, "delete", "quota", "one")


def test_out_of_memory(kubernetes: Make) -> None:
    """It is said that it was memory; the pool goes on."""
    with sky.ComputePool(kubernetes(), image=IMAGE, memory=0.25, display="quiet") as pool:
        with pytest.raises(WorkerLostError, match=r"(?i)memory"):
            fill(1.0) >> pool
        wait_until(lambda: pool.current_nodes() == 1, LONG_S)
        assert where() >> pool


def lost(pool: sky.ComputePool, strike: Callable[[], object]) -> str:
    """What a call says whose node is struck."""
    running = work(200.0) > pool
    time.sleep(0.5)  # it has begun, or the node is lost before it does: then it would run elsewhere
    strike()
    with pytest.raises(WorkerLostError) as caught:
        running.result(LONG_S)
    return str(caught.value)


def test_pods_that_are_taken_away(kubernetes: Make, kube: Cluster) -> None:
    """Deleted, drained, kubelet killed: the call is lost with the reason, and the node is replaced."""
    with sky.ComputePool(kubernetes(), image=IMAGE, display="quiet") as pool:
        first = pods_of(kube, pool.id)[0]["metadata"]["name"]
        said = lost(pool, lambda: kubectl(kube, "delete", "pod", first, "--wait=false"))
        assert "was deleted by somebody else" in said, said
        assert where() >> pool
        (pod,) = pods_of(kube, pool.id)
        assert pod["metadata"]["name"] != first
        machine = pod["spec"]["nodeName"]
        drain = ["drain", machine, "--force", "--delete-emptydir-data", "--ignore-daemonsets"]
        try:
            assert "deleted by somebody else" in lost(pool, lambda: kubectl(kube, *drain))
            assert (where() >> pool)[0] != pod["metadata"]["name"]
            (pod,) = pods_of(kube, pool.id)
            assert pod["spec"]["nodeName"] != machine
        finally:
            kubectl(kube, "uncordon", machine)
        own = next(each for each in kube.machines if each.name == pod["spec"]["nodeName"])
        node.kill_kubelet(own)
        deadline = time.monotonic() + LONG_S
        while True:  # a call that is under way at that moment may be lost
            try:
                assert where() >> pool
                break
            except WorkerLostError:
                assert time.monotonic() < deadline
        control.wait_ready(kube)


def test_a_machine_that_is_lost(kubernetes: Make, kube: Cluster) -> None:
    """The call is lost, and the replacement avoids the machine while the cluster does not know yet."""
    with sky.ComputePool(kubernetes(), image=IMAGE, display="quiet") as pool:
        (pod,) = pods_of(kube, pool.id)
        machine = next(each for each in kube.machines if each.name == pod["spec"]["nodeName"])
        try:
            said = lost(pool, lambda: faults.power_off(machine))
            assert "lost" in said, said
            assert where() >> pool
            (after,) = pods_of(kube, pool.id)
            assert after["spec"]["nodeName"] != machine.name
        finally:
            faults.link_up(machine)
            node.power_on(machine)
            control.wait_ready(kube)


def test_an_api_server_that_starts_again(kubernetes: Make, kube: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    """It takes the connections to the pods with it: they are replaced, and no machine is taken for lost."""
    with sky.ComputePool(kubernetes(), nodes=2, image=IMAGE) as pool:
        assert where() @ pool
        control.stop_one(kube, "apiserver")
        control.start_one(kube, "apiserver")
        control.wait_up(kube)
        wait_until(lambda: pool.current_nodes() == 2 and len(pods_of(kube, pool.id)) == 2, LONG_S)
        assert len(where() @ pool) == 2
    assert "is avoided" not in capfd.readouterr().err


@pytest.fixture
def least(kube: Cluster, tmp_path: Path) -> Iterator[Path]:
    """The kubeconfig of somebody who has the documented Role and nothing else."""
    kubectl(kube, "apply", "-f", str(Path(__file__).parents[2] / "docs" / "permissions" / "kubernetes.yaml"))
    kubectl(kube, "create", "serviceaccount", "least")
    bound = ["--role=skyward", f"--serviceaccount={NAMESPACE}:least"]
    kubectl(kube, "create", "rolebinding", "least", *bound)
    token = "jsonpath={.data.token}"

    def secret() -> str:
        names = kubectl(kube, "get", "serviceaccount", "least", "-o", "jsonpath={.secrets[0].name}")
        return kubectl(kube, "get", "secret", names, "-o", token) if names else ""

    wait_until(secret, LONG_S)
    decoded = subprocess.run(["base64", "-d"], input=secret(), capture_output=True, text=True, check=True).stdout
    document = json.loads(kube.kubeconfig.read_text())
    document["users"] = [{"name": "admin", "user": {"token": decoded}}]
    document["contexts"][0]["context"]["namespace"] = NAMESPACE
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(document))
    yield path
    for kind, name in (("rolebinding", "least"), ("serviceaccount", "least"), ("role", "skyward")):
        kubectl(kube, "delete", kind, name)


def test_the_documented_role_is_enough(kubernetes: Make, kube: Cluster, least: Path) -> None:
    """To open, look in, lose a node, and end; and without it the error names what is missing."""
    provider = kubernetes(kubeconfig=least, namespace=None)
    with sky.ComputePool(provider, nodes=2, image=IMAGE, display="quiet") as pool:
        assert [place["node"] for place in places() @ pool] == [0, 1]
        named = {each["node"]: each for each in provider.find()}
        with provider.enter(named[1]) as access:
            assert access.loss_reason() == ""
        kubectl(kube, "delete", "pod", named[0]["name"])
        wait_until(lambda: len(pods_of(kube, pool.id)) == 2, LONG_S)
        deadline = time.monotonic() + LONG_S
        while True:
            try:
                assert len(where() @ pool) == 2
                break
            except SkywardError:
                assert time.monotonic() < deadline
    kubectl(kube, "delete", "rolebinding", "least")
    try:
        assert "docs/kubernetes.md" in refusal(provider)
    finally:
        kubectl(kube, "create", "rolebinding", "least", "--role=skyward", f"--serviceaccount={NAMESPACE}:least")


INSIDE = """
import skyward as sky
from tests.e2e.kube import IMAGE
from tests.e2e.slurm_functions import echo
with sky.ComputePool(sky.Kubernetes(registry={registry!r}), nodes=2, image=IMAGE, display="quiet") as pool:
    data = bytes(64 << 20)
    assert echo(data) >> pool == data
    assert sky.Kubernetes().address.is_inside
    print("inside", pool.id, flush=True)
"""


def test_from_inside_the_cluster(kube: Cluster, repository: str, least: Path, tmp_path: Path) -> None:
    """A client with a pod's token and variables comes to the pods' own addresses, with TLS."""
    token = json.loads(least.read_text())["users"][0]["user"]["token"]
    for name, text in (("token", token), ("namespace", NAMESPACE), ("ca.crt", (kube.pki / "ca.crt").read_text())):
        (tmp_path / name).write_text(text)
    host, _, port = kube.url.removeprefix("https://").partition(":")
    there = Path("/run/secrets")
    was_there = there.exists()
    there.mkdir(exist_ok=True)
    account = there / "kubernetes.io" / "serviceaccount"
    files = " ".join(str(tmp_path / name) for name in ("token", "namespace", "ca.crt"))
    mounted = f'mount -t tmpfs none {there} && mkdir -p {account} && cp {files} {account} && exec "$@"'
    program = tmp_path / "program.py"
    program.write_text(INSIDE.format(registry=repository))
    inside = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "KUBECONFIG": ""}
    words = ["unshare", "--mount", "sh", "-c", mounted, "sh", sys.executable, str(program)]
    env = {**os.environ, **inside, "PYTHONPATH": str(Path.cwd())}
    try:
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=LONG_S, check=False)
    finally:
        if not was_there:
            there.rmdir()
    assert done.stdout.startswith("inside"), done.stdout + done.stderr
