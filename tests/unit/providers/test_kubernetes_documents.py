"""Documents for the API server, its words for what goes wrong, and the frames of its streams."""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
from typing import Any

import pytest

import skyward as sky
from skyward.errors import ConfigError, NodeStartError, ProviderError
from skyward.nodes.process_id import ProcessId
from skyward.providers.base import PoolRequest
from skyward.providers.kubernetes import documents
from skyward.providers.kubernetes.api import ChannelSocket
from skyward.wire.tls import Identity

OWNED = {"apiVersion": "v1", "kind": "Secret", "name": "skyward-1f2e", "uid": "u"}
ME = ProcessId.of(os.getpid())


def pod(*, avoided: tuple[str, ...] = (), user: tuple[int, int] = (10001, 10001), **settings: Any) -> dict[str, Any]:
    """A pod's document; settings are those of the provider, and `cpus`, `memory_gb` and `accelerator` of the pool."""
    asked = {name: settings.pop(name) for name in ("cpus", "memory_gb", "accelerator") if name in settings}
    request = documents.PodRequest(
        request=PoolRequest(pool_id="1f2e", **asked),
        provider=sky.Kubernetes(**settings),
        image="r/x@sha256:1",
        user=user,
    )
    return documents.pod(request, 3, ME, OWNED, avoided)


def state(phase: str = "Pending", **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "skyward-1f2e-0"},
        "spec": {"nodeName": "kube1", "containers": [{"image": "r/x@sha256:1"}]},
        "status": {"phase": phase, **status},
    }


def waiting(reason: str, message: str) -> dict[str, Any]:
    return state(containerStatuses=[{"state": {"waiting": {"reason": reason, "message": message}}}])


def test_a_pod_keeps_the_restricted_profile() -> None:
    """What the pod security standards of Kubernetes ask for, and nothing of the machine."""
    spec = pod()["spec"]
    (container,) = spec["containers"]

    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 10001
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert not spec["automountServiceAccountToken"] and not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert pod(user=(0, 0))["spec"]["securityContext"]["runAsNonRoot"] is False
    assert {"volumes", "containers"} < set(spec) and all("hostPath" not in each for each in spec["volumes"])


def test_limits_are_requests() -> None:
    """CPU, memory, shared memory and GPUs."""
    made = pod(cpus=1.5, memory_gb=2, accelerator=sky.Accelerator("A100", 2))["spec"]
    resources = made["containers"][0]["resources"]

    assert resources["requests"] == resources["limits"] == {"cpu": "1500m", "memory": "2048Mi", "nvidia.com/gpu": "2"}
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(1 << 30)}} in made["volumes"]


