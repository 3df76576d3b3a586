"""The part of a cluster's API that this provider uses: one namespace, documents in JSON, errors as sentences.

The package `kubernetes` handles everything in a kubeconfig (certificates, tokens, programs that create them) except
`proxy-url`; its import takes 0.4 s, and is therefore delayed until the first pool is opened. Its own port forwarding
waits with select(2), which fails above 1,024 open files, and masks every byte in Python, hence `ChannelSocket`.
"""

from __future__ import annotations

import json
import os
import ssl
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from skyward.errors import ConfigError, ProviderError
from skyward.system import socket, threading
from skyward.wire.tls import splice

Document = Mapping[str, Any]
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # a pod's own credentials
_TIMEOUT_S = (5.0, 15.0)  # to connect, and between two packets
_UNKNOWN_USER, _GONE = 401, 404
_ADVICE = {  # part of the API server's refusal, and what to do
    "exceeded quota": "Request less (nodes=, cpu=, memory=), or see `kubectl describe quota`.",
    "violates PodSecurity": "Leave out patch= and user= of sky.Kubernetes: other pods keep the restricted profile.",
    "is forbidden: User": "docs/kubernetes.md has the Role to grant (Permissions).",
    "Unauthorized": "Log in again; `kubectl auth whoami` shows who is logged in.",
}
_FINAL, _BINARY, _CLOSE, _PING, _PONG = 0x80, 2, 8, 9, 10  # frames of a WebSocket
_SHORT, _LONG = 126, 127
_NO_MASK = bytes(4)  # masks protect proxies from chosen plain text; this content is inside TLS
_PORT_BYTES = 2  # at the start of each channel
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """A cluster and a namespace in it.

    Attributes:
        context: context of the kubeconfig; None for its current one, or for the cluster that this process runs in.
        namespace: None for that of the context, or of the pod that this process runs in.
        kubeconfig: the kubeconfig file; None for the one in `KUBECONFIG`, else `~/.kube/config`.
    """

    context: str | None = None
    namespace: str | None = None
    kubeconfig: Path | None = None

    @property
    def name(self) -> str:
        """A description for messages."""
        return f"Kubernetes ({self.context or 'the current context'})"

    @property
    def is_inside(self) -> bool:
        """Whether this process runs in a pod of the cluster itself, and so can connect to the addresses of pods."""
        named = self.context or self.kubeconfig or os.environ.get("KUBECONFIG")
        return not named and "KUBERNETES_SERVICE_HOST" in os.environ and (_ACCOUNT / "token").exists()


