"""An engine's HTTP interface on a unix socket, as far as images go; nothing is run."""

from __future__ import annotations

import json
import re
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.unit.builder.fakes import printed


class FakeEngine:
    """Images by tag, and the requests that came.

    Attributes:
        images: description of each image by its tag.
        in_use: tags that a container needs.
        requests: method and path of each request.
        pushes: messages that a push or a pull answers with.
        registry: digests of the images in registries, by reference, or the message of a refusal.
        silence_s: before the last of them.
        printed: output of the script that is run in a container.
    """

    def __init__(self, path: Path) -> None:
        self.url = f"unix://{path}"
        self.images: dict[str, dict[str, Any]] = {}
        self.in_use: set[str] = set()
        self.requests: list[str] = []
        self.pushes: list[dict[str, Any]] = []
        self.registry: dict[str, str] = {}
        self.silence_s = 0.0
        self.auth = ""
        self.printed = printed()

    def add(self, tag: str, *, labels: dict[str, str] | None = None, created: float = 0, size: int = 1000) -> None:
        """Give the engine an image."""
        self.images[tag] = {"Labels": labels or {}, "Created": created, "Size": size}

    def run(self, path: str) -> tuple[int, bytes]:
        """Status and content for a request about a container."""
        if path.endswith("/attach"):
            return 200, self.printed.encode()
        return (201, b'{"Id": "c0ffee"}') if path.endswith("/create") else (204, b"")

    def answer(self, method: str, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        """Status and JSON document for a request."""
        if path == "/_ping":
            return 200, "OK"
        if path == "/version":
            return 200, {"Os": "linux", "Arch": "arm64"}
        if path == "/images/json":
            filters = json.loads(query["filters"][0]) if "filters" in query else {}
            listed = [
                i for i in self.images.values() if all(label in i["Labels"] for label in filters.get("label", []))
            ]
            names = {id(i): [tag for tag, each in self.images.items() if each is i] for i in listed}
            unique = {id(i): i for i in listed}.values()
            return 200, [{"Id": f"sha256:{names[id(i)][0]}", "RepoTags": names[id(i)], **i} for i in unique]
        if path.startswith("/distribution/"):
            return self._distribution(path.removeprefix("/distribution/").removesuffix("/json"))
        ref = unquote(re.sub(r"^/images/|/(json|tag|push)$", "", path))
        if ref == "broken:1":
            return 500, {"message": "the disk is on fire"}
        if path.endswith("/push") or path == "/images/create":
            return 200, self.pushes
        ref = next((tag for tag, image in self.images.items() if ref in image.get("RepoDigests", ())), ref)
        if ref not in self.images:
            return 404, {"message": f"No such image: {ref}"}
        if method == "DELETE" and ref in self.in_use:
            return 409, {"message": f"conflict: unable to remove {ref}"}
        if method == "DELETE":
            del self.images[ref]
            return 200, [{"Untagged": ref}]
        if path.endswith("/tag"):
            self.images[f"{query['repo'][0]}:{query['tag'][0]}"] = self.images[ref]
            return 201, None
        image = self.images[ref]
        config = {"Labels": image["Labels"], "Env": ["A=b"]}
        known: dict[str, Any] = {name: image[name] for name in ("Id", "RepoDigests") if name in image}
        return 200, {"Id": f"sha256:{ref}", "Size": image["Size"], "Os": "linux", "Architecture": "amd64"} | {
            "Config": config,
            "RepoDigests": image.get("digests", []),
            "Metadata": {"LastTagTime": image.get("tagged", "0001-01-01T00:00:00Z")},
            **known,
        }

    def _distribution(self, ref: str) -> tuple[int, Any]:
        found = self.registry.get(ref, "")
        if found.startswith("sha256:"):
            return 200, {"Descriptor": {"digest": found}, "Platforms": []}
        return (500, {"message": found}) if found else (404, {"message": "manifest unknown: manifest unknown"})


@contextmanager
def fake_engine(folder: Path) -> Iterator[FakeEngine]:
    """A fake engine that listens at a socket in a folder."""
    engine = FakeEngine(folder / "engine.sock")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if self.path != "/_ping":
                engine.requests.append(f"{self.command} {self.path}")
            engine.auth = self.headers.get("X-Registry-Auth", "")
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if parts.path.startswith("/containers/"):
                self._send(*engine.run(parts.path))
                return
            status, document = engine.answer(self.command, parts.path, parse_qs(parts.query))
            is_transfer = parts.path.endswith(("/push", "/create"))
            many = document if isinstance(document, list) and is_transfer else [document]
            # an engine of Podman's ends the line of an empty answer as well
            lines = [json.dumps(each).encode() + b"\r\n" for each in many] if document is not None else [b"\n"]
            self._send(status, *lines)

        do_POST = do_DELETE = do_GET

        def _send(self, status: int, *lines: bytes) -> None:
            is_transfer = urlsplit(self.path).path.endswith(("/push", "images/create"))
            self.send_response(status)
            self.send_header("Content-Length", str(sum(map(len, lines))))
            self.end_headers()
            for number, line in enumerate(lines, 1):
                if is_transfer and number == len(lines):
                    time.sleep(engine.silence_s)
                self.wfile.write(line)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

        def get_request(self) -> tuple[Any, Any]:
            return super().get_request()[0], ("engine", 0)

        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exception(), ConnectionError):  # else a client that has read enough, or given up
                super().handle_error(request, client_address)

    with Server(str(folder / "engine.sock"), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield engine
        finally:
            server.shutdown()
            thread.join()