def test_machines_that_are_wanted_and_avoided() -> None:
    """Each way to know the GPU is a term of its own, and every term leaves the lost machine out."""
    affinity = pod(accelerator=sky.Accelerator("T4"), avoided=("kube2",))["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]

    assert {term["matchExpressions"][0]["key"].partition("/")[0] for term in terms} == {
        "nvidia.com",
        "cloud.google.com",
        "karpenter.k8s.aws",
    }
    assert all(term["matchFields"][0]["values"] == ["kube2"] for term in terms)
    assert "affinity" not in pod()["spec"]
    assert "affinity" not in pod(accelerator=sky.Accelerator("T4"), gpu_labels={})["spec"]
    with pytest.raises(ProviderError, match="gpu_labels="):
        pod(accelerator=sky.Accelerator("Odd", cuda=True))


def test_a_patch_is_merged() -> None:
    """Objects by key, lists of named objects by name, None removes."""
    change = {
        "spec": {
            "hostNetwork": True,
            "automountServiceAccountToken": None,
            "containers": [{"name": "node", "env": [{"name": "A", "value": "1"}]}, {"name": "beside", "image": "b"}],
        }
    }
    made = pod(patch=change)["spec"]
    node, beside = made["containers"]

    assert made["hostNetwork"] and "automountServiceAccountToken" not in made
    assert [each["name"] for each in node["env"]] == ["SKYWARD_POD", "SKYWARD_POD_ADDRESS", "A"]
    assert node["image"] == "r/x@sha256:1" and beside["image"] == "b"


def test_secrets_are_owned_and_hold_what_is_secret() -> None:
    """The pod's document holds nothing of it."""
    identity = Identity("CERT", "KEY", "PEER")
    secret = documents.pod_secret("1f2e", 3, identity, OWNED)
    pull = documents.pull_secret("1f2e", {"username": "u", "password": "p"}, "r.example.com/x@sha256:1", OWNED)
    login = json.loads(base64.b64decode(pull["data"][".dockerconfigjson"]))["auths"]["r.example.com"]

    assert secret["metadata"]["ownerReferences"] == pull["metadata"]["ownerReferences"] == [OWNED]
    assert json.loads(base64.b64decode(secret["data"]["identity"]))["private_key"] == "KEY"
    assert base64.b64decode(login["auth"]) == b"u:p"
    assert "KEY" not in json.dumps(pod())


@pytest.mark.parametrize(
    ("document", "events", "said"),
    [
        (
            state(conditions=[{"type": "PodScheduled", "reason": "Unschedulable", "message": "0/2 nodes: no cpu."}]),
            [],
            "has no room for the pod skyward-1f2e-0: 0/2 nodes: no cpu. Ask for less",
        ),
        (waiting("ImagePullBackOff", "Back-off"), [], r"kube1 cannot pull the image r/x@sha256:1"),
        (waiting("ErrImagePull", "manifest not found"), [], "cannot pull"),
        (waiting("CreateContainerConfigError", 'secret "x" not found'), [], "cannot be created on kube1"),
        (state("Failed", reason="Evicted", message="low on memory"), [], "was evicted by its machine: low on memory"),
    ],
)
def test_why_a_pod_does_not_come(document: dict[str, Any], events: list[dict[str, Any]], said: str) -> None:
    """One sentence, with the cluster's words."""
    problem = documents.start_problem(document, events, waited_s=9.0, room_s=8.0)

    assert problem is not None and said in str(problem)


def test_what_is_waited_for() -> None:
    """A machine that an autoscaler has promised, a registry that may answer the second time, a container on its way."""
    full = state(conditions=[{"type": "PodScheduled", "reason": "Unschedulable", "message": "full"}])
    grows = [{"reason": "TriggeredScaleUp", "message": "pod triggered scale-up", "type": "Normal"}]

    assert documents.start_problem(full, grows, 60.0, 8.0) is None
    assert "triggered scale-up" in documents.waits(full, grows)
    assert documents.start_problem(waiting("ErrImagePull", "i/o timeout"), [], 9.0, 8.0) is None
    assert documents.start_problem(waiting("ContainerCreating", ""), [], 300.0, 8.0) is None
    assert "still Pending" in str(documents.start_problem(waiting("ContainerCreating", ""), [], 601.0, 8.0))
    assert isinstance(documents.start_problem(state("Failed"), [], 1.0, 8.0), NodeStartError)


def test_how_a_pod_has_ended() -> None:
    """Memory, eviction, preemption, deletion, a machine that is gone."""
    killed = {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}

    assert documents.how_ended(state("Failed", containerStatuses=[killed]), []).oom
    assert "preempted" in documents.how_ended(None, [{"reason": "Preempted", "message": "by team/big"}]).text
    assert "deleted by somebody else" in documents.how_ended(None, []).text
    assert documents.how_ended(state("Running"), [], 1).text == "ended with exit status 1"
    assert "its connection to kube1 ended" in documents.how_ended(state("Running"), []).text


def frame(content: bytes, kind: int = 2) -> bytes:
    """As a server sends it: without a mask."""
    size = struct.pack("!B", len(content)) if len(content) < 126 else struct.pack("!BH", 126, len(content))
    return bytes([0x80 | kind]) + size + content


def test_channels_are_told_apart() -> None:
    """Content of one is received, the others are kept; frames may arrive in pieces."""
    near, far = socket.socketpair()
    with near, far:
        channels = ChannelSocket(near)
        sent = frame(b"\0\x50\0") + frame(b"\1\x50\0") + frame(b"\0" + b"x" * 200) + frame(b"\1refused") + frame(b"", 8)
        space = memoryview(bytearray(1024))
        near.setblocking(False)
        for at in range(len(sent) - 1):
            far.sendall(sent[at : at + 1])
            try:
                count = channels.recv_into(space)
            except BlockingIOError:
                continue
            assert bytes(space[:count]) == b"x" * 200
        far.sendall(sent[-1:])
        assert channels.recv_into(space) == 0


def test_what_is_sent_is_one_masked_frame() -> None:
    """For channel 0, with the mask that a server asks for."""
    near, far = socket.socketpair()
    with near, far:
        assert ChannelSocket(near).send(memoryview(b"hello")) == 5
        assert far.recv(100) == b"\x82\x86\0\0\0\0\0hello"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"user": "app"}, "user is a number"),
        ({"kubeconfig": "/no/such/file"}, "kubeconfig"),
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, Any], said: str) -> None:
    """When the provider is made."""
    with pytest.raises(ConfigError, match=said):
        sky.Kubernetes(**wrong)


def test_a_pool_without_a_registry_is_refused() -> None:
    """Before anything is asked."""
    with pytest.raises(ConfigError, match="registry="), sky.ComputePool(sky.Kubernetes(), display="quiet"):
        pass