class ClusterApi:
    """Connections to an API server. When it rejects credentials, they are read again once.

    Args:
        address: the cluster's address.

    Raises:
        ConfigError: the client library is not installed, or the kubeconfig cannot be used.
    """

    def __init__(self, address: ClusterAddress) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._load()

    def _load(self) -> None:
        """Read the kubeconfig, and run the program that it specifies for credentials."""
        address = self._address
        try:
            from kubernetes import client, config
        except ImportError as error:
            raise ConfigError("sky.Kubernetes needs `pip install 'skyward[kubernetes]'`.") from error
        self.is_inside = address.is_inside
        configuration = client.Configuration()
        namespace, context = "", None
        try:
            if self.is_inside:
                config.load_incluster_config(client_configuration=configuration)
                namespace = (_ACCOUNT / "namespace").read_text().strip()
            else:
                # the library reads the variable only once, when it is imported
                file = str(address.kubeconfig) if address.kubeconfig else os.environ.get("KUBECONFIG") or None
                config.load_kube_config(file, address.context, configuration, persist_config=False)
                contexts, current = config.list_kube_config_contexts(file)
                named = next((each for each in contexts if each["name"] == address.context), current)
                namespace, context = named["context"].get("namespace", ""), named["name"]
        except (config.ConfigException, OSError) as error:
            raise ConfigError(
                f"No Kubernetes cluster is configured: {str(error).rstrip('.')}. Name a kubeconfig with "
                "sky.Kubernetes(kubeconfig=...) or KUBECONFIG, and one of its contexts with context=."
            ) from error
        self.namespace = address.namespace or namespace or "default"
        self._address = replace(address, context=context, namespace=self.namespace)  # even if another becomes current
        self._configuration = configuration
        self._core = client.CoreV1Api(client.ApiClient(configuration))

    @property
    def kubectl_options(self) -> list[str]:
        """The options that make kubectl use this cluster and namespace."""
        address = self._address
        found = {"kubeconfig": address.kubeconfig, "context": address.context, "namespace": address.namespace}
        return [f"--{name}={value}" for name, value in found.items() if value]

    def close(self) -> None:
        """Close the connections."""
        self._core.api_client.rest_client.pool_manager.clear()

    def create(self, kind: str, document: Document) -> Document:
        """Create an object in the namespace; `kind` is "pod" or "secret"."""
        made: Document = json.loads(self._call(f"create_namespaced_{kind}", body=document))
        return made

    def get(self, kind: str, name: str) -> Document | None:
        """Return an object; None if there is none of that name."""
        said = self._call(f"read_namespaced_{kind}", name=name)
        return json.loads(said) if said else None

    def listed(self, kind: str, labels: str = "", fields: str = "") -> Sequence[Document]:
        """Return the objects with these labels and field values."""
        said = self._call(f"list_namespaced_{kind}", label_selector=labels, field_selector=fields)
        found: Sequence[Document] = json.loads(said)["items"]
        return found

    def patch(self, kind: str, name: str, change: Document) -> None:
        """Merge a change into an object."""
        self._call(f"patch_namespaced_{kind}", name=name, body=change)

    def delete(self, kind: str, name: str) -> None:
        """Delete an object at once, without waiting for its machine; do nothing if it does not exist."""
        self._call(
            f"delete_namespaced_{kind}", name=name, body={"propagationPolicy": "Background", "gracePeriodSeconds": 0}
        )

    def log(self, pod: str, lines: int = 20) -> str:
        """Return the last lines that a pod has printed; "" if they are not available."""
        try:
            return self._call("read_namespaced_pod_log", name=pod, tail_lines=lines).decode(errors="replace").strip()
        except ProviderError:
            return ""  # its container was never created, or its machine is lost

    def _call(self, method: str, **settings: Any) -> bytes:
        """Call a method of the client library; return the answer, b"" if the object to read or delete does not exist.

        Raises:
            ProviderError: the API server refuses or does not answer.
        """
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        def ask() -> bytes:
            call = getattr(self._core, method)
            answer = call(namespace=self.namespace, _preload_content=False, _request_timeout=_TIMEOUT_S, **settings)
            content: bytes = answer.data
            return content

        try:
            found: bytes = self._retried(ask, ApiException)
            return found
        except ApiException as refusal:
            if refusal.status == _GONE and method.startswith(("read", "delete")):
                return b""
            text = _message(refusal)
            advice = next((advice for part, advice in _ADVICE.items() if part in text), "")
            where = f"The API server at {self._configuration.host} refuses {method} in namespace {self.namespace}"
            raise ProviderError(f"{where}: {text}. {advice}".rstrip()) from refusal
        except (HTTPError, OSError) as error:
            raise self._silence(error) from error

    def _retried(self, ask: Callable[[], Any], refusal: type[Exception]) -> Any:
        """Ask, and ask again with credentials read anew if the API server rejects those of now: they expire."""
        used = self._core
        try:
            return ask()
        except refusal as error:
            if _UNKNOWN_USER not in (getattr(error, "status", 0), getattr(error, "status_code", 0)):
                raise
            with self._lock:
                if self._core is used:
                    self._load()
            return ask()

    def _silence(self, error: BaseException) -> ProviderError:
        cause = getattr(error, "reason", None)
        text = str(cause if isinstance(cause, BaseException) else error).partition("\n")[0].rstrip(".")
        return ProviderError(
            f"The API server at {self._configuration.host} does not answer ({text}). Check that it runs and that this "
            "machine reaches it: `kubectl version`."
        )

    def forward(self, pod: str, port: int) -> socket.socket:
        """Return a socket to a port on a pod's loopback. If nothing is listening there, reading shows that.

        Raises:
            ProviderError: the API server refuses, or cannot be reached.
        """
        from kubernetes.stream.ws_client import create_websocket
        from websocket import WebSocketBadStatusException, WebSocketException

        def connect() -> Any:
            settings = self._configuration
            token = settings.auth_settings().get("BearerToken") or {"value": ""}  # none for certificates
            headers = {"sec-websocket-protocol": "v4.channel.k8s.io"}
            headers |= {"authorization": token["value"]} if token["value"] else {}
            base = settings.host.replace("http", "ws", 1)
            path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/portforward?ports={port}"
            return create_websocket(settings, base + path, headers).sock

        try:
            sock = self._retried(connect, WebSocketBadStatusException)
        except (WebSocketException, OSError) as error:
            raise self._silence(error) from error
        near, far = socket.socketpair()
        channels = ChannelSocket(sock)
        threading.Thread(target=splice, args=(far, channels), name=f"{pod}-forward", daemon=True).start()
        return near


