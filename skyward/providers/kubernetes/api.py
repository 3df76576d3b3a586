"""The part of a cluster's API that this provider uses: one namespace, documents in JSON, errors as sentences.

Streams into a pod, for port forwarding and programs, are WebSockets with channels: a message consists of one byte for
its channel and the content. This is the protocol of the kubelet's streaming server, `v4.channel.k8s.io`, which is not
documented.

The package `kubernetes` handles everything in a kubeconfig (certificates, tokens, programs that create them) except
`proxy-url`; its import takes 0.4 s, and is therefore delayed until the first pool is opened.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import ssl
import struct
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from skyward.errors import ConfigError, ProviderError
from skyward.nodes.run_directory import private_directory
from skyward.system import socket, threading
from skyward.wire.tls import splice

Document = Mapping[str, Any]
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # a pod's own credentials
_CONNECT_S, _READ_S = 5.0, 15.0  # the second is between two packets
_UNKNOWN_USER, _FORBIDDEN, _GONE = 401, 403, 404
STDIN, STDOUT, STDERR, STATUS = range(4)  # channels of a WebSocket; frames are below
_FINAL, _BINARY, _CLOSE, _PING, _PONG = 0x80, 2, 8, 9, 10
_SHORT, _LONG = 126, 127
_NO_MASK = bytes(4)  # masks protect proxies from chosen plain text; this content is inside TLS, or typed by the user
_CHUNK = 1 << 16


class NotFoundError(ProviderError):
    """The requested object does not exist."""


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
            from kubernetes.client.rest import RESTClientObject
        except ImportError as error:
            raise ConfigError(
                "sky.Kubernetes speaks with the API server through the package kubernetes: "
                "`pip install 'skyward[kubernetes]'`."
            ) from error
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
                config.load_kube_config(
                    file,
                    address.context,
                    configuration,
                    persist_config=False,
                    temp_file_path=str(_certificates()),
                )
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
        self.url = str(configuration.host)
        self._pool = RESTClientObject(configuration).pool_manager  # from urllib3, with certificates and proxies
        self._configuration = configuration

    def _renew(self, used: object) -> None:
        """Read the credentials again unless that has been done since `used`: tokens and certificates expire."""
        with self._lock:
            try:
                if self._configuration is used:
                    self._load()
            except ConfigError as error:
                raise ProviderError(
                    f"{self.url} no longer accepts these credentials, and there are no others: {error}"
                ) from error

    @property
    def kubectl_options(self) -> list[str]:
        """The options that make kubectl use this cluster and namespace."""
        address = self._address
        found = {"kubeconfig": address.kubeconfig, "context": address.context, "namespace": address.namespace}
        return [f"--{name}={value}" for name, value in found.items() if value]

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    # documents -------------------------------------------------------------------------------------------------

    def create(self, kind: str, document: Document) -> Document:
        """Create an object in the namespace; `kind` is "pods" or "secrets"."""
        made: Document = self._call("POST", kind, body=document)
        return made

    def get(self, kind: str, name: str) -> Document | None:
        """Return an object; None if there is none of that name."""
        try:
            found: Document = self._call("GET", f"{kind}/{name}")
        except NotFoundError:
            return None
        return found

    def listed(self, kind: str, labels: str = "", fields: str = "") -> Sequence[Document]:
        """Return the objects with these labels and field values."""
        query = {"labelSelector": labels, "fieldSelector": fields}
        found: Sequence[Document] = self._call("GET", kind, query={k: v for k, v in query.items() if v})["items"]
        return found

    def patch(self, kind: str, name: str, change: Document) -> None:
        """Merge a change into an object."""
        self._call("PATCH", f"{kind}/{name}", body=change, content="application/merge-patch+json")

    def delete(self, kind: str, name: str, grace_s: int | None = None) -> None:
        """Delete an object; do nothing if it does not exist."""
        options: dict[str, Any] = {"propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            self._call("DELETE", f"{kind}/{name}", body=options)
        except NotFoundError:
            return

    def log(self, pod: str, lines: int = 20) -> str:
        """Return the last lines that a pod has printed; "" if they are not available."""
        try:
            said: bytes = self._call("GET", f"pods/{pod}/log", query={"tailLines": lines}, parsed=False)
            return said.decode(errors="replace").strip()
        except ProviderError:
            return ""  # its container was never created, or its machine is lost

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Document | None = None,
        content: str = "application/json",
        parsed: bool = True,
    ) -> Any:
        url = f"{self.url}/api/v1/namespaces/{self.namespace}/{path}"
        url = f"{url}?{urlencode(query)}" if query else url
        data = None if body is None else json.dumps(body).encode()
        used = self._configuration
        answer = self._answer(method, url, data, content)
        if answer.status == _UNKNOWN_USER:
            self._renew(used)
            answer = self._answer(method, url, data, content)
        if not 200 <= answer.status < 300:
            raise self._refusal(method, path, answer.status, _message(answer))
        return json.loads(answer.data) if parsed else answer.data

    def _answer(self, method: str, url: str, data: bytes | None, content: str) -> Any:
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError

        headers = {"Accept": "application/json, */*", "Content-Type": content, **self._credentials()}
        try:
            return self._pool.request(
                method, url, body=data, headers=headers, timeout=Timeout(connect=_CONNECT_S, read=_READ_S)
            )
        except (HTTPError, OSError) as error:
            raise ProviderError(
                f"The API server at {self.url} does not answer ({_last_cause(error)}). Check that it runs and that "
                "this machine reaches it: `kubectl version`."
            ) from error

    def _credentials(self) -> dict[str, str]:
        """Return the header with the user's token, which the kubeconfig's program may renew; empty for certificates."""
        found = self._configuration.auth_settings().get("BearerToken")
        return {found["key"]: found["value"]} if found and found["value"] else {}

    def _refusal(self, method: str, path: str, status: int, message: str) -> ProviderError:
        """Return the error for an answer of the API server other than success, with advice."""
        if status == _GONE:
            return NotFoundError(f"There is no {path} in namespace {self.namespace} of {self.url}: {message}.")
        if status == _FORBIDDEN and "exceeded quota" in message:
            return ProviderError(
                f"The quota of namespace {self.namespace} has no room: {message}. Ask for less (nodes=, cpu=, "
                "memory_gb=), delete what is not needed, or have the quota raised: `kubectl describe quota`."
            )
        if status == _FORBIDDEN and "violates PodSecurity" in message:
            return ProviderError(
                f"Namespace {self.namespace} refuses the pod: {message}. Nodes keep the restricted profile unless "
                "patch= or user= of sky.Kubernetes ask for more; leave those out."
            )
        if status == _FORBIDDEN and "is forbidden: User" in message:
            return ProviderError(
                f"This user lacks a right that a pool needs in namespace {self.namespace}: {message}. "
                "docs/kubernetes.md has the Role to grant (Permissions)."
            )
        if status == _UNKNOWN_USER:
            return ProviderError(
                f"The API server at {self.url} does not know this user: {message}. Log in again; `kubectl auth whoami` "
                "shows who is logged in."
            )
        return ProviderError(f"The API server at {self.url} refuses {method} {path}: {message}.")

    # websockets ------------------------------------------------------------------------------------------------

    def websocket(self, path: str, query: Sequence[tuple[str, str]]) -> Any:
        """Open a WebSocket to a subresource of a pod that uses the protocol of channels.

        Raises:
            ProviderError: the server refuses or cannot be reached.
        """
        from websocket import WebSocketBadStatusException, WebSocketException

        base = self.url.replace("http", "ws", 1)
        url = f"{base}/api/v1/namespaces/{self.namespace}/{path}?{urlencode(query)}"
        used = self._configuration
        try:
            try:
                return self._websocket(url)
            except WebSocketBadStatusException as refusal:
                if refusal.status_code != _UNKNOWN_USER:
                    raise
                self._renew(used)
                return self._websocket(url)
        except (WebSocketException, OSError) as error:
            raise ProviderError(
                f"The API server at {self.url} opens no connection to {path}: {_first_line(error)}."
            ) from error

    def _websocket(self, url: str) -> Any:
        from kubernetes.stream.ws_client import create_websocket

        headers = {"sec-websocket-protocol": "v4.channel.k8s.io", **self._credentials()}
        return create_websocket(self._configuration, url, headers)


@functools.cache
def _certificates() -> Path:
    """Return the directory of this process in which the library writes inline certificates of a kubeconfig.

    The library caches by content what it has written, for all callers, and each connection reads the files.
    """
    last = ExitStack()
    atexit.register(last.close)
    return last.enter_context(private_directory())


def _message(answer: Any) -> str:
    try:
        text = json.loads(answer.data)["message"]
    except (ValueError, KeyError, TypeError):
        text = f"status {answer.status} {answer.reason}"
    return " ".join(str(text).split()).rstrip(".")


def _last_cause(error: BaseException) -> str:
    reason = getattr(error, "reason", None)
    return _first_line(reason if isinstance(reason, BaseException) else error)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


# streams into a pod -------------------------------------------------------------------------------------------------


class ChannelSocket:
    """The socket of a WebSocket as one byte stream: it sends to channel 0, and receives from one channel.

    It implements the part of a TLS socket's interface that `skyward.wire.tls.splice` uses.

    Args:
        sock: the connected socket, after the WebSocket's handshake.
        channel: the channel to receive.
        skipped: number of bytes at the start of each channel that are not content.
    """

    def __init__(self, sock: Any, channel: int, skipped: int = 0) -> None:
        self._sock, self._channel, self._skip = sock, channel, skipped
        self._arrived = bytearray()  # unparsed bytes of frames
        self._ready = bytearray()  # content not yet read
        self._begun: set[int] = set()
        self._sending, self._count = b"", 0  # a partly sent frame, and the number of its content bytes
        self._pongs = b""
        self.others: dict[int, bytearray] = {}  # content of the other channels

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
            elif content:
                self._take(content[0], content[1:])
        return True

    def _take(self, channel: int, content: bytes) -> None:
        if channel not in self._begun:
            self._begun.add(channel)
            content = content[self._skip :]
        if channel == self._channel:
            self._ready += content
        else:
            self.others.setdefault(channel, bytearray()).extend(content)


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


def forward(api: ClusterApi, pod: str, port: int) -> socket.socket:
    """Return a socket to a port on a pod's loopback. If nothing is listening there, reading shows that.

    Raises:
        ProviderError: the API server refuses, or cannot be reached.
    """
    websocket = api.websocket(f"pods/{pod}/portforward", [("ports", str(port))])
    channels = ChannelSocket(websocket.sock, 0, skipped=2)  # the two bytes are the port's number
    near, far = socket.socketpair()
    threading.Thread(target=splice, args=(far, channels), name=f"{pod}-forward", daemon=True).start()
    return near
