"""`Engine`: one Docker engine, its containers, and the resources it can provide.

It is independent of pools, and safe to use from several threads.
"""

from __future__ import annotations

import io
import os
import socket
import struct
import tarfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from skyward.engine.address import EngineAddress, check_alive, find_engine
from skyward.engine.container import LIMITS, Container, ContainerSpec, Watch, attach, create
from skyward.engine.failures import LimitRefusedError, engine_call
from skyward.errors import EngineError

_CALL_TIMEOUT_S = 120  # of silence from a live engine; a dead one is noticed sooner
_LEAST_API = (1, 41)  # engine 20.10
_engines: dict[tuple[str, int | None], Engine] = {}
_engines_lock = threading.Lock()


class Engine:
    """A running Docker engine.

    Attributes:
        url: its address in the form of `DOCKER_HOST`.
        product: the product name it reports; empty for a plain engine.
        is_podman: whether it is Podman's, which has the same interface.
    """

    def __init__(self, address: EngineAddress, *, is_here: bool = True) -> None:
        from docker.api.client import APIClient

        self.url, self._path, self._is_here = address.url, address.path, is_here
        with engine_call("say its version", self.url):
            with _client(APIClient, address, "1.41") as first:
                about = first.version(api_version=False)
            self.product = str((about.get("Platform") or {}).get("Name") or "")
            components = [str(each.get("Name")) for each in about.get("Components") or ()]
            self.is_podman = any(name.startswith("Podman") for name in components)
            if tuple(map(int, about["ApiVersion"].split("."))) < _LEAST_API:
                raise EngineError(
                    f"The Docker engine at {self.url} is version {about['Version']}; skyward needs 20.10 or newer."
                )
            self._api = _client(APIClient, address, about["ApiVersion"])
        self._limits = LIMITS

    @classmethod
    def connect(cls, base_url: str | None = None) -> Engine:
        """Return the engine at `base_url`, or the docker CLI's; the same object as long as that engine lives.

        Raises:
            ConfigError: the address is not one of this machine.
            EngineMissingError: no engine answers there.
        """
        address = find_engine(base_url)
        pid = _knock(address)
        with _engines_lock:
            if (address.url, pid) not in _engines:
                _engines[address.url, pid] = cls(address)
            return _engines[address.url, pid]

    @classmethod
    def at(cls, address: EngineAddress) -> Engine:
        """Return the engine of another machine at a socket here that leads to it.

        Raises:
            EngineError: it is too old.
            EngineMissingError: it does not answer.
        """
        return cls(address, is_here=False)

    @cached_property
    def is_rootless(self) -> bool:
        """Whether this client's own user runs it, so that root in a container is that user."""
        try:
            owner = self._path.stat().st_uid
        except OSError:  # its socket is another machine's
            return False
        if not self._is_here or owner == 0 or owner != os.geteuid():
            return False
        info = self.info
        return "name=rootless" in info.get("SecurityOptions", ()) or bool(info.get("Rootless"))  # Podman's key

    @property
    def info(self) -> Mapping[str, Any]:
        """The engine's description of itself and its machine."""
        with engine_call("describe itself", self.url):
            return dict(self._api.info())

    def image(self, ref: str) -> Mapping[str, Any] | None:
        """Return the engine's description of an image; None if it does not have it."""
        import docker.errors

        with engine_call(f"look for image {ref}", self.url):
            try:
                return dict(self._api.inspect_image(ref))
            except docker.errors.ImageNotFound:
                return None

    def run(self, spec: ContainerSpec) -> Container:
        """Create and start a container; if anything fails, none remains.

        Limits that the engine may not set are dropped, for all later containers too.
        """
        while True:
            limits = self._limits
            try:
                return self._run(spec, limits)
            except LimitRefusedError as refusal:
                if not limits:
                    raise
                # Podman requests a limit of its own, nproc, if a container has others
                kept = self._limits if refusal.limit in limits else {}
                self._limits = {name: value for name, value in kept.items() if name != refusal.limit}

    def containers(self, *labels: str, state: str | None = None) -> Sequence[Mapping[str, Any]]:
        """Return the containers in any state, or in one, with all the given labels (`name` or `name=value`)."""
        check_alive(self._path, self.url)
        filters: dict[str, Any] = {"label": list(labels)} | ({"status": state} if state else {})
        with engine_call("list containers", self.url):
            return list(self._api.containers(all=True, filters=filters))

    def remove(self, container_id: str) -> None:
        """Kill a container and wait until it is removed; do nothing if it does not exist."""
        import docker.errors

        check_alive(self._path, self.url)
        with engine_call(f"remove container {container_id[:12]}", self.url):
            try:
                self._api.remove_container(container_id, force=True, v=True)
                return
            except docker.errors.NotFound:
                return
            except docker.errors.APIError as error:
                if error.status_code != 409:
                    raise
            # The engine is already removing it, which has taken more than 30 s on a busy disk. The wait is outside the
            # handler, so that a timeout is not reported as the preceding refusal.
            with suppress(docker.errors.NotFound):
                self._api.wait(container_id, timeout=_CALL_TIMEOUT_S, condition="removed")

    def signal(self, container_id: str, name: str) -> None:
        """Send a signal such as "SIGUSR1" to the first process of a container; do nothing if it is not running."""
        import docker.errors

        with engine_call(f"signal container {container_id[:12]}", self.url):
            try:
                self._api.kill(container_id, name)
            except docker.errors.APIError as error:
                if error.status_code not in (404, 409):
                    raise

    def read(self, image: str, path: str) -> bytes:
        """Return a file of an image; b"" if it does not exist. Takes 0.1 s, for a container that is never started."""
        import docker.errors

        with engine_call(f"read {path} of image {image}", self.url):
            made = self._api.create_container(image, ["true"])
            try:
                stream, _ = self._api.get_archive(made["Id"], path)
                with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
                    file = archive.extractfile(archive.next() or path)
                    return file.read() if file else b""
            except docker.errors.NotFound:
                return b""
            finally:
                self.remove(made["Id"])

    def watch(self, labels: Mapping[str, str]) -> Watch:
        """Follow the ends of all containers with these labels; to be called before they are started."""
        return Watch(self._api, self.url, labels)

    def _run(self, spec: ContainerSpec, limits: Mapping[str, int]) -> Container:
        with engine_call(f"start container {spec.name} from image {spec.image}", self.url):
            container_id = create(self._api, spec, limits)
            stream = None
            try:
                stream = attach(self._api, container_id)
                self._api.start(container_id)
            except BaseException:
                if stream is not None:
                    stream.close()
                self.remove(container_id)
                raise
        return Container(self.url, container_id, spec.name, stream)


def _knock(address: EngineAddress) -> int | None:
    """Return the process that listens at the engine's socket; None if it is outside this namespace."""
    with address.dial() as sock:
        if not hasattr(socket, "SO_PEERCRED"):  # Linux only
            return None
        pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return pid or None


def _client(make: Any, address: EngineAddress, version: str) -> Any:
    from skyward.engine.transport import EngineAdapter

    api = make(base_url=address.socket_url, version=version, timeout=_CALL_TIMEOUT_S)
    api._custom_adapter = EngineAdapter(address.socket_url.replace("unix://", "http+unix://"), _CALL_TIMEOUT_S)
    api.mount("http+docker://", api._custom_adapter)
    # a local socket needs no proxy and no netrc; looking for them extends a call from 0.6 to 0.8 ms
    api.trust_env = False
    # an idle connection to another machine's engine is an open channel, which slows down SSH (docs/hosts.md)
    api.headers["Connection"] = "close"
    return api
