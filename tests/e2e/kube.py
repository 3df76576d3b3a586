"""A Kubernetes of two nodes for the tests that ask for it: brought up with the first, taken away after the last."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import skyward as sky
from examples import digits
from scripts.engine.console import SetupError
from scripts.kube import binary, commands
from scripts.kube.place import Cluster, here
from skyward.delivery.deliver import ImageTarget, deliver
from skyward.engine import find_engine
from tests.waiting import wait_until

IMAGE = digits.IMAGE  # for all of these tests, since each machine has to pull it
REGISTRY = os.environ.get("SKYWARD_REGISTRY", "")
LONG_S = 180.0  # nothing in these tests is about this time
NAMESPACE = "team"


@pytest.fixture(scope="session")
def kube() -> Iterator[Cluster]:
    """The cluster of this clone; one that somebody has brought up before is used and left as it is.

    `make test` starts the build of Kubernetes in the background; what is left of that is waited for.
    """
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("the cluster's machines are namespaces and mounts, which take root on Linux")
    if not REGISTRY:
        pytest.skip("`make engine` has made no registry here, from which the machines could pull")
    found = here()
    was_up = found.kubeconfig.exists()
    if not was_up and not (binary.is_there() or binary.is_being_built()):
        pytest.skip("Kubernetes has not been built here: `make kube-build` does, which takes 5 minutes once")
    try:
        commands.up(found)
    except SetupError as problem:
        pytest.skip(f"no Kubernetes could be brought up: {problem}")
    kubectl(found, "create", "namespace", NAMESPACE, check=False)
    wait_until(lambda: "token" in kubectl(found, "get", "secrets", "-o", "name"), LONG_S)
    yield found
    if not was_up:
        commands.down(found)


@pytest.fixture(scope="session")
def repository(kube: Cluster) -> Iterator[str]:
    """A repository with the image, at the registry that the machines reach."""
    path = f"skyward/test-{uuid.uuid4().hex[:8]}"
    cluster = sky.ComputePool(display="quiet")._settings.cluster
    deliver(IMAGE, cluster, ImageTarget(engine=find_engine(), registry=f"http://{REGISTRY}/{path}"), print)
    yield f"http://{kube.state['registry']}/{path}"
    words = ["docker", "images", "--format", "{{.Repository}}:{{.Tag}}", f"{REGISTRY}/{path}"]
    names = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    subprocess.run(["docker", "rmi", *names], capture_output=True, check=bool(names))


@pytest.fixture
def kubernetes(kube: Cluster, repository: str) -> Callable[..., sky.Kubernetes]:
    """Make a provider for one namespace of the cluster, from outside of it."""

    def make(**settings: Any) -> sky.Kubernetes:
        usual = {"kubeconfig": kube.kubeconfig, "namespace": NAMESPACE, "registry": repository}
        return sky.Kubernetes(**{**usual, **settings})

    return make


@pytest.fixture
def left_nothing(kube: Cluster) -> Iterator[None]:
    """Asserts that nothing in the cluster has a label of ours in the end."""
    yield
    wait_until(lambda: not left(kube), LONG_S)


def left(kube: Cluster) -> list[str]:
    """The pods and Secrets of pools."""
    return kubectl(kube, "get", "pods,secrets", "-l", "skyward.pool", "-o", "name").split()


def kubectl(kube: Cluster, *words: str, given: str | None = None, check: bool = True) -> str:
    """What kubectl prints, as the administrator in the namespace of the tests."""
    command = ["kubectl", "--kubeconfig", str(kube.kubeconfig), "--namespace", NAMESPACE, *words]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=check, timeout=LONG_S).stdout


def pods_of(kube: Cluster, pool: str) -> list[dict[str, Any]]:
    """A pool's pods, as the API server has them."""
    found: list[dict[str, Any]] = json.loads(kubectl(kube, "get", "pods", "-l", f"skyward.pool={pool}", "-o", "json"))[
        "items"
    ]
    return sorted(found, key=lambda pod: pod["metadata"]["labels"].get("skyward.node", ""))
