"""`Engine`: one Docker engine, its containers, and what it can grant.

It knows nothing of pools, and is safe to use from several threads.
"""

from __future__ import annotations

import hashlib
import io
import os
import socket
import struct
import sys
import tarfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

from skyward.engine.address import EngineAddress, check_alive, find_engine
from skyward.engine.container import (
    Container,
    ContainerSpec,
    Watch,
    attach,
    create,
    gives_gpus,
    seen_by_engine,
    this_container,
    wanted_limits,
)
from skyward.engine.failures import LimitRefusedError, engine_call
from skyward.errors import EngineError, EngineMissingError

_CALL_TIMEOUT_S = 120  # of silence from an engine that is alive; one that is not is noticed sooner
_LEAST_API = (1, 41)  # engine 20.10
_engines: dict[tuple[str, int | None], Engine] = {}
_engines_lock = threading.Lock()
_DAY_S = 86400
_said: set[str] = set()  # notices that this process has given


class Engine:
    """A running Docker engine.

    Attributes:
        url: its address in the form of `DOCKER_HOST`.
        version: its version.
        product: what it calls itself; empty for a plain engine.
        is_podman: whether it is Podman's, which has the same interface.
    """

    def __init__(self, address: EngineAddress, pid: int | None, limits: Mapping[str, int] | None = None) -> None:
        from docker.api.client import APIClient

        self.url, self._path, self._pid = address.url, address.path, pid
        with engine_call("say its version", self.url):
            with _client(APIClient, address, "1.41") as first:
                about = first.version(api_version=False)
            self.version, self.product = str(about["Version"]), str((about.get("Platform") or {}).get("Name") or "")
            components = [str(each.get("Name")) for each in about.get("Components") or ()]
            self.is_podman = any(name.startswith("Podman") for name in components)
            if tuple(map(int, about["ApiVersion"].split("."))) < _LEAST_API:
                raise EngineError(
                    f"The Docker engine at {self.url} is version {self.version}; skyward needs 20.10 or newer."
                )
            self._api = _client(APIClient, address, about["ApiVersion"])
        self._limits = wanted_limits(pid) if limits is None else limits
        self._is_here = limits is None

    @classmethod
    def connect(cls, base_url: str | None = None) -> Engine:
        """The engine at `base_url`, or the one the docker CLI would use. The same object while that engine lives.

        Raises:
            ConfigError: the address is not one of this machine.
            EngineMissingError: no engine answers there.
        """
        address = find_engine(base_url)
        pid = _knock(address)
        with _engines_lock:
            if (address.url, pid) not in _engines:
                _engines[address.url, pid] = cls(address, pid)
            return _engines[address.url, pid]

    @classmethod
    def at(cls, address: EngineAddress, limits: Mapping[str, int]) -> Engine:
        """The engine of another machine, at a socket here that leads to it; it is asked for these limits.

        Raises:
            EngineError: it is too old.
            EngineMissingError: it does not answer.
        """
        engine = cls(address, None, limits)
        # connections kept for later are open channels, each of which makes SSH slower (docs/hosts.md), and grow stale
        engine._api.headers["Connection"] = "close"
        return engine

    @cached_property
    def is_rootless(self) -> bool:
        """Whether this client's own user runs it: root in a container is that user then."""
        try:
            owner = self._path.stat().st_uid
        except OSError:  # its socket is another machine's
            return False
        if not self._is_here or owner == 0 or owner != os.geteuid():
            return False
        info = self.info
        return "name=rootless" in info.get("SecurityOptions", ()) or bool(info.get("Rootless"))  # Podman's word

    @cached_property
    def _own_container(self) -> Mapping[str, Any]:
        """What the engine says of the container that this client runs in; nothing where it is in none of its."""
        import docker.errors

        identifier = this_container() if self._is_here else None
        if identifier is None:
            return {}
        with engine_call("describe the container of this program", self.url):
            try:
                return dict(self._api.inspect_container(identifier))
            except docker.errors.NotFound:  # another engine's
                return {}

    @property
    def info(self) -> Mapping[str, Any]:
        """The engine's own description of itself and its machine."""
        with engine_call("describe itself", self.url):
            return dict(self._api.info())

    def image(self, ref: str) -> Mapping[str, Any] | None:
        """The engine's description of an image; None if it does not have it."""
        import docker.errors

        with engine_call(f"look for image {ref}", self.url):
            try:
                return dict(self._api.inspect_image(ref))
            except docker.errors.ImageNotFound:
                return None

    def run(self, spec: ContainerSpec) -> Container:
        """Create and start a container; whatever fails, none is left.

        Limits the engine may not grant are given up one by one, for all later containers too, with one warning.
        """
        if own := self._own_container:
            spec = replace(
                spec,
                mounts=tuple((seen_by_engine(source, own), target) for source, target in spec.mounts),
                accounts=None if spec.accounts is None else seen_by_engine(spec.accounts, own),
            )
        while True:
            limits = self._limits
            try:
                container = self._run(spec, limits)
            except LimitRefusedError as refusal:
                if refusal.limit not in limits:
                    raise
                self._limits = {name: value for name, value in self._limits.items() if name != refusal.limit}
                continue
            if not spec.quiet:
                self._tell_limits(limits)
            return container

    def containers(self, *labels: str, state: str | None = None) -> Sequence[Mapping[str, Any]]:
        """Containers in any state, or in one, that carry all the given labels (`name` or `name=value`)."""
        filters: dict[str, Any] = {"label": list(labels)} | ({"status": state} if state else {})
        with engine_call("list containers", self.url):
            return list(self._api.containers(all=True, filters=filters))

    def remove(self, container_id: str) -> None:
        """End a container at once and wait until it is gone; nothing happens if it is gone already."""
        import docker.errors

        with engine_call(f"remove container {container_id[:12]}", self.url):
            try:
                self._api.remove_container(container_id, force=True, v=True)
                return
            except docker.errors.NotFound:
                return
            except docker.errors.APIError as error:
                if error.status_code != 409:
                    raise
            # The engine is removing it already, which took more than 30 s on a busy disk. The wait is outside of the
            # handler, else one that takes too long would be reported as the refusal before it.
            with suppress(docker.errors.NotFound):
                self._api.wait(container_id, timeout=_CALL_TIMEOUT_S, condition="removed")

    def is_frozen(self) -> bool:
        """Whether it has not answered a ping for some seconds."""
        try:
            check_alive(self._path, self.url)
        except EngineMissingError:
            return True
        return False

    def close_idle(self) -> None:
        """Close connections that are kept for further questions; the next question makes another."""
        self._api._custom_adapter.close_idle()

    def signal(self, container_id: str, name: str) -> None:
        """Send the first process of a container a signal, such as "SIGUSR1"; nothing happens if it does not run."""
        import docker.errors

        with engine_call(f"signal container {container_id[:12]}", self.url):
            try:
                self._api.kill(container_id, name)
            except docker.errors.APIError as error:
                if error.status_code not in (404, 409):
                    raise

    def read(self, image: str, path: str) -> bytes:
        """A file of an image; b"" if it has none. Takes a container that is never started, so a tenth of a second."""
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
        """Follow the ends of all containers with these labels; open it before they are started."""
        return Watch(self._api, self.url, labels)

    def gives_gpus(self) -> bool | None:
        """Whether containers can get GPUs here; None if only trying shows that."""
        return gives_gpus(self.info, self._pid)

    def has_bridge(self) -> bool:
        """Whether it can give containers a network of their own on this machine."""
        with engine_call("list networks", self.url):
            return bool(self._api.networks(filters={"driver": "bridge"}))

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

    def _tell_limits(self, limits: Mapping[str, int]) -> None:
        missing = [name for name in ("memlock", "stack") if name not in limits]
        if missing and sys.stderr is not None and is_due(f"{self.url} {' '.join(missing)}"):
            sys.stderr.write(
                f"skyward: the Docker engine at {self.url} may not raise the {' and '.join(missing)} limit of its "
                "containers; they keep the engine's own. An engine that has CAP_SYS_RESOURCE may. (Said once a day.)\n"
            )


