"""The images of an engine over its HTTP API: `Images` inspects, pulls and pushes them; `save` and `load` copy them.

It needs only the standard library: to learn that an image exists, loading the docker SDK would take a hundred times as
long as the engine takes to answer. `Images` is safe to use from several threads.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse
from time import monotonic
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlencode

from skyward.engine.address import EngineAddress
from skyward.engine.failures import advice_on, broken_off, registry_failure, too_slow, translate
from skyward.errors import ImageNotFoundError

_NO_AUTH: Mapping[str, str] = MappingProxyType({})
_TIMEOUT_S = 120.0  # longer silence means a hung engine
_IDLE_S = 60.0  # engines, and proxies before them, hang up after minutes, which only a failed request shows
_CHUNK = 1 << 18
_TRANSFER_S = 600.0  # of silence: registries with slow stores, and old engines of Podman, say nothing for minutes
_ABSENT = r"manifest unknown|name unknown|name not known|is not supported"
Follow = Callable[[int, int], None]


def _ignore(done: int, total: int) -> None:
    pass


class SocketLine(HTTPConnection):
    """A connection to an engine's socket."""

    def __init__(self, address: EngineAddress, timeout_s: float = _TIMEOUT_S) -> None:
        super().__init__("docker", timeout=timeout_s)
        self._address = address

    def connect(self) -> None:
        """Connect to the socket; raises EngineMissingError."""
        self.sock = self._address.dial(self.timeout or _TIMEOUT_S)


