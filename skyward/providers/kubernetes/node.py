"""A node in a pod: told what to be, reached, asked after when it is gone; and the way in for other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from skyward.errors import ProviderError, SkywardError
from skyward.model.resource import Resource
from skyward.nodes.access import SESSION, NodeAccess
from skyward.nodes.claimed import ClaimedProcess
from skyward.nodes.container import COMMAND
from skyward.nodes.node import Exit, Launch, exit_of
from skyward.providers.kubernetes import reasons
from skyward.providers.kubernetes.api import ClusterApi
from skyward.providers.kubernetes.channels import STATUS, STDERR, ChannelSocket, execute
from skyward.providers.kubernetes.pods import Pod, Pods
from skyward.system import socket, threading, time

_REASON_S = 3.0  # how long the cluster may take to tell how a pod has ended
_LOOK_S = 0.2
_KILLED = 137
_CHUNK = 1 << 16
_LAST_CHARS = 4000


class PodProcess(ClaimedProcess):
    """A runner in a pod.

    Args:
        pods: those of the pool.
        pod: the pod, claimed.
        launch: what it is to be.

    Raises:
        ProviderError: the pod has ended.
    """

    def __init__(self, pods: Pods, pod: Pod, launch: Launch) -> None:
        assert pod.claim
        self._pods, self._pod = pods, pod
        pods.name_node(pod, launch.node)
        super().__init__(launch, pod.claim, f"pod {pod.name} on {pod.machine}")

    def dial(self, address: str) -> socket.socket:
        """A socket that leads, encrypted, to an address that the runner announced."""
        return self._pods.connect(self._pod, address)

    def how_lost(self) -> Exit:
        """What the cluster knows of a pod that has not told its end."""
        return self._ask(None)

    def how_exited(self, code: int) -> Exit:
        """How it ended; that it was evicted, or used too much memory, only the cluster knows."""
        return self._ask(code) if code == _KILLED or code == 0 or code > 128 else exit_of(code)

    def _ask(self, code: int | None) -> Exit:
        deadline = time.monotonic() + _REASON_S
        try:
            while True:
                document, events = self._pods.state(self._pod)
                if reasons.is_over(document) or time.monotonic() > deadline or code not in (None, _KILLED):
                    return reasons.how_ended(document, events, code)
                time.sleep(_LOOK_S)
        except ProviderError as error:
            return Exit(code=code, text=f"is lost: its connection ended, and the cluster cannot be asked ({error})")


class PodAccess(NodeAccess):
    """Into a pod, by a program that the API server starts there.

    Args:
        node: as `Provider.find` lists it.
        api: the way to the cluster.
        close: ends what leads there.
    """

    def __init__(self, node: Resource, api: ClusterApi, close: Callable[[], None]) -> None:
        super().__init__(node, f"pod {node['name']}", close)
        self._api, self._name = api, node["name"]

    def open_session(self) -> _PodStream:
        """Start the program; raises ProviderError if the API server refuses."""
        return _PodStream(*execute(self._api, self._name, (COMMAND[0], *SESSION)))

    def loss_reason(self) -> str:
        """Whether the pod has ended, or the cluster cannot be asked."""
        try:
            document = self._api.get("pods", self._name)
        except SkywardError as error:
            return f"is gone: {str(error).rstrip('.')}"
        return reasons.how_ended(document, []).text if reasons.is_over(document) else ""


class _PodStream:
    """The standard streams of a program in a pod."""

    def __init__(self, sock: socket.socket, channels: ChannelSocket) -> None:
        self._sock, self._channels = sock, channels
        self._lock, self._closed = threading.Lock(), False

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def received(self) -> Iterator[bytes]:
        with suppress(OSError):  # closed while it was read
            while data := self._sock.recv(_CHUNK):
                yield data

    def said(self) -> str:
        told = self._channels.others.get(STDERR) or self._channels.others.get(STATUS) or b""
        return bytes(told[-_LAST_CHARS:]).decode(errors="replace").strip()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with suppress(OSError):  # it has ended
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
