"""The pods of one pool: created, monitored until they run and answer, turned into nodes, and entered by others."""

from __future__ import annotations

import itertools
import os
import shutil
import ssl
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial

from skyward.builder.events import Report, note
from skyward.errors import NodeStartError, PoolClosedError, ProviderError, SkywardError
from skyward.model.resource import Resource
from skyward.nodes.access import SESSION, NodeAccess
from skyward.nodes.claimed import Claim, ClaimedProcess, claim, end, identities, open_through
from skyward.nodes.container import COMMAND, NODE, POOL
from skyward.nodes.node import Exit, Launch, exit_of
from skyward.nodes.process_id import ProcessId
from skyward.providers.kubernetes import documents
from skyward.providers.kubernetes.api import ClusterApi, Document
from skyward.providers.kubernetes.documents import PodRequest
from skyward.runner.entry.claimed import keep_alive, port_of
from skyward.system import socket, threading, time
from skyward.system.futures import ThreadPoolExecutor
from skyward.wire.tls import Identity

_LOOKS_S = (0.1, 1.0)  # between two queries of the pods: the first, and the longest
_EVENTS_S = 2.0  # between two queries of waiting pods' events
_SAY_AFTER_S = 3.0  # shorter waits are not reported
_ANSWER_S = 60.0  # how long a running pod may fail to answer
_AVOID_S = 90.0  # after this time the cluster has detected a lost machine itself
_DIAL_S = 10.0
_REACH_S = 3.0  # for the answer of a pod whose machine may be lost
_REASON_S, _ASK_S = 3.0, 0.2  # how long the cluster may take to report how a pod ended, and how often it is queried
_AT_ONCE = 16
_KILLED = 137


@dataclass(slots=True)
class Pod:
    """A pod of this pool.

    Attributes:
        number: its number.
        name: its name in the cluster.
        context: TLS context with the client's identity towards it.
        port: the port its program listens on.
        claim: this client's connection to it; None before it waits to become a node.
        machine: name of its machine in the cluster.
        address: its IP address.
    """

    number: int
    name: str
    context: ssl.SSLContext = field(repr=False)
    port: int
    claim: Claim | None = None
    machine: str = ""
    address: str = ""
    silent_since: float | None = None


