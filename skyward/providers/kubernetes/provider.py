"""`sky.Kubernetes`: nodes as pods of a Kubernetes cluster, a pool's allocation there, and the objects of all pools."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from skyward.builder.events import note
from skyward.engine import find_engine
from skyward.errors import ConfigError, PoolClosedError, ProviderError
from skyward.model.parameters import suggesting
from skyward.model.resource import Resource
from skyward.model.rights import ACCOUNT_ID
from skyward.model.ssh import existing_file
from skyward.nodes.access import NodeAccess
from skyward.nodes.claimed import ClaimedHost
from skyward.nodes.container import NODE, OWNER, POOL
from skyward.nodes.node import Host, Launch, RunnerNode
from skyward.nodes.process_id import USER, ProcessId
from skyward.nodes.run_directory import sweep_orphans
from skyward.providers.base import Allocation, Capabilities, PoolRequest, Provider
from skyward.providers.kubernetes import documents
from skyward.providers.kubernetes.api import ClusterAddress, ClusterApi, Document
from skyward.providers.kubernetes.documents import KIND
from skyward.providers.kubernetes.pods import Pod, PodAccess, PodProcess, Pods
from skyward.providers.reaper import Reaper
from skyward.system import threading, time

_USER = re.compile(r"\d+(:\d+)?")
_LOOK_S = 0.1  # between two queries of ending pods
_FRESH_S = 120.0  # younger objects may belong to a pool that is being created, or is replacing its nodes


@suggesting("sky.Kubernetes")
@dataclass(frozen=True)
class Kubernetes(Provider):
    """Pods of a Kubernetes cluster: `sky.Kubernetes(registry="registry.example.com/team/skyward")`.

    Each node is one pod. Nothing is installed in the cluster, and no rights outside of one namespace are needed.

    Attributes:
        context: context of the kubeconfig; None for its current one, or, in a pod, for the cluster of that pod.
        namespace: namespace of the pods; None for that of the context.
        kubeconfig: the kubeconfig file; None for the one in KUBECONFIG, else ~/.kube/config.
        registry: repository from which the machines pull images, such as "registry.example.com/team/skyward"; required
            to open a pool.
        user: number of the user that functions run as, optionally with that of its group ("1000:1000"). None for the
            number set in the image, or an unprivileged one if it sets none. "0" is root, which clusters with restricted
            namespaces reject.
        node_selector: labels that machines must have.
        tolerations: tolerations of the pods, as in their specification, such as [{"key": "gpu", "operator": "Exists"}].
        priority: name of the pods' priority class; None for the cluster's default.
        service_account: account whose rights functions have in the cluster; its token is then in the pods. None for
            none.
        gpu_resource: resource name of GPUs in the cluster.
        gpu_labels: labels of machines with the pool's accelerator; None for the usual ones, {} for any machine with
            GPUs.
        room_s: seconds that the cluster may lack room for a pod before that is an error. Set more where an autoscaler
            adds machines; once it has announced one, the pool waits for 15 minutes.
        patch: merged into every pod last, for settings without a parameter: {"spec": {"hostNetwork": True}}. Objects
            are merged by key, lists of named objects by name (the container's is "node"), and None removes.

    Raises:
        ConfigError: a value is invalid.
    """

    name: ClassVar[str] = "kubernetes"
    capabilities: ClassVar[Capabilities] = Capabilities(default_lease_s=60.0)
    context: str | None = None
    _: KW_ONLY
    namespace: str | None = None
    kubeconfig: str | os.PathLike[str] | None = None
    registry: str | None = None
    user: str | None = None
    node_selector: Mapping[str, str] | None = None
    tolerations: Sequence[Mapping[str, Any]] = ()
    priority: str | None = None
    service_account: str | None = None
    gpu_resource: str = "nvidia.com/gpu"
    gpu_labels: Mapping[str, str] | None = None
    room_s: float = 8.0
    patch: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.user is not None and not _USER.fullmatch(self.user):
            raise ConfigError(
                "sky.Kubernetes: user is a number, with that of a group if wanted, such as '1000:1000': a cluster does "
                f"not look names up in images; found {self.user!r}."
            )
        if self.registry is not None:
            from skyward.builder.registry.reference import parse_reference

            parse_reference(self.registry)
        own: dict[str, object] = {  # copies, so that later changes of the caller's documents have no effect
            "kubeconfig": existing_file("sky.Kubernetes", "kubeconfig", self.kubeconfig),
            "node_selector": dict(self.node_selector or {}),
            "tolerations": tuple(deepcopy(dict(each)) for each in self.tolerations),
            "gpu_labels": None if self.gpu_labels is None else dict(self.gpu_labels),
            "room_s": float(self.room_s),
            "patch": deepcopy(dict(self.patch or {})),
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)

    @property
    def address(self) -> ClusterAddress:
        """Context, namespace and kubeconfig."""
        return ClusterAddress(self.context, self.namespace, None if self.kubeconfig is None else Path(self.kubeconfig))

    def open(self, request: PoolRequest) -> KubernetesAllocation:
        """Return the allocation for a pool, which creates its pods."""
        return KubernetesAllocation(self, request)

    def find(self) -> Sequence[Resource]:
        """Return every pod of every pool in the namespace: pool, node, name, state, user, owner, image, id, host.

        Raises:
            ProviderError: the API server refuses or does not answer.
        """
        with closing(ClusterApi(self.address)) as api:
            return list(described(api))

    def destroy(self, pool_id: str) -> None:
        """Remove a pool's Secrets and pods, whichever client created them.

        Raises:
            ProviderError: the API server refuses or does not answer; the pods' leases end them.
        """
        with closing(ClusterApi(self.address)) as api:
            clear(api, pool_id)

    def enter(self, node: Resource) -> NodeAccess:
        """Return access to a pod by a program that the API server starts there, like `kubectl exec`.

        Raises:
            ProviderError: the API server refuses or does not answer.
        """
        api = ClusterApi(self.address)
        return PodAccess(node, api, api.close)


class KubernetesAllocation(Allocation):
    """One pool's part of a cluster: its own Secret, which owns the other Secrets and the pods."""

    def __init__(self, provider: Kubernetes, request: PoolRequest) -> None:
        super().__init__(request)
        self._provider = provider
        self._lock = threading.Lock()
        self._api: ClusterApi | None = None
        self._pods: Pods | None = None
        self._image: str | None = None
        self._reaper: Reaper | None = None

    def acquire(self) -> Sequence[Host]:
        """Check that the API server answers. `prepare` determines the pods' machines.

        Raises:
            ConfigError: no registry is given, or the kubeconfig cannot be used.
            ProviderError: the API server refuses or does not answer.
        """
        if self._provider.registry is None:
            raise ConfigError(
                "The machines of a cluster pull images from a registry: give sky.Kubernetes one that they reach, as "
                "registry='registry.example.com/team/skyward'."
            )
        sweep_orphans()
        self._api = ClusterApi(self._provider.address)
        sweep(self._api)
        return [ClaimedHost(self.start) for _ in range(self.request.fewest)]

    def prepare(self, hosts: Sequence[Host]) -> str | None:
        """Push the image to the registry unless it is there, create the pods, and wait until all of them run.

        Raises:
            ImageError: the image cannot be provided.
            ProviderError: the API server refuses, or a pod can never run.
            NodeStartError: a pod ends instead of waiting.
        """
        if self._image is not None:  # otherwise a host has been replaced
            return self._image
        self._pods, image = self._begin()
        made = self._pods.make(len(hosts))
        self._pods.wait(made)
        with self._lock:
            self.check_open()
            for host, pod in zip(hosts, made, strict=True):
                assert isinstance(host, ClaimedHost)
                host.claimed = pod
        self._image = image
        return image

    def _begin(self) -> tuple[Pods, str]:
        """Deliver the image, and create the Secrets that all pods need."""
        from skyward.delivery.deliver import ImageTarget, deliver

        provider, request, api, pool = self._provider, self.request, self._api, self.request.pool_id
        assert api
        target = ImageTarget(engine=find_engine(), registry=provider.registry)
        delivered = deliver(request.image, request.cluster, target, request.report)
        with self._lock:
            self.check_open()
            self._reaper = Reaper(provider, pool)
            owner = api.create("secret", documents.owner_secret(pool, ProcessId.of(os.getpid())))
            pull = ""
            if delivered.auth:
                owned = documents.owner_reference(owner)
                secret = documents.pull_secret(pool, delivered.auth, delivered.reference, owned)
                pull = str(api.create("secret", secret)["metadata"]["name"])
        user = provider.user
        wanted = documents.PodRequest(
            request=request,
            provider=provider,
            image=delivered.reference,
            user=_numbers(user) if user else _user_of(delivered.user),
            inside=api.is_inside,
            pull_secret=pull,
        )
        return Pods(api, wanted, owner, provider.room_s, request.report, self.ended), delivered.reference

    def replace(self, lost: Host | None) -> Host:
        """Delete the lost pod and create a new one, which avoids the machine if that was lost too.

        Raises:
            ProviderError: the API server refuses, or the pod can never run.
            NodeStartError: the pod ends instead of waiting.
            PoolClosedError: the pool has ended, or another client has ended it.
        """
        with self._lock:
            self.check_open()
            pods = self._pods
        if pods is None:
            raise PoolClosedError(f"Pool {self.request.pool_id} has not begun, and cannot replace a node.")
        if not pods.exists():
            raise PoolClosedError(f"Pool {self.request.pool_id} was ended by another client: its Secret is gone.")
        if isinstance(lost, ClaimedHost) and lost.claimed is not None:
            self._give_up(pods, lost)
        (made,) = pods.make(1)
        try:
            pods.wait([made])
        except ProviderError:
            pods.give_up(made)
            raise
        with self._lock:
            self.check_open()
        return ClaimedHost(self.start, made)

    def _give_up(self, pods: Pods, lost: ClaimedHost[Pod]) -> None:
        """Delete a lost pod, and avoid its machine if the cluster considers the pod running but it does not answer."""
        pod, process = lost.claimed, lost.process
        assert pod
        if process is not None and process.is_lost and pods.is_machine_lost(pod):
            pods.avoid(pod.machine)
            self.request.report(note(f"{pod.machine} is avoided: {pod.name} was lost with it"))
        pods.give_up(pod)

    def start(self, host: ClaimedHost[Pod], launch: Launch) -> RunnerNode:
        """Turn the pod into the node."""
        with self._lock:
            self.check_open()
            assert self._pods and host.claimed
            host.process = PodProcess(self._pods, host.claimed, launch)
            return RunnerNode(launch, host.process)

    def release(self) -> None:
        """Remove the pods and Secrets; the reaper continues with what could not be removed.

        Raises:
            ProviderError: the API server refuses or does not answer; the pods' leases end them.
        """
        with self._lock:  # waits for a thread that is creating them
            api, pods, reaper = self._api, self._pods, self._reaper
        with ExitStack() as last:
            if api is not None:
                last.callback(api.close)
                if pods is not None:
                    pods.close()
                if reaper is not None:
                    reaper.relieve(lambda: clear(api, self.request.pool_id))


def _numbers(user: str) -> tuple[int, int]:
    number, _, group = user.partition(":")
    return int(number), int(group or number)


def _user_of(image_user: str) -> tuple[int, int]:
    """Return the numbers of an image's user; skyward's unprivileged user if the image sets none, or root.

    Raises:
        ConfigError: the image sets the user by name.
    """
    if image_user.partition(":")[0] in ("", "0", "root"):
        return ACCOUNT_ID, ACCOUNT_ID
    if not _USER.fullmatch(image_user):
        raise ConfigError(
            f"The image runs as {image_user!r}, and a cluster takes numbers alone. Give sky.Kubernetes the number as "
            "user='1000:1000'."
        )
    return _numbers(image_user)


# objects of pools in a namespace, found and removed by label, whichever client created them -------------------------


def clear(api: ClusterApi, pool: str) -> None:
    """Remove a pool's Secrets and pods. Idempotent.

    The Secret that owns the others is removed first: its absence shows the pool's client that nothing may be created
    any more, and the cluster's garbage collector removes what this process does not.

    Raises:
        ProviderError: the API server refuses or does not answer.
    """
    label = f"{POOL}={pool}"
    for kind in ("pool", "pull", "pod"):
        for secret in api.listed("secret", f"{label},{KIND}={kind}"):
            api.delete("secret", secret["metadata"]["name"])
    while pods := api.listed("pod", label):
        for pod in pods:
            # the machine kills the pod at once, and a lost machine is not waited for: no name is used again
            api.delete("pod", pod["metadata"]["name"])
        time.sleep(_LOOK_S)


def sweep(api: ClusterApi) -> None:
    """Remove pools whose pods have all ended some time ago by their lease, and pools without pods.

    Raises:
        ProviderError: the API server refuses or does not answer.
    """
    pods: dict[str, list[Document]] = {}
    for pod in api.listed("pod", POOL):
        pods.setdefault(pod["metadata"]["labels"][POOL], []).append(pod)
    owners = {each["metadata"]["labels"][POOL]: each for each in api.listed("secret", f"{POOL},{KIND}=pool")}
    for pool in {*owners, *pods}:
        last = [_last_change(each) for each in (*pods.get(pool, ()), *filter(None, [owners.get(pool)]))]
        if None not in last and all(age > _FRESH_S for age in last if age is not None):
            clear(api, pool)


def described(api: ClusterApi) -> Iterator[Resource]:
    """Yield all pools' resources in the format of `Provider.find`: pods, and the Secrets of pools without pods.

    Raises:
        ProviderError: the API server refuses or does not answer.
    """
    pods = api.listed("pod", POOL)
    living = {pod["metadata"]["labels"][POOL] for pod in pods}
    secrets = [each for each in api.listed("secret", POOL) if each["metadata"]["labels"][POOL] not in living]
    for document in (*pods, *secrets):
        about, spec = document["metadata"], document.get("spec", {})
        notes = about.get("annotations") or {}
        phase = document.get("status", {}).get("phase", "secret")
        yield Resource(
            pool=about["labels"][POOL],
            node=int(about["labels"].get(NODE, "-1")),
            name=about["name"],
            state="ending" if about.get("deletionTimestamp") else str(phase).lower(),
            owner=notes.get(OWNER, ""),
            user=notes.get(USER, ""),
            image=str(spec["containers"][0]["image"]) if spec else "",
            id=about["uid"],
            host=str(spec.get("nodeName", "")),
        )


def _last_change(document: Document) -> float | None:
    """Return the seconds since a pod ended, or since a Secret was created; None for a pod that has not ended."""
    status, moment = document.get("status", {}), document["metadata"]["creationTimestamp"]
    if document.get("kind") == "Pod" or "phase" in status:
        if status.get("phase") not in ("Succeeded", "Failed"):
            return None
        containers = status.get("containerStatuses", ())
        ends = (each.get("state", {}).get("terminated", {}).get("finishedAt") or "" for each in containers)
        moment = max(ends, default="") or moment
    return (datetime.now(UTC) - datetime.fromisoformat(moment[:19]).replace(tzinfo=UTC)).total_seconds()