class Images:
    """The images of an engine. One connection, opened by the first request, serves all of them.

    Attributes:
        address: the engine's address.
        url: the same for messages: its socket, or the machine it is on.
    """

    def __init__(self, address: EngineAddress) -> None:
        self.address, self.url = address, address.url
        self._lock = threading.Lock()
        self._line = SocketLine(address)
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
        status, answer = self._ask("GET", f"/images/{quote(ref, '/:@')}/json", f"look for image {ref}")
        return None if status == 404 else answer

    def labelled(self, label: str) -> Sequence[Mapping[str, Any]]:
        """Return the images with a label, each with its id, tags, labels, size and time of creation."""
        query = urlencode({"filters": json.dumps({"label": [label]})})
        return list(self._ask("GET", f"/images/json?{query}", "list images")[1])

    def remove(self, tag: str) -> bool:
        """Remove a tag, and with the last one the image; return False if a container or another image needs it."""
        return self._ask("DELETE", f"/images/{quote(tag, '/:@')}", f"remove image {tag}", (404, 409))[0] != 409

    def tag(self, image: str, name: str) -> None:
        """Add a name to an image.

        Raises:
            ImageNotFoundError: the engine does not have it.
        """
        repository, _, tag = name.rpartition(":")
        query, action = urlencode({"repo": repository, "tag": tag}), f"tag image {image} as {name}"
        status, answer = self._ask("POST", f"/images/{quote(image, '/:@')}/tag?{query}", action)
        if status == 404:
            raise translate(action, self.url, _message(answer, "no such image"))

    def registry_digest(self, ref: str, auth: Mapping[str, str] = _NO_AUTH) -> str | None:
        """Return the digest of an image in its registry; None if it does not have it, or the engine cannot ask.

        Podman's engine cannot.

        Raises:
            RegistryError: the registry cannot be reached, or refuses.
        """
        action = f"look for {ref} in its registry"
        path = f"/distribution/{quote(ref, '/:@')}/json"
        status, answer = self._ask("GET", path, action, expected=range(400, 600), headers=_with_login(auth))
        if status < 400:
            return str(answer["Descriptor"]["digest"])
        message = _message(answer, f"HTTP status {status}")
        if status == 404 or re.search(_ABSENT, message):
            return None
        raise registry_failure(action, ref, self.url, message)

    def _digest_of(self, ref: str) -> str | None:
        """Return the registry's digest that the engine has noted for an image, by a name of it in that registry."""
        begin = f"{ref.partition('@')[0].rpartition(':')[0]}@"
        found = (self.inspect(ref) or {}).get("RepoDigests") or ()
        return next((name.removeprefix(begin) for name in found if name.startswith(begin)), None)

    def pull(self, ref: str, auth: Mapping[str, str] = _NO_AUTH, follow: Follow = _ignore) -> None:
        """Pull an image from its registry.

        Args:
            ref: a reference with tag or digest; without one, all tags would be pulled.
            auth: credentials for this pull, which the engine does not keep.
            follow: receives the bytes that have arrived, and those known so far; its exceptions end the pull.

        Raises:
            ImageNotFoundError: the registry has none, refuses it, or cannot be reached.
            EngineError: the engine's disk is full.
        """
        path = f"/images/create?{urlencode({'fromImage': ref})}"
        action = f"pull image {ref}"
        failure, _ = self._transfer(path, action, auth, follow)
        if "no space left" in failure:
            raise translate(action, self.url, failure)
        if failure:
            raise ImageNotFoundError(str(registry_failure(action, ref, self.url, failure)))

    def push(self, image: str, name: str, auth: Mapping[str, str], follow: Follow = _ignore) -> str:
        """Push an image under a name, `registry/repository:tag`, that it gets on the engine too; return its digest.

        Args:
            image: its tag on the engine.
            name: the destination.
            auth: credentials for this push, which the engine does not keep.
            follow: receives the bytes that have been sent, and those known so far; its exceptions end the push.

        Raises:
            ImageNotFoundError: the engine does not have the image.
            RegistryError: the registry cannot be reached, or refuses.
        """
        action = f"push image {image} to {name}"
        self.tag(image, name)
        repository, _, tag = name.rpartition(":")
        failure, digest = self._transfer(f"/images/{quote(repository, '/:@')}/push?tag={tag}", action, auth, follow)
        digest = digest or (None if failure else self._digest_of(name)) or ""
        if not digest:
            raise registry_failure(action, name, self.url, failure or "no digest")
        return digest

    def _transfer(self, path: str, action: str, auth: Mapping[str, str], follow: Follow = _ignore) -> tuple[str, str]:
        """Run a transfer to or from a registry on a separate connection; return its error and the pushed digest."""
        layers: dict[str, tuple[int, int]] = {}
        digest = ""
        with closing(SocketLine(self.address, _TRANSFER_S)) as line, self._told(line, action):
            line.request("POST", path, headers=_with_login(auth))
            with line.getresponse() as response:  # an engine that ends its connections leaves the socket to it
                if response.status >= 400:
                    return _message(json.loads(response.read() or b"null"), response.reason), ""
                for message in map(json.loads, response):
                    if "error" in message:
                        return str(message["error"]) or "an error", ""
                    digest = str((message.get("aux") or {}).get("Digest") or digest)
                    detail = message.get("progressDetail") or {}
                    if "total" in detail and message.get("status") != "Extracting":
                        layers[str(message.get("id"))] = int(detail.get("current", 0)), int(detail["total"])
                    follow(sum(sent for sent, _ in layers.values()), sum(total for _, total in layers.values()))
        return "", digest

    def run(self, ref: str, script: str, arguments: Sequence[str] = ()) -> str:
        """Run a script with the shell of an image, as root and without a network, and return what it prints.

        The engine removes the container when the script has ended, also if this client is gone by then.

        Raises:
            EngineError: the engine refuses, does not have the image, or the image has no shell.
        """
        wanted = {
            "Image": ref,
            "User": "0:0",
            "Entrypoint": ["/bin/sh", "-c", script, "sh"],
            "Cmd": list(arguments),
            "Tty": True,
            "Healthcheck": {"Test": ["NONE"]},
            "NetworkDisabled": True,
            "HostConfig": {"AutoRemove": True},
        }
        action = f"run a script in image {ref}"
        container = self._ask("POST", "/containers/create", action, (), wanted)[1]["Id"]
        try:
            with closing(SocketLine(self.address)) as line, self._told(line, action):
                line.request("POST", f"/containers/{container}/attach?stream=1&stdout=1&stderr=1")
                with line.getresponse() as output:
                    self._ask("POST", f"/containers/{container}/start", action, ())
                    return output.read().decode(errors="replace")
        finally:
            self._ask(
                "DELETE", f"/containers/{container}?force=1&v=1", f"remove container {container[:12]}", (404, 409)
            )

    def runs(self, container: str) -> bool:
        """Return whether a container is running."""
        status, about = self._ask("GET", f"/containers/{container}/json", f"look for container {container[:12]}")
        return status == 200 and bool(about["State"]["Running"])

    def close(self) -> None:
        """Close the connection; another request would open a new one."""
        with self._lock:
            self._line.close()

    def __del__(self) -> None:
        self._line.close()

    def _ask(
        self,
        method: str,
        path: str,
        action: str,
        expected: Sequence[int] = (404,),
        body: Any = None,
        headers: Mapping[str, str] = _NO_AUTH,
    ) -> tuple[int, Any]:
        """Return status and answer of one request; raise failures other than the expected ones."""
        with self._lock, self._told(self._line, action):
            if monotonic() - self._used > _IDLE_S:
                self._line.close()  # the next request opens it again
            if body is not None:
                headers = {"Content-Type": "application/json"}
            self._line.request(method, path, None if body is None else json.dumps(body), headers)
            with self._line.getresponse() as response:  # closed also if the machine ends before the answer does
                content, status = response.read(), response.status
            self._used = monotonic()
        try:
            answer = json.loads(content) if content.strip() else None  # Podman's empty answers are a newline
        except ValueError:  # a request that the engine does not know
            answer = {"message": content.decode(errors="replace").strip()}
        if status >= 400 and status not in expected:
            raise translate(action, self.url, _message(answer, f"HTTP status {status}"))
        return status, answer

    @contextmanager
    def _told(self, line: SocketLine, action: str) -> Iterator[None]:
        """Map connection errors; `action` completes "The Docker engine at X broke off when asked to ..."."""
        try:
            yield
        except TimeoutError as error:
            line.close()
            raise too_slow(action, self.url, error) from error
        except (HTTPException, OSError) as error:
            line.close()
            raise broken_off(action, self.url, error, advice_on(self.url)) from error


def _with_login(auth: Mapping[str, str]) -> dict[str, str]:
    """Return the header of a pull or push with credentials, which the engine does not keep."""
    return {"X-Registry-Auth": base64.urlsafe_b64encode(json.dumps(dict(auth)).encode()).decode()}


def _message(answer: Any, otherwise: str) -> str:
    """Return the engine's own message in an answer."""
    return str((answer.get("message") if isinstance(answer, dict) else None) or otherwise)


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
            with line.getresponse() as answer:
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
            with HTTPResponse(line.sock) as answer:
                answer.begin()
                said = answer.read().decode(errors="replace")
        except (HTTPException, OSError, AttributeError) as error:
            raise broken_off(action, engine.url, broken or error, advice="") from error
    news = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    failures = [each["error"] for each in news if "error" in each]
    if answer.status != 200 or failures:
        refusals = [each["message"] for each in news if "message" in each]
        raise translate(action, engine.url, str((failures or refusals or [said])[-1]))
