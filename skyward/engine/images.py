"""The images of an engine over its HTTP API: `Images` inspects, pulls and pushes them; streams move them as well.

It needs only the standard library: to learn that an image exists, loading the docker SDK would take a hundred times as
long as the engine takes to answer. `Images` is safe to use from several threads. `ImageFiles` reads files of an image
without running any of it.

`save` and `load` copy an image from one engine to others. `docker load` first looks for each layer among those of the
engine: existing ones need not be in the archive (`Archive`). That applies to engines with their own layer store; one
that keeps images in containerd requires all of them.
"""

from __future__ import annotations

import base64
import io
import json
import os
import posixpath
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from enum import Enum
from http.client import HTTPException, HTTPResponse
from socket import SHUT_RDWR
from time import monotonic
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from skyward.engine.address import EngineAddress, Waiting
from skyward.engine.connection import SocketLine, SshLine, auth_header
from skyward.engine.failures import broken_off, not_pulled, too_slow, translate

if TYPE_CHECKING:
    from skyward.model.ssh import SshHost

_NO_AUTH: Mapping[str, str] = MappingProxyType({})
_IDLE_S = 60.0  # engines, and proxies before them, hang up after minutes, which only a failed request shows
Response = tuple[int, Message, bytes]  # status, header, content
_STAT = "X-Docker-Container-Path-Stat"  # https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Container
_DIRECTORY, _LINK = 1 << 31, 1 << 27  # of modes in Go's os.FileMode
_CHUNK = 1 << 18


class Removal(Enum):
    """The outcome of removing a tag."""

    DONE = "removed"
    ABSENT = "was not there"
    IN_USE = "is needed by a container, or by an image built on it"