class Pods:
    """The pods of one pool.

    Args:
        api: connection to the cluster.
        request: the settings they share.
        owner: the document of the Secret that owns them.
        room_s: seconds that the cluster may lack room for one.
        report: called with progress notes while waiting.
        ended: set when the pool has ended, which ends all waiting.
    """

    def __init__(
        self,
        api: ClusterApi,
        request: PodRequest,
        owner: Document,
        room_s: float,
        report: Report,
        ended: threading.Event,
    ) -> None:
        self._api, self._request, self._room_s, self._report, self._ended = api, request, room_s, report, ended
        self._owner, self._owned = owner["metadata"]["name"], documents.owner_reference(owner)
        self._numbers = itertools.count()
        self._lock = threading.Lock()  # guards the attributes below
        self._pods: list[Pod] = []
        self._avoided: dict[str, float] = {}  # machines that were lost, and when

    # making ----------------------------------------------------------------------------------------------------

    def make(self, count: int) -> list[Pod]:
        """Create `count` pods, each after its Secret: a pod without its Secret would wait silently.

        Raises:
            ProviderError: the API server rejected one; the message contains its error.
        """
        pool = self._request.pool
        client, theirs = identities("Kubernetes", pool, count)
        me, avoided = ProcessId.of(os.getpid()), self._avoided_now()
        pods = []
        for identity in client:
            number = next(self._numbers)
            context = identity.context(server=False)
            pods.append(Pod(number, documents.pod_name(pool, number), context, port_of(pool, number)))
        with self._lock:
            self._check_open()
            self._pods += pods

        def create(pod: Pod, identity: Identity) -> None:
            self._check_open()
            self._api.create("secret", documents.pod_secret(pool, pod.number, identity, self._owned))
            self._api.create("pod", documents.pod(self._request, pod.number, me, self._owned, avoided))

        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix=f"skyward-{pool}-make") as threads:
            list(threads.map(create, pods, theirs))
        return pods

    def avoid(self, machine: str) -> None:
        """Exclude a lost machine for pods created from now on."""
        with self._lock:
            self._avoided[machine] = time.monotonic()

    def _avoided_now(self) -> list[str]:
        now = time.monotonic()
        with self._lock:
            self._avoided = {machine: since for machine, since in self._avoided.items() if now - since < _AVOID_S}
            return list(self._avoided)

    def _check_open(self) -> None:
        if self._ended.is_set():
            raise PoolClosedError(f"Pool {self._request.pool} has ended; no pod is waited for any more.")

    # waiting ---------------------------------------------------------------------------------------------------

    def wait(self, pods: Sequence[Pod]) -> None:
        """Wait until all of these pods run and this client has claimed them.

        Raises:
            ProviderError: one can never run.
            NodeStartError: one has ended.
            PoolClosedError: the pool has ended, or another client has ended it.
        """
        began = time.monotonic()
        looked, said, events, look_s = began, "", list[Document](), _LOOKS_S[0]
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix=f"skyward-{self._request.pool}-claim") as threads:
            while missing := [pod for pod in pods if pod.claim is None]:
                found = self._look(missing)
                waited_s = time.monotonic() - began
                if time.monotonic() - looked > _EVENTS_S:
                    looked, events = time.monotonic(), list(self._api.listed("event"))
                    said = self._say(missing, found, events, said) if waited_s > _SAY_AFTER_S else said
                for pod in missing:
                    self._check(pod, found.get(pod.name), events, waited_s)
                running = [pod for pod in missing if _runs(found[pod.name])]
                list(threads.map(self._claim, running))
                if all(pod.claim for pod in pods):
                    return
                look_s = _LOOKS_S[0] if running else min(look_s * 1.2, _LOOKS_S[1])
                if self._ended.wait(look_s):
                    self._check_open()

    def _look(self, pods: Sequence[Pod]) -> dict[str, Document]:
        """Return the current documents of these pods."""
        found = {each["metadata"]["name"]: each for each in self._api.listed("pod", f"{POOL}={self._request.pool}")}
        if any(pod.name not in found for pod in pods) and not self.exists():
            raise PoolClosedError(f"Pool {self._request.pool} was ended by another client: its Secret is gone.")
        return found

    def _check(self, pod: Pod, document: Document | None, events: Sequence[Document], waited_s: float) -> None:
        """Raise the error of a pod that cannot be expected to run."""
        if document is None:
            raise NodeStartError(f"The pod {pod.name} was deleted by somebody else before it was a node.")
        pod.machine = str(document["spec"].get("nodeName", ""))
        pod.address = str(document["status"].get("podIP", ""))
        problem = documents.start_problem(document, _of(pod, events), waited_s, self._room_s)
        if isinstance(problem, NodeStartError):
            lines = self._api.log(pod.name)
            said = f"Its last lines:\n{lines}" if lines else "It printed nothing."
            raise NodeStartError(f"{problem} {said}")
        if problem is not None:
            raise problem
        if _runs(document):
            pod.silent_since = pod.silent_since or time.monotonic()
            if time.monotonic() - pod.silent_since > _ANSWER_S:
                way = "at its address" if self._request.inside else "through the API server's port forwarding"
                raise NodeStartError(
                    f"The pod {pod.name} runs on {pod.machine}, but does not answer {way} after {_ANSWER_S:g} s. "
                    f"Check network policies. Its last lines:\n{self._api.log(pod.name)}"
                )

    def _say(self, missing: Sequence[Pod], found: dict[str, Document], events: list[Document], said: str) -> str:
        """Report what is waited for, when that has changed."""
        parts = [
            f"{pod.name}: {documents.waits(found[pod.name], _of(pod, events))}" for pod in missing if pod.name in found
        ]
        text = f"waiting for pods, {'; '.join(parts)}"
        if text != said:
            self._report(note(text))
        return text

    def _claim(self, pod: Pod) -> None:
        """Claim a running pod, unless it does not answer yet."""
        with suppress(OSError, ProviderError):  # it does not listen yet
            pod.claim = claim(self._dial(pod), pod.context, f"{pod.name}-claim")

    def _dial(self, pod: Pod) -> socket.socket:
        """Return a socket that leads to a pod's program.

        Raises:
            OSError: the pod's address cannot be reached.
            ProviderError: the API server refuses the connection.
        """
        if self._request.inside:
            sock = socket.create_connection((pod.address, pod.port), _DIAL_S)
            keep_alive(sock)
            return sock
        sock = self._api.forward(pod.name, pod.port)
        sock.settimeout(_DIAL_S)
        return sock

    # reaching and ending ---------------------------------------------------------------------------------------

    def connect(self, pod: Pod, address: str) -> socket.socket:
        """Return a socket that leads to an address that a node has announced.

        Raises:
            WireError: nothing is listening there any more.
            ProviderError: the API server refuses the connection.
        """
        where = f"{address} of pod {pod.name} on {pod.machine}"
        dial = partial(self._dial, pod)
        return open_through(dial, pod.context, address, where=where, name=f"{pod.name}-{address}")

    def name_node(self, pod: Pod, node: int) -> None:
        """Record in a pod's labels which node it is, for `skyward ps`.

        Raises:
            ProviderError: the pod does not exist any more.
        """
        self._api.patch("pod", pod.name, {"metadata": {"labels": {NODE: str(node)}}})

    def state(self, pod: Pod) -> tuple[Document | None, list[Document]]:
        """Return a pod's current document, None if it no longer exists, and its events.

        Raises:
            ProviderError: the API server cannot be queried.
        """
        events = self._api.listed("event", fields=f"involvedObject.name={pod.name}")
        return self._api.get("pod", pod.name), list(events)

    def is_machine_lost(self, pod: Pod) -> bool:
        """Return whether a lost pod does not answer although the cluster considers it running.

        If only the API server was unavailable, the pod accepts a new connection.

        Raises:
            ProviderError: the API server cannot be queried.
        """
        document = self._api.get("pod", pod.name)
        if document is None or not _runs(document):
            return False
        reached = threading.Event()

        def reach() -> None:
            with (
                suppress(OSError, ProviderError),
                closing(self._dial(pod)) as sock,
                pod.context.wrap_socket(sock),
            ):
                reached.set()

        threading.Thread(target=reach, name=f"{pod.name}-reach", daemon=True).start()
        return not reached.wait(_REACH_S)

    def exists(self) -> bool:
        """Return whether the pool's own Secret exists, which is only removed when the pool ends.

        Raises:
            ProviderError: the API server cannot be queried.
        """
        return self._api.get("secret", self._owner) is not None

    def give_up(self, pod: Pod) -> None:
        """Delete a pod and its Secret at once, without waiting for its machine, which may be lost."""
        self._api.delete("pod", pod.name)
        self._api.delete("secret", pod.name)

    def close(self) -> None:
        """Tell all claimed pods to end, without waiting."""
        with self._lock:
            claims = [pod.claim for pod in self._pods if pod.claim is not None]
        for each in claims:
            end(each.session)
            each.session.close()