def _message(refusal: Any) -> str:
    try:
        text = json.loads(refusal.body)["message"]
    except (ValueError, KeyError, TypeError):
        text = f"status {refusal.status} {refusal.reason}"
    return " ".join(str(text).split()).rstrip(".")


class ChannelSocket:
    """The socket of a port forwarding's WebSocket as one byte stream.

    A message consists of one byte for its channel and the content: 0 for data, 1 for errors. This is the protocol of
    the kubelet's streaming server, `v4.channel.k8s.io`, which is not documented. The class implements the part of a TLS
    socket's interface that `skyward.wire.tls.splice` uses.

    Args:
        sock: the connected socket, after the WebSocket's handshake.
    """

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._arrived = bytearray()  # unparsed bytes of frames
        self._ready = bytearray()  # content not yet read
        self._skip = _PORT_BYTES
        self._sending, self._count = b"", 0  # a partly sent frame, and the number of its content bytes
        self._pongs = b""

    def fileno(self) -> int:
        """Return the file descriptor, for poll(2)."""
        number: int = self._sock.fileno()
        return number

    def setblocking(self, flag: bool) -> None:
        """Set the blocking mode, as for sockets."""
        self._sock.setblocking(flag)

    def recv_into(self, space: memoryview) -> int:
        """Receive content; return 0 at its end. Raises the socket's exception if none is available now."""
        while not self._ready:
            data = self._sock.recv(_CHUNK)
            self._arrived += data
            if not data or not self._unpack():
                return 0
        count = min(len(space), len(self._ready))
        space[:count] = self._ready[:count]
        del self._ready[:count]
        return count

    def send(self, content: memoryview) -> int:
        """Send content; return the number of bytes accepted. After a partial send, the same content must be resent."""
        if not self._sending:
            part = bytes(content[:_CHUNK])
            self._sending = self._pongs + _frame(_BINARY, b"\0" + part)
            self._count, self._pongs = len(part), b""
        while self._sending:
            self._sending = self._sending[self._sock.send(self._sending) :]
        return self._count

    def unwrap(self) -> None:
        """Send the closing frame, if that does not block."""
        self._sock.send(_frame(_CLOSE, b""))
        if isinstance(self._sock, ssl.SSLSocket):
            self._sock.unwrap()

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def _unpack(self) -> bool:
        """Process the complete frames that have arrived; return False if the other end has closed the WebSocket."""
        while len(self._arrived) >= 2:
            kind, length = self._arrived[0] & 0x0F, self._arrived[1] & 0x7F
            head = {_SHORT: 4, _LONG: 10}.get(length, 2)
            if len(self._arrived) < head:
                return True
            if length >= _SHORT:
                (length,) = struct.unpack_from("!H" if length == _SHORT else "!Q", self._arrived, 2)
            if len(self._arrived) < head + length:
                return True
            content = bytes(self._arrived[head : head + length])
            del self._arrived[: head + length]
            if kind == _CLOSE:
                return bool(self._ready)
            if kind == _PING:
                self._pongs += _frame(_PONG, content)
            elif content[:1] == b"\0":
                self._ready += content[1 + self._skip :]
                self._skip = 0
        return True


def _frame(kind: int, content: bytes) -> bytes:
    """Return a frame of a client, which must contain a mask."""
    size = len(content)
    if size < _SHORT:
        head = struct.pack("!BB", _FINAL | kind, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", _FINAL | kind, 0x80 | _SHORT, size)
    else:
        head = struct.pack("!BBQ", _FINAL | kind, 0x80 | _LONG, size)
    return head + _NO_MASK + content
