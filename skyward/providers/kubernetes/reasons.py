"""Sentences on why a pod does not start and how one has ended, from what the API server says of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from skyward.errors import NodeStartError, ProviderError
from skyward.nodes.node import Exit, exit_of
from skyward.providers.kubernetes.api import Document

_PULL = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_BROKEN = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_NO_START = ("StartError", "ContainerCannotRun")  # the runtime's, for a program that is not there
_GROWS = ("TriggeredScaleUp", "Nominated")  # events by which autoscalers say that a machine is on its way
_START_S = 600.0  # for a pod that has a machine: the image's way there included
_GROW_S = 900.0  # for a machine that an autoscaler has promised


def start_problem(pod: Document, events: Sequence[Document], waited_s: float, room_s: float) -> ProviderError | None:
    """Why a pod will not come; None if it may only need time.

    Args:
        pod: as the API server has it.
        events: of this pod.
        waited_s: how long it has been waited for.
        room_s: how long the cluster may have no room for it.
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
            f"The cluster has no room for the {name}: {unschedulable}. Ask for less (cpu=, memory_gb=, accelerator=, "
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
            f"The container of the {name} cannot be made on {_machine(pod)} ({reason}): {message}. `kubectl describe "
            f"{name}` says more; what patch= asks for is the usual cause."
        )
    if waited_s > _START_S:
        return ProviderError(
            f"The {name} is still {status.get('phase', 'not there')} after {waited_s:.0f} s: {waits(pod, events)}. "
            f"See `kubectl describe {name}`."
        )
    return None


def waits(pod: Document, events: Sequence[Document]) -> str:
    """What a pod that has not begun waits for, for people."""
    if unschedulable := _unschedulable(pod):
        promised = next((event for event in events if event.get("reason") in _GROWS), None)
        return f"for room ({unschedulable})" + (f"; {_text(promised['message'])}" if promised else "")
    warning = next((event for event in reversed(events) if event.get("type") == "Warning"), None)
    reason, message = _waits_for(pod)
    what = f"{reason or pod.get('status', {}).get('phase', 'new')}" + (
        f" on {place}" if (place := _machine(pod)) else ""
    )
    told = message or (_text(warning["message"]) if warning else "")
    return f"{what}: {told}" if told else what


def is_over(pod: Document | None) -> bool:
    """Whether nothing of it runs any more, or is about to end."""
    return (
        pod is None or pod["metadata"].get("deletionTimestamp") or pod["status"].get("phase") in ("Failed", "Succeeded")
    )


def how_ended(pod: Document | None, events: Sequence[Document], code: int | None = None) -> Exit:
    """How a pod has ended, or that it is lost.

    Args:
        pod: as the API server has it; None if it has it no more.
        events: of this pod.
        code: exit status that its program has told.
    """
    status = pod.get("status", {}) if pod else {}
    container: Document = next(iter(status.get("containerStatuses", ())), {})
    ended = container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated") or {}
    if code is None and ended:
        code = ended.get("exitCode")
    by_event = {event.get("reason"): _text(event.get("message", "")) for event in events}
    if status.get("reason") == "Evicted" or "Evicted" in by_event:
        why = _text(status.get("message") or by_event.get("Evicted", ""))
        text = f"was evicted by its machine: {why}. Ask for what it uses with memory_gb=, or use less"
        return Exit(code=code, text=text)
    if ended.get("reason") == "OOMKilled":
        text = "was killed because it used more memory than it may (OOMKilled). Ask for more with memory_gb="
        return Exit(code=code, signal=9, oom=True, text=text)
    if ended.get("reason") in _NO_START:
        return Exit(code=code, text=f"could not be started ({_text(ended.get('message', ''))})")
    if "Preempted" in by_event:
        text = f"was preempted for a pod of higher priority ({by_event['Preempted']}). Name a class with priority="
        return Exit(code=code, text=text)
    if "TaintManagerEviction" in by_event:
        return Exit(code=code, text=f"was removed from its machine {_machine(pod)}, which is lost or is to be empty")
    if (why := _disruption(status)) or pod is None or pod["metadata"].get("deletionTimestamp"):
        told = why or "kubectl delete, or a machine that is drained"
        return Exit(code=code, text=f"was deleted by somebody else ({told})")
    if code is not None:
        return exit_of(code)
    if _is_unready(status):
        return Exit(code=None, text=f"is lost: the cluster says that its machine {_machine(pod)} is not ready")
    return Exit(code=None, text=f"is lost: its connection to {_machine(pod)} ended")


def _disruption(status: Document) -> str:
    """Why the cluster has deleted a pod, where it tells (from 1.26 on)."""
    found = next((each for each in status.get("conditions", ()) if each.get("type") == "DisruptionTarget"), None)
    return f"{found.get('reason')}: {_text(found.get('message', ''))}" if found else ""


def _is_unready(status: Document) -> bool:
    running = any("running" in each.get("state", {}) for each in status.get("containerStatuses", ()))
    ready: Document = next((each for each in status.get("conditions", ()) if each.get("type") == "Ready"), {})
    return running and ready.get("status") == "False"


def _unschedulable(pod: Document) -> str:
    """The scheduler's words for having no machine for a pod; "" if it has not said that."""
    for condition in pod.get("status", {}).get("conditions", ()):
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return _text(condition.get("message", ""))
    return ""


def _waits_for(pod: Document) -> tuple[str, str]:
    """Reason and message of a container that waits."""
    for container in pod.get("status", {}).get("containerStatuses", ()):
        if waiting := container.get("state", {}).get("waiting"):
            return str(waiting.get("reason", "")), _text(waiting.get("message", ""))
    return "", ""


def _is_final(message: str) -> bool:
    """Whether a registry's refusal will not change by asking again."""
    return any(word in message.lower() for word in ("not found", "unauthorized", "denied", "forbidden", "no match"))


def _machine(pod: Document | None) -> str:
    return str(pod["spec"].get("nodeName", "")) if pod else ""


def _text(message: object) -> str:
    return " ".join(str(message).split()).rstrip(".")