def _runs(document: Document) -> bool:
    about, status = document["metadata"], document["status"]
    return status.get("phase") == "Running" and bool(status.get("podIP")) and not about.get("deletionTimestamp")


def _of(pod: Pod, events: Sequence[Document]) -> list[Document]:
    return [event for event in events if event.get("involvedObject", {}).get("name") == pod.name]


class PodProcess(ClaimedProcess):
    """A runner in a pod.

    Args:
        pods: the pool's pods.
        pod: the claimed pod.
        launch: the node to start.

    Raises:
        ProviderError: the pod has ended.
    """

    def __init__(self, pods: Pods, pod: Pod, launch: Launch) -> None:
        assert pod.claim
        self._pods, self._pod = pods, pod
        pods.name_node(pod, launch.node)
        super().__init__(launch, pod.claim, f"pod {pod.name} on {pod.machine}")

    def dial(self, address: str) -> socket.socket:
        """Return an encrypted socket to an address that the runner announced."""
        return self._pods.connect(self._pod, address)

    def how_lost(self) -> Exit:
        """Return what the cluster knows about a pod that has not reported its end."""
        return self._ask(None)

    def how_exited(self, code: int) -> Exit:
        """Return how it ended; only the cluster knows whether it was evicted or exceeded its memory."""
        return self._ask(code) if code == _KILLED or code == 0 or code > 128 else exit_of(code)

    def _ask(self, code: int | None) -> Exit:
        deadline = time.monotonic() + _REASON_S
        try:
            while True:
                document, events = self._pods.state(self._pod)
                if documents.is_over(document) or time.monotonic() > deadline or code not in (None, _KILLED):
                    return documents.how_ended(document, events, code)
                time.sleep(_ASK_S)
        except ProviderError as error:
            return Exit(code=code, text=f"is lost: its connection ended, and the cluster did not answer ({error})")


class PodAccess(NodeAccess):
    """Access to a pod, by a program that the API server starts there.

    Args:
        node: the node as `Provider.find` lists it.
        api: connection to the cluster.
        close: closes the connection.
    """

    def __init__(self, node: Resource, api: ClusterApi, close: Callable[[], None]) -> None:
        super().__init__(node, f"pod {node['name']}", close)
        self._api, self._name = api, node["name"]

    def command(self, arguments: Sequence[str], *, terminal: bool = False) -> list[str]:
        """Return the `kubectl exec`. Raises ProviderError if there is no kubectl."""
        if not shutil.which("kubectl"):
            raise ProviderError("Programs in pods are started by kubectl; install it here.")
        streams = "-it" if terminal else "-i"
        words = ["kubectl", *self._api.kubectl_options, "exec", streams, self._name, "--container=node"]
        return [*words, "--", COMMAND[0], *SESSION, *arguments]

    def loss_reason(self) -> str:
        """Return how the pod ended, or that the cluster cannot be queried, to complete "Node 1 ..."; "" if neither."""
        try:
            document = self._api.get("pod", self._name)
        except SkywardError as error:
            return f"is gone: {str(error).rstrip('.')}"
        return documents.how_ended(document, []).text if documents.is_over(document) else ""
