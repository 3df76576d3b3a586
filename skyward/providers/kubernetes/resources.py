"""The pods and Secrets of pools in a namespace: found and removed by their labels, whoever made them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from skyward.model.resource import Resource
from skyward.nodes.container import NODE, OWNER, POOL
from skyward.nodes.process_id import USER
from skyward.providers.kubernetes.api import ClusterApi, Document
from skyward.providers.kubernetes.manifest import KIND
from skyward.system import time

# A machine ends the pod at once, and one that is gone is not waited for. That would be wrong for pods whose names are
# used again; these have fresh ones.
_GRACE_S = 0
_LOOK_S = 0.1
_FRESH_S = 120.0  # what is this young may belong to a pool that is just being made, or is replacing its nodes


def clear(api: ClusterApi, pool: str) -> None:
    """Remove a pool's Secrets and pods. Idempotent.

    The Secret that owns the others goes first: that it is gone tells the pool's client that nothing is to be made any
    more, and what this process does not get to remove the cluster's garbage collector does.

    Raises:
        ProviderError: the API server refuses or does not answer.
    """
    label = f"{POOL}={pool}"
    for kind in ("pool", "pull", "pod"):
        for secret in api.listed("secrets", f"{label},{KIND}={kind}"):
            api.delete("secrets", secret["metadata"]["name"])
    while pods := api.listed("pods", label):
        for pod in pods:
            api.delete("pods", pod["metadata"]["name"], grace_s=_GRACE_S)
        time.sleep(_LOOK_S)


def sweep(api: ClusterApi) -> None:
    """Remove pools whose pods have all ended some time ago by their lease, and those that have none.

    Raises:
        ProviderError: the API server refuses or does not answer.
    """
    pods: dict[str, list[Document]] = {}
    for pod in api.listed("pods", POOL):
        pods.setdefault(pod["metadata"]["labels"][POOL], []).append(pod)
    owners = {each["metadata"]["labels"][POOL]: each for each in api.listed("secrets", f"{POOL},{KIND}=pool")}
    for pool in {*owners, *pods}:
        last = [_last_change(each) for each in (*pods.get(pool, ()), *filter(None, [owners.get(pool)]))]
        if None not in last and all(age > _FRESH_S for age in last if age is not None):
            clear(api, pool)


def described(api: ClusterApi) -> Iterator[Resource]:
    """What there is of all pools, in the form of `Provider.find`: pods, and the Secrets of pools without pods.

    Raises:
        ProviderError: the API server refuses or does not answer.
    """
    living = set()
    for pod in api.listed("pods", POOL):
        about, status = pod["metadata"], pod["status"]
        living.add(about["labels"][POOL])
        yield _resource(
            pod,
            node=int(about["labels"].get(NODE, "-1")),
            state="ending" if about.get("deletionTimestamp") else str(status.get("phase", "new")).lower(),
            image=str(pod["spec"]["containers"][0]["image"]),
            host=str(pod["spec"].get("nodeName", "")),
        )
    for secret in api.listed("secrets", POOL):
        if secret["metadata"]["labels"][POOL] not in living:
            yield _resource(secret, node=-1, state="secret", image="", host="")


def _resource(document: Document, *, node: int, state: str, image: str, host: str) -> Resource:
    about = document["metadata"]
    notes = about.get("annotations") or {}
    return Resource(
        pool=about["labels"][POOL],
        node=node,
        name=about["name"],
        state=state,
        owner=notes.get(OWNER, ""),
        user=notes.get(USER, ""),
        image=image,
        id=about["uid"],
        host=host,
    )


def _last_change(document: Document) -> float | None:
    """Seconds since a pod has ended, or since a Secret was made; None for a pod that has not ended."""
    status = document.get("status", {})
    if document.get("kind") == "Pod" or "phase" in status:
        if status.get("phase") not in ("Succeeded", "Failed"):
            return None
        return _age_s(_finished(status.get("containerStatuses", ())) or document["metadata"]["creationTimestamp"])
    return _age_s(document["metadata"]["creationTimestamp"])


def _finished(containers: Sequence[Document]) -> str:
    ends = [each.get("state", {}).get("terminated", {}).get("finishedAt") or "" for each in containers]
    return max(ends, default="")


def _age_s(moment: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(moment[:19]).replace(tzinfo=UTC)).total_seconds()
