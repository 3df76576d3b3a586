"""Documents of the API server: those that create a pool's objects, and what they say of a pod. Sends no requests."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from skyward.engine.container import shm_bytes
from skyward.errors import NodeStartError, ProviderError
from skyward.model.rights import ACCOUNT_ID, WORK_DIR
from skyward.model.spec import Accelerator
from skyward.nodes.container import COMMAND, POOL, owner_labels
from skyward.nodes.node import Exit, exit_of
from skyward.nodes.process_id import ProcessId
from skyward.providers.kubernetes.api import Document
from skyward.runner.entry.claimed import ADDRESS_VAR, POD_IDENTITY, POD_SECRETS, POD_VAR
from skyward.wire.tls import Identity

if TYPE_CHECKING:
    from skyward.providers.base import PoolRequest
    from skyward.providers.kubernetes.provider import Kubernetes

KIND = "skyward.kind"  # label that distinguishes the Secrets of a pool
_GIB = 1024**3
_STOP_S = 10  # a node that is asked to end takes 5 s for its workers
# Labels by which clusters identify the GPUs of a machine: NVIDIA's feature discovery, Google's, Karpenter's. In the
# first, memory and form factor are part of the name.
_PRODUCTS: Mapping[str, Sequence[str]] = {
    "T4": ("Tesla-T4",),
    "L4": ("NVIDIA-L4",),
    "L40": ("NVIDIA-L40",),
    "L40S": ("NVIDIA-L40S",),
    "A10": ("NVIDIA-A10",),
    "A10G": ("NVIDIA-A10G",),
    "A30": ("NVIDIA-A30",),
    "A40": ("NVIDIA-A40",),
    "V100": ("Tesla-V100-SXM2-16GB", "Tesla-V100-SXM2-32GB", "Tesla-V100-PCIE-16GB", "Tesla-V100-PCIE-32GB"),
    "P4": ("Tesla-P4",),
    "P100": ("Tesla-P100-PCIE-16GB", "Tesla-P100-SXM2-16GB"),
    "K80": ("Tesla-K80",),
    "A100": (
        *("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB", "NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-PCIE-80GB"),
        "NVIDIA-A100-80GB-PCIe",
    ),
    "A100-80GB": ("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-PCIE-80GB", "NVIDIA-A100-80GB-PCIe"),
    "H100": ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe", "NVIDIA-H100-NVL"),
    "H200": ("NVIDIA-H200", "NVIDIA-H200-NVL"),
    "GH200": ("NVIDIA-GH200-480GB", "NVIDIA-GH200-144G-HBM3e"),
    "B200": ("NVIDIA-B200",),
}
_GOOGLE: Mapping[str, str] = {
    **{name: f"nvidia-tesla-{name.lower()}" for name in ("T4", "V100", "P4", "P100", "K80", "A100")},
    "L4": "nvidia-l4",
    "A100-80GB": "nvidia-a100-80gb",
    "H100": "nvidia-h100-80gb",
    "H200": "nvidia-h200-141gb",
    "B200": "nvidia-b200",
}
# reasons in the status of pods that wait or have ended
_PULL = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_BROKEN = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_NO_START = ("StartError", "ContainerCannotRun")  # from the runtime, for a missing program
_GROWS = ("TriggeredScaleUp", "Nominated")  # events by which autoscalers announce a machine
_START_S = 600.0  # for a pod with a machine: includes the transfer of the image
_GROW_S = 900.0  # for a machine that an autoscaler has announced


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """The settings that all pods of a pool share.

    Attributes:
        request: the pool's request.
        provider: the provider with the settings of the user.
        image: reference of the image, by digest.
        user: numbers of the user and group that programs run as.
        inside: whether the client connects to the pod's address, rather than through the API server.
        pull_secret: name of the Secret with the registry's credentials; "" if none.
    """

    request: PoolRequest
    provider: Kubernetes
    image: str
    user: tuple[int, int] = (ACCOUNT_ID, ACCOUNT_ID)
    inside: bool = False
    pull_secret: str = ""

    @property
    def platform(self) -> str:
        """OCI platform of the image."""
        return self.request.image.platform or self.request.platform

    @property
    def pool(self) -> str:
        """Identifier of the pool."""
        return self.request.pool_id


def pod_name(pool: str, number: int) -> str:
    """Return the name of a pod, and of the Secret with its key. No number is used twice."""
    return f"skyward-{pool}-{number}"


def owner_secret(pool: str, owner: ProcessId) -> dict[str, Any]:
    """Return the Secret that owns a pool's objects. It is empty: a pool only needs rights for pods and Secrets."""
    return _secret(f"skyward-{pool}", pool, "pool", {"annotations": owner_labels(owner)})