class Images:
    """The images of an engine. One connection, opened by the first request, serves all of them.

    Attributes:
        url: the engine's address: its socket, or the machine it is on.
    """

    def __init__(self, place: EngineAddress | SshHost) -> None:
        self.url = place.url
        self._place = place
        self._lock = threading.Lock()
        self._line = _line(place)
        self._used = 0.0

    def platform(self) -> str:
        """Return the platform of the engine's machine, such as "linux/amd64"."""
        _, about = self._ask("GET", "/version", "say its version")
        return f"{about['Os']}/{about['Arch']}"

    def in_containerd(self) -> bool:
        """Return whether the engine keeps images in containerd's store, and so can compress and push them itself."""
        _, about = self._ask("GET", "/info", "describe itself")
        return "io.containerd.snapshotter" in json.dumps(about.get("DriverStatus"))

    def inspect(self, ref: str) -> Mapping[str, Any] | None:
        """Return the engine's description of an image; None if it does not have it."""
        status, answer = self._ask("GET", f"/images/{_quoted(ref)}/json", f"look for image {ref}")
        return None if status == 404 else answer

    def history(self, ref: str) -> Sequence[Mapping[str, Any]]:
        """Return the instructions that made an image, first to last, each with its size; empty if it does not exist."""
        status, answer = self._ask("GET", f"/images/{_quoted(ref)}/history", f"tell how image {ref} was made")
        return [] if status == 404 else answer[::-1]

    def listed(self) -> Sequence[Mapping[str, Any]]:
        """Return all images of the engine, each with its id, tags, digests, labels, size and time of creation."""
        return list(self._ask("GET", "/images/json", "list images")[1])

    def labelled(self, label: str) -> Sequence[Mapping[str, Any]]:
        """Return the images with a label, each with its id, tags, labels, size and time of creation."""
        query = urlencode({"filters": json.dumps({"label": [label]})})
        return list(self._ask("GET", f"/images/json?{query}", "list images")[1])

    def remove(self, tag: str) -> Removal:
        """Remove a tag, and with an image's last tag the image, unless a container or another image needs it."""
        status, _ = self._ask("DELETE", f"/images/{_quoted(tag)}", f"remove image {tag}", expected=(404, 409))
        return {404: Removal.ABSENT, 409: Removal.IN_USE}.get(status, Removal.DONE)

    def tag(self, image: str, name: str, action: str = "") -> None:
        """Add a name to an image. `action`, if given, completes "The Docker engine at X could not ...", for errors.

        Raises:
            ImageNotFoundError: the engine does not have it.
        """
        repository, _, tag = name.rpartition(":")
        query, action = urlencode({"repo": repository, "tag": tag}), action or f"tag image {image}"
        status, answer = self._ask("POST", f"/images/{_quoted(image)}/tag?{query}", action)
        if status == 404:
            raise translate(action, self.url, _message(answer, "no such image"))

    def pull(self, ref: str, auth: Mapping[str, str] = _NO_AUTH, waiting: Waiting | None = None) -> None:
        """Pull an image from its registry.

        Args:
            ref: a reference with tag or digest; without one, all tags would be pulled.
            auth: credentials for this pull, which the engine does not keep. Without any, the docker command of a
                machine reached by SSH pulls with its own user's.
            waiting: see `push`.

        Raises:
            ImageNotFoundError: the registry has none, refuses it, or cannot be reached.
        """
        if not auth and not isinstance(self._place, EngineAddress):
            import subprocess

            command = self._place.command("docker", "pull", "--quiet", ref)
            done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
            if done.returncode:
                raise self._place.failure(done.stderr) or not_pulled(ref, self.url, done.stderr)
            return
        path = f"/images/create?{urlencode({'fromImage': ref})}"
        for message in self._transfer(path, f"pull image {ref}", auth, waiting):
            if "error" in message:
                raise not_pulled(ref, self.url, str(message["error"]))

    def push(
        self, image: str, repository: str, tag: str, auth: Mapping[str, str], waiting: Waiting | None = None
    ) -> Iterator[Mapping[str, Any]]:
        """Name an image `repository:tag` and push it there; yield the engine's messages as they come.

        A message with "error" in it is the last: the registry refuses, or cannot be reached.

        Args:
            image: its tag on the engine.
            repository: the destination.
            tag: the tag there.
            auth: credentials for this push, which the engine does not keep.
            waiting: called repeatedly while the engine is silent, with the seconds of silence; its exceptions end the
                push. None for a limit of two minutes.

        Raises:
            ImageNotFoundError: the engine does not have the image.
        """
        action = f"push image {image} to {repository}:{tag}"
        self.tag(image, f"{repository}:{tag}", action)
        yield from self._transfer(f"/images/{_quoted(repository)}/push?tag={tag}", action, auth, waiting)

    def _transfer(
        self, path: str, action: str, auth: Mapping[str, str], waiting: Waiting | None
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the engine's messages on a transfer to or from a registry, on a separate connection."""
        with closing(_line(self._place)) as line, self._told(line, action):
            line.waiting = waiting
            line.request("POST", path, headers=auth_header(auth))
            with line.getresponse() as response:  # an engine that ends its connections leaves the socket to it
                if response.status >= 400:
                    yield {"error": _message(json.loads(response.read() or b"null"), response.reason)}
                    return
                for message in response:
                    yield json.loads(message)

    @contextmanager
    def files(self, ref: str) -> Iterator[ImageFiles]:
        """Open the files of an image for the duration of a `with` block, through a container that is never started.

        Raises:
            EngineError: the engine refuses, or does not have the image.
        """
        wanted = {"Image": ref, "Cmd": ["true"], "Entrypoint": [], "NetworkDisabled": True}
        action = f"look into image {ref}"
        status, answer = self._ask("POST", "/containers/create", action, body=wanted)
        if status == 404:
            raise translate(action, self.url, _message(answer, "no such image"))
        container = answer["Id"]
        try:
            yield ImageFiles(lambda method, path: self._exchange(method, f"/containers/{container}{path}", action))
        finally:
            self._ask("DELETE", f"/containers/{container}?force=1&v=1", f"remove container {container[:12]}")

    def close(self) -> None:
        """Close the connection; another request would open a new one."""
        with self._lock:
            self._line.close()

    def __del__(self) -> None:
        self._line.close()

    def _ask(
        self, method: str, path: str, action: str, expected: Sequence[int] = (404,), body: Any = None
    ) -> tuple[int, Any]:
        """Return status and answer; raise failures other than the expected ones."""
        status, _, content = self._exchange(method, path, action, body)
        answer = json.loads(content) if content.strip() else None  # Podman's empty answers are a newline
        if status >= 400 and status not in expected:
            raise translate(action, self.url, _message(answer, f"HTTP status {status}"))
        return status, answer

    def _exchange(self, method: str, path: str, action: str, body: Any = None) -> Response:
        """Send one request; return status, header and content of the answer."""
        with self._lock, self._told(self._line, action):
            if monotonic() - self._used > _IDLE_S:
                self._line.close()  # the next request opens it again
            if body is None:
                self._line.request(method, path)
            else:
                self._line.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
            response = self._line.getresponse()
            content = response.read()
            self._used = monotonic()
        return response.status, response.headers, content

    @contextmanager
    def _told(self, line: SocketLine | SshLine, action: str) -> Iterator[None]:
        """Map connection errors; `action` completes "The Docker engine at X broke off when asked to ..."."""
        try:
            yield
        except TimeoutError as error:
            line.close()
            raise too_slow(action, self.url, error) from error
        except (HTTPException, OSError) as error:
            failure = line.failure()
            line.close()
            raise failure or broken_off(action, self.url, error) from error


def _line(place: EngineAddress | SshHost) -> SocketLine | SshLine:
    return SocketLine(place) if isinstance(place, EngineAddress) else SshLine(place)


def _message(answer: Any, otherwise: str) -> str:
    """Return the engine's own message in an answer."""
    return str((answer.get("message") if isinstance(answer, dict) else None) or otherwise)


def _quoted(ref: str) -> str:
    return quote(ref, safe="/:@")


class ImageFiles:
    """Reader of files in the container made by `Images.files`.

    Args:
        ask: sends a request (method, path below the container) to the engine.
    """

    def __init__(self, ask: Callable[[str, str], Response]) -> None:
        self._ask = ask

    def find(self, path: str) -> str | None:
        """Return the path of a file with all links followed; None if there is no file."""
        seen = [path]
        while True:
            status, header, _ = self._ask("HEAD", _archive(seen[-1]))
            about = json.loads(base64.b64decode(header[_STAT])) if status == 200 else {}
            target = str(about.get("linkTarget") or "")
            if not about or not about["mode"] & _LINK or not target:  # for a regular file Podman reports its own path
                return seen[-1] if about and not about["mode"] & _DIRECTORY else None
            target = posixpath.normpath(posixpath.join(posixpath.dirname(seen[-1]), target))
            if target in seen:  # circular links
                return None
            seen.append(target)

    def read(self, path: str) -> bytes | None:
        """Return the content of a file with links followed; None if there is none."""
        found = self.find(path)
        status, _, content = self._ask("GET", _archive(found)) if found else (404, {}, b"")
        if status != 200:
            return None
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            member = archive.next()
            file = archive.extractfile(member) if member and member.isfile() else None
            return file.read() if file else None


def _archive(path: str) -> str:
    return f"/archive?{urlencode({'path': path})}"


def save(engine: EngineAddress, ref: str) -> Iterator[bytes]:
    """Yield an image with its tag, in the format of `docker save`.

    Raises:
        ImageNotFoundError: the engine does not have it.
        EngineMissingError: the engine broke off.
    """
    action = f"give image {ref}"
    with closing(SocketLine(engine)) as line:
        try:
            line.request("GET", f"/images/get?{urlencode({'names': ref})}")
            answer = line.getresponse()
            if answer.status != 200:
                raise translate(action, engine.url, answer.read().decode(errors="replace"))
            while chunk := answer.read(_CHUNK):
                yield chunk
        except (HTTPException, OSError) as error:
            raise broken_off(action, engine.url, error, advice="") from error


def load(engine: EngineAddress, ref: str, chunks: Iterable[bytes]) -> None:
    """Load an image read by `save` into an engine.

    Raises:
        EngineError: it refuses, for example because its disk is full.
        EngineMissingError: it, or the connection to it, broke off.
    """
    action = f"take image {ref}"
    with closing(SocketLine(engine)) as line:
        broken: OSError | None = None
        try:
            headers = {"Content-Type": "application/x-tar", "Transfer-Encoding": "chunked"}
            line.request("POST", "/images/load?quiet=1", body=iter(chunks), headers=headers, encode_chunked=True)
        except OSError as error:
            broken = error  # a refusing engine hangs up after sending the reason
        try:
            answer = HTTPResponse(line.sock)
            answer.begin()
            said = answer.read().decode(errors="replace")
        except (HTTPException, OSError, AttributeError) as error:
            raise broken_off(action, engine.url, broken or error, advice="") from error
    failures = [news["error"] for news in _documents(said) if "error" in news]
    if answer.status != 200 or failures:
        refusals = [news["message"] for news in _documents(said) if "message" in news]
        raise translate(action, engine.url, str((failures or refusals or [said])[-1]))


class Pull:
    """A pull of an image by an engine, whose progress can be read from another thread.

    Attributes:
        bytes: bytes downloaded so far.
        total: bytes of the layers known so far.
        moved: monotonic time of the last progress.
        retrying: the engine's message while it retries the registry; "" otherwise.
    """

    def __init__(self, engine: EngineAddress, ref: str, auth: Mapping[str, str]) -> None:
        self.bytes = self.total = 0
        self.moved, self.retrying = monotonic(), ""
        self._engine, self._ref, self._auth = engine, ref, auth
        self._line = SocketLine(engine)
        self._layers: dict[str, tuple[int, int]] = {}

    def run(self) -> None:
        """Pull with credentials for this one pull, which the engine does not keep.

        Raises:
            ImageNotFoundError: the registry does not have it, refuses, or cannot be reached; the message says which.
            EngineMissingError: the engine broke off, or `stop` was called.
        """
        query = urlencode({"fromImage": self._ref})
        with closing(self._line):
            try:
                self._line.request("POST", f"/images/create?{query}", headers=auth_header(self._auth))
                answer = self._line.getresponse()
                if answer.status != 200:
                    said = answer.read().decode(errors="replace")
                    raise not_pulled(self._ref, self._engine.url, str(next(_documents(said), {}).get("message", said)))
                for line in answer:
                    for news in _documents(line.decode(errors="replace")):
                        self._take(news)
            except (HTTPException, OSError, ValueError) as error:
                raise broken_off(f"pull {self._ref}", self._engine.url, error, advice="") from error

    def stop(self) -> None:
        """End the pull."""
        if self._line.sock is not None:
            with suppress(OSError):
                self._line.sock.shutdown(SHUT_RDWR)

    def _take(self, news: Mapping[str, Any]) -> None:
        if "error" in news:
            raise not_pulled(self._ref, self._engine.url, str(news["error"]))
        status, detail = str(news.get("status", "")), news.get("progressDetail") or {}
        if status.startswith("Retrying"):
            self.retrying = status
            return
        self.moved, self.retrying = monotonic(), ""
        if status == "Downloading" and "total" in detail:
            self._layers[str(news.get("id"))] = (int(detail["current"]), int(detail["total"]))
            self.bytes, self.total = (sum(column) for column in zip(*self._layers.values(), strict=True))


def _documents(text: str) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in text.splitlines() if line.startswith("{"))


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive of one image in a seekable file.

    Attributes:
        layers: digests of the layers, the lowest first.
        parts: name, start and end of each of its entries, in order; the last includes the end marker.
        paths: the entry of each layer.
    """

    layers: tuple[str, ...]
    parts: tuple[tuple[str, int, int], ...]
    paths: tuple[str, ...]

    @classmethod
    def of(cls, file: IO[bytes]) -> Archive:
        """Read the archive in a file.

        Raises:
            ValueError: it is not an archive of one image.
        """
        with tarfile.open(fileobj=file) as tar:
            members = tar.getmembers()
            try:
                (manifest,) = _document(tar, "manifest.json")
                layers = _document(tar, manifest["Config"])["rootfs"]["diff_ids"]
            except (KeyError, TypeError, AttributeError, tarfile.TarError) as error:
                raise ValueError(f"This is not an archive of one image: {error!r}.") from error
        starts = [member.offset for member in members]
        end = file.seek(0, 2)
        names = [member.name for member in members]
        parts = tuple(zip(names, starts, [*starts[1:], end], strict=True))
        linked = any(not member.isreg() for member in members if member.name in manifest["Layers"])
        return cls(tuple(layers), parts, () if linked else tuple(manifest["Layers"]))

    def without(self, lowest: int) -> list[tuple[int, int]]:
        """Return the pieces of the file, as start and end, that remain without the given number of lowest layers."""
        spared = set(self.paths[:lowest]) - set(self.paths[lowest:])
        return [(start, end) for name, start, end in self.parts if name not in spared]


def read(file: IO[bytes], pieces: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Yield these pieces of a file, one after the other; several threads may read it in parallel."""
    for start, end in pieces:
        while start < end and (chunk := os.pread(file.fileno(), min(_CHUNK, end - start), start)):
            start += len(chunk)
            yield chunk


def _document(tar: tarfile.TarFile, name: str) -> Any:
    member = tar.extractfile(name)
    assert member is not None
    return json.loads(member.read())