def _knock(address: EngineAddress) -> int | None:
    """The process that answers at the engine's socket; None if it is outside this namespace."""
    with address.dial() as sock:
        if not hasattr(socket, "SO_PEERCRED"):  # only Linux has it
            return None
        pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return pid or None


def _client(make: Any, address: EngineAddress, version: str) -> Any:
    from skyward.engine.transport import EngineAdapter

    api = make(base_url=address.socket_url, version=version, timeout=_CALL_TIMEOUT_S)
    api._custom_adapter = EngineAdapter(address.socket_url, address.url, _CALL_TIMEOUT_S)
    api.mount("http+docker://", api._custom_adapter)
    # no proxy and no netrc stands before a local socket; looking for them takes a call from 0.6 to 0.8 ms
    api.trust_env = False
    return api


def is_due(what: str) -> bool:
    """Whether something has not been said for a day; it counts as said from now on.

    Where the user's cache cannot be written it is said once per process.
    """
    if what in _said:
        return False
    _said.add(what)
    try:
        from platformdirs import user_cache_path

        stamp = user_cache_path("skyward") / "said" / hashlib.sha256(what.encode()).hexdigest()[:16]
        if stamp.exists() and 0 <= time.time() - stamp.stat().st_mtime < _DAY_S:
            return False
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch()
    except (OSError, RuntimeError):  # no cache, or no home: nothing depends on it but how often a line is shown
        pass
    return True