def pod_secret(pool: str, number: int, identity: Identity, owned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Secret of one pod: its certificate with the private key."""
    secret = _secret(pod_name(pool, number), pool, "pod", {"ownerReferences": [owned]})
    return {**secret, "data": {POD_IDENTITY: _encoded(json.dumps(asdict(identity)))}}


def pull_secret(pool: str, auth: Mapping[str, str], image: str, owned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Secret with which machines pull the image; `auth` has an engine's format for credentials."""
    user, password = auth.get("username", ""), auth.get("password", "")
    if auth.get("identitytoken"):
        user, password = "<token>", auth["identitytoken"]
    entry = {"username": user, "password": password, "auth": _encoded(f"{user}:{password}")}
    registry = auth.get("serveraddress") or image.partition("/")[0]
    secret = _secret(f"skyward-{pool}-pull", pool, "pull", {"ownerReferences": [owned]})
    data = {".dockerconfigjson": _encoded(json.dumps({"auths": {registry: entry}}))}
    return {**secret, "type": "kubernetes.io/dockerconfigjson", "data": data}


def _secret(name: str, pool: str, kind: str, more: Mapping[str, Any]) -> dict[str, Any]:
    about = {"name": name, "labels": {POOL: pool, KIND: kind}, **more}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": about}


def owner_reference(secret: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reference by which the cluster's garbage collector removes an object with a pool's own Secret."""
    about = secret["metadata"]
    return {"apiVersion": "v1", "kind": "Secret", "name": about["name"], "uid": about["uid"]}


def pod(
    request: PodRequest, number: int, owner: ProcessId, owned: Mapping[str, Any], avoided: Collection[str]
) -> dict[str, Any]:
    """Return the pod of a node. It is labelled with the node's index once that is known.

    Args:
        request: the settings that the pool's pods share.
        number: the pod's number.
        owner: the process of this client.
        owned: the reference to the Secret that owns the pod.
        avoided: machines that it must not run on.
    """
    provider = request.provider
    document: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(request.pool, number),
            "labels": {POOL: request.pool},
            "annotations": owner_labels(owner),  # labels cannot contain every name
            "ownerReferences": [owned],
        },
        "spec": {
            "restartPolicy": "Never",  # an ended pod is replaced by one with another name
            "terminationGracePeriodSeconds": _STOP_S,
            "enableServiceLinks": False,
            "automountServiceAccountToken": provider.service_account is not None,
            "securityContext": _pod_rights(request.user),
            "nodeSelector": {**_platform(request.platform), **(provider.node_selector or {})},
            "tolerations": [dict(each) for each in provider.tolerations],
            "volumes": _volumes(request, number),
            "containers": [_container(request, number)],
        },
    }
    spec = document["spec"]
    if terms := _machines(request, avoided):
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    if provider.priority:
        spec["priorityClassName"] = provider.priority
    if provider.service_account:
        spec["serviceAccountName"] = provider.service_account
    if request.pull_secret:
        spec["imagePullSecrets"] = [{"name": request.pull_secret}]
    merged: dict[str, Any] = merge(document, provider.patch or {})
    return merged


def _container(request: PodRequest, number: int) -> dict[str, Any]:
    settings = {
        "pool": request.pool,
        "number": number,
        "lease_s": request.request.lease_s,
        "inside": request.inside,
        "gains_privileges": False,
    }
    return {
        "name": "node",
        "image": request.image,
        "command": [COMMAND[0], "-m", "skyward.runner.entry.claimed", "pod"],
        "env": [
            {"name": POD_VAR, "value": json.dumps(settings)},
            {"name": ADDRESS_VAR, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ],
        "resources": _resources(request),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "identity", "mountPath": str(POD_SECRETS), "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "work", "mountPath": WORK_DIR},
        ],
    }


def _pod_rights(user: tuple[int, int]) -> dict[str, Any]:
    """Return what https://kubernetes.io/docs/concepts/security/pod-security-standards/ calls restricted."""
    return {
        "runAsNonRoot": user[0] != 0,
        "runAsUser": user[0],
        "runAsGroup": user[1],
        "fsGroup": user[1],
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _volumes(request: PodRequest, number: int) -> list[dict[str, Any]]:
    shm: dict[str, Any] = {"medium": "Memory"}
    if memory_gb := request.request.memory_gb:
        shm["sizeLimit"] = str(shm_bytes(int(memory_gb * _GIB)))
    return [
        {"name": "identity", "secret": {"secretName": pod_name(request.pool, number), "defaultMode": 0o440}},
        {"name": "shm", "emptyDir": shm},
        {"name": "work", "emptyDir": {}},
    ]


def _resources(request: PodRequest) -> dict[str, Any]:
    """Return limits, which are also requested, so that no machine is overcommitted."""
    asked, limits = request.request, dict[str, str]()
    if asked.cpus is not None:
        limits["cpu"] = f"{round(asked.cpus * 1000)}m"
    if asked.memory_gb is not None:
        limits["memory"] = f"{round(asked.memory_gb * 1024)}Mi"
    if asked.accelerator is not None:
        limits[request.provider.gpu_resource] = str(asked.accelerator.count)
    return {"requests": limits, "limits": limits} if limits else {}


def _platform(platform: str) -> dict[str, str]:
    system, _, processor = platform.partition("/")
    return {"kubernetes.io/os": system, "kubernetes.io/arch": processor.partition("/")[0]}


def _machines(request: PodRequest, avoided: Collection[str]) -> list[dict[str, Any]]:
    """Return terms, one of which a machine must fulfil: labels of its GPUs, each with the machines to avoid."""
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in sorted(avoided)]
    accelerator = request.request.accelerator
    labels = [[]] if accelerator is None else _gpu_terms(accelerator, request.provider.gpu_labels)
    terms = ({"matchExpressions": expressions, "matchFields": fields} for expressions in labels)
    return [{name: value for name, value in term.items() if value} for term in terms if any(term.values())]


def _gpu_terms(accelerator: Accelerator, labels: Mapping[str, str] | None) -> list[list[dict[str, Any]]]:
    if labels is not None:
        return [[{"key": key, "operator": "In", "values": [value]} for key, value in labels.items()]]
    name = accelerator.name
    known = {
        "nvidia.com/gpu.product": list(_PRODUCTS.get(name, ())),
        "cloud.google.com/gke-accelerator": [_GOOGLE[name]] if name in _GOOGLE else [],
        "karpenter.k8s.aws/instance-gpu-name": [name.lower().partition("-")[0]] if name in _PRODUCTS else [],
    }
    terms = [[{"key": key, "operator": "In", "values": values}] for key, values in known.items() if values]
    if not terms:
        raise ProviderError(
            f"It is not known by which label clusters identify machines with {name}. Specify it: "
            "sky.Kubernetes(gpu_labels={'LABEL': 'VALUE'}), or gpu_labels={} for any machine with GPUs."
        )
    return terms


def merge(document: Any, change: Any) -> Any:
    """Return a document with a change merged into it.

    Objects are merged by key, and lists of named objects by name; None removes; anything else replaces.
    """
    if isinstance(document, Mapping) and isinstance(change, Mapping):
        merged = {key: value for key, value in document.items() if change.get(key, value) is not None}
        for key, value in change.items():
            if value is not None:
                merged[key] = merge(document.get(key), value)
        return merged
    if _has_names(document) and _has_names(change):
        new = {each["name"]: each for each in change}
        kept = [merge(each, new.pop(each["name"], {})) for each in document]
        return [*kept, *(merge({}, each) for each in new.values())]
    return change


def _has_names(value: Any) -> bool:
    return (
        isinstance(value, list | tuple) and bool(value) and all(isinstance(e, Mapping) and "name" in e for e in value)
    )


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


# states of pods -------------------------------------------------------------------------------------------------------


def start_problem(pod: Document, events: Sequence[Document], waited_s: float, room_s: float) -> ProviderError | None:
    """Return why a pod cannot be expected to run; None if it may only need more time.

    Args:
        pod: the pod's document from the API server.
        events: events of this pod.
        waited_s: seconds that it has been waited for.
        room_s: seconds that the cluster may lack room for it.
    """
    name = f"pod {pod['metadata']['name']}"
    status = pod.get("status", {})
    if status.get("phase") in ("Failed", "Succeeded"):
        return NodeStartError(f"The {name} {how_ended(pod, events).text} before it was a node.")
    if unschedulable := _unschedulable(pod):
        grows = any(event.get("reason") in _GROWS for event in events)
        if waited_s < (_GROW_S if grows else room_s):
            return None
        return ProviderError(
            f"The cluster has no room for the {name}: {unschedulable}. Ask for less (cpu=, memory=, accelerator=, "
            "nodes=), add tolerations= or change node_selector=; where an autoscaler adds machines, let the pool wait "
            "for them with room_s=."
        )
    reason, message = _waits_for(pod)
    if reason in _PULL and (reason != "ErrImagePull" or _is_final(message)):
        image = pod["spec"]["containers"][0]["image"]
        return ProviderError(
            f"The machine {_machine(pod)} cannot pull the image {image} for the {name} ({reason}): {message}. Check "
            "that the cluster's machines reach the registry, and that its credentials on this machine are valid "
            "(`docker login`): they are passed on."
        )
    if reason in _BROKEN:
        return ProviderError(
            f"The container of the {name} cannot be created on {_machine(pod)} ({reason}): {message}. `kubectl "
            f"describe {name}` says more; what patch= asks for is the usual cause."
        )
    if waited_s > _START_S:
        return ProviderError(
            f"The {name} is still {status.get('phase', 'not there')} after {waited_s:.0f} s: {waits(pod, events)}. "
            f"See `kubectl describe {name}`."
        )
    return None


def waits(pod: Document, events: Sequence[Document]) -> str:
    """Return what a pod that has not started waits for, for users."""
    if unschedulable := _unschedulable(pod):
        promised = next((event for event in events if event.get("reason") in _GROWS), None)
        return f"for room ({unschedulable})" + (f"; {_text(promised['message'])}" if promised else "")
    reason, message = _waits_for(pod)
    place = _machine(pod)
    what = f"{reason or pod.get('status', {}).get('phase', 'new')}" + (f" on {place}" if place else "")
    told = message or (_text(events[-1]["message"]) if events else "")
    return f"{what}: {told}" if told else what


def is_over(pod: Document | None) -> bool:
    """Return whether the pod has ended, is being deleted, or does not exist."""
    return (
        pod is None or pod["metadata"].get("deletionTimestamp") or pod["status"].get("phase") in ("Failed", "Succeeded")
    )


def how_ended(pod: Document | None, events: Sequence[Document], code: int | None = None) -> Exit:
    """Return how a pod has ended, or that it is lost.

    Args:
        pod: the pod's document from the API server; None if it no longer exists.
        events: events of this pod.
        code: exit status that its program has reported.
    """
    status = pod.get("status", {}) if pod else {}
    container: Document = next(iter(status.get("containerStatuses", ())), {})
    ended = container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated") or {}
    if code is None and ended:
        code = ended.get("exitCode")
    by_event = {event.get("reason"): _text(event.get("message", "")) for event in events}
    disruption: Document = next((c for c in status.get("conditions", ()) if c.get("type") == "DisruptionTarget"), {})
    if ended.get("reason") == "OOMKilled":
        text = "was killed because it used more memory than it may (OOMKilled). Ask for more with memory="
        return Exit(code=code, signal=9, oom=True, text=text)
    if status.get("reason") == "Evicted" or "Evicted" in by_event:
        text = f"was evicted by its machine: {_text(status.get('message') or by_event.get('Evicted', ''))}"
    elif ended.get("reason") in _NO_START:
        text = f"could not be started ({_text(ended.get('message', ''))})"
    elif "Preempted" in by_event:
        text = f"was preempted for a pod of higher priority ({by_event['Preempted']}). Name a class with priority="
    elif "TaintManagerEviction" in by_event:
        text = f"was removed from its machine {_machine(pod)}, which is lost or being drained"
    elif disruption or pod is None or pod["metadata"].get("deletionTimestamp"):
        told = _text(disruption.get("message", "")) or "kubectl delete, or a machine that is drained"
        text = f"was deleted by somebody else ({told})"
    elif code is not None:
        return exit_of(code)
    else:
        text = f"is lost: its connection to {_machine(pod)} ended"
    return Exit(code=code, text=text)


def _unschedulable(pod: Document) -> str:
    """Return the scheduler's message that no machine fits a pod; "" if there is none."""
    for condition in pod.get("status", {}).get("conditions", ()):
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return _text(condition.get("message", ""))
    return ""


def _waits_for(pod: Document) -> tuple[str, str]:
    """Return reason and message of a waiting container."""
    for container in pod.get("status", {}).get("containerStatuses", ()):
        if waiting := container.get("state", {}).get("waiting"):
            return str(waiting.get("reason", "")), _text(waiting.get("message", ""))
    return "", ""


def _is_final(message: str) -> bool:
    """Return whether a registry's refusal is permanent."""
    return any(word in message.lower() for word in ("not found", "unauthorized", "denied", "forbidden", "no match"))


def _machine(pod: Document | None) -> str:
    return str(pod["spec"].get("nodeName", "")) if pod else ""


def _text(message: object) -> str:
    return " ".join(str(message).split()).rstrip(".")
