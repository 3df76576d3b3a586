"""A small registry over real HTTP: it challenges, gives tokens, fails when told to, and remembers what it was asked."""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class RegistryServer:
    """Serves on the loopback interface for the time of a `with` block.

    Attributes:
        auth: "" for none, "basic", or "bearer": then /token gives tokens for `user` and `password`.
        requests: method, path and Authorization of all that came, in order.
        failures: statuses to answer with before anything else, used up one by one.
        lists_referrers: whether it knows the API for them, as of OCI 1.1.
        retry_after: what is said with them on when to ask again.
        pages: what an odd server answers to any path: status, content type, body.
        refused_tags: of manifests that it does not take.
        stores_for_s: how long it takes to store what was uploaded.
        redirects: where requests go whose path has a word in it, by that word.
        uploads_at: the address that an upload is told to go on at.
        challenge: what it says with a refusal, in place of its own.
        headers: all that came, in order.
    """

    def __init__(self, certificate: Path | None = None, client_ca: Path | None = None) -> None:
        self.auth, self.user, self.password, self.refresh_token = "", "ann", "right", "refresh-me"
        self.requests: list[tuple[str, str, str]] = []
        self.failures: list[int] = []
        self.retry_after = ""
        self.refused_tags: set[str] = set()
        self.lists_referrers = False
        self.page: tuple[int, str, bytes] | None = None
        self.tokens: list[str] = []
        self.redirects: dict[str, str] = {}
        self.stores_for_s = 0.0
        self.uploads_at, self.challenge = "", ""
        self.headers: list[dict[str, str]] = []
        self.manifests: dict[str, tuple[str, bytes]] = {}
        self.blobs: dict[str, bytes] = {}
        handler = type("Handler", (_Handler,), {"registry": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.port = self._http.server_port
        self.scheme = "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            if client_ca:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(client_ca)
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
            self.scheme = "https"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def add_image(self, tag: str, *, architecture: str = "amd64", variant: str = "", **more: Any) -> str:
        """An image without layers; the digest of its manifest."""
        config = {"os": "linux", "architecture": architecture, "rootfs": {"type": "layers", "diff_ids": []}, **more}
        data = json.dumps(config | ({"variant": variant} if variant else {})).encode()
        self.blobs[digest_of(data)] = data
        described = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest_of(data)}
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": described, "layers": []}
        return self.add_manifest(tag, MANIFEST, json.dumps(manifest).encode())

    def add_manifest(self, tag: str, media_type: str, data: bytes) -> str:
        self.manifests[tag] = self.manifests[digest_of(data)] = media_type, data
        return digest_of(data)

    def paths(self, method: str) -> list[str]:
        return [urlsplit(path).path for name, path, _ in self.requests if name == method]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: RegistryServer

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, ssl.SSLError):  # a client that hangs up is none of our business
            self.close_connection = True

    def do_GET(self) -> None:
        registry, path = self.registry, urlsplit(self.path).path
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        registry.requests.append((self.command, self.path, self.headers.get("Authorization", "")))
        registry.headers.append(dict(self.headers))
        redirect = next((target for word, target in registry.redirects.items() if word in path), None)
        if registry.failures:
            wait = {"Retry-After": registry.retry_after} if registry.retry_after else {}
            self._send(registry.failures.pop(0), b"", wait)
        elif registry.page:
            self._send(registry.page[0], registry.page[2], {"Content-Type": registry.page[1]})
        elif redirect and (path == "/token" or self._allowed()):
            self._send(307, b"", {"Location": redirect})
        elif path == "/token":
            self._token(body)
        elif not self._allowed():
            self._challenge()
        elif self.command == "POST":
            self._send(202, b"", {"Location": registry.uploads_at})
        elif self.command == "PUT" and "/uploads/" in path:
            time.sleep(registry.stores_for_s)
            registry.blobs[parse_qs(urlsplit(self.path).query).get("digest", [""])[0]] = body
            self._send(201)
        elif "/referrers/" in path:
            self._referrers(path.rpartition("/")[2])
        elif "/manifests/" in path:
            self._manifest(path.rpartition("/")[2], body)
        else:
            data = registry.blobs.get(path.rpartition("/")[2])
            self._send(404 if data is None else 200, data or b"", {"Content-Type": "application/octet-stream"})

    do_HEAD = do_POST = do_PUT = do_GET

    def _manifest(self, name: str, body: bytes) -> None:
        if self.command == "PUT" and name in self.registry.refused_tags:
            self._send(400)
            return
        if self.command == "PUT":
            self.registry.add_manifest(name, self.headers["Content-Type"], body)
            subject = json.loads(body).get("subject", {}).get("digest")
            self._send(201, b"", {"OCI-Subject": subject} if subject and self.registry.lists_referrers else {})
            return
        found = self.registry.manifests.get(name)
        if not found:
            error = json.dumps({"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}).encode()
            self._send(404, error, {"Content-Type": "application/json"})
            return
        media_type, data = found
        self._send(200, data, {"Content-Type": media_type, "Docker-Content-Digest": digest_of(data)})

    def _referrers(self, digest: str) -> None:
        if not self.registry.lists_referrers:
            self._send(404)
            return
        found = []
        for name, (media_type, data) in self.registry.manifests.items():
            document = json.loads(data)
            if name == digest_of(data) and document.get("subject", {}).get("digest") == digest:
                kind = document.get("artifactType")
                found.append({"mediaType": media_type, "digest": name, "size": len(data), "artifactType": kind})
        listed = {"schemaVersion": 2, "mediaType": INDEX, "manifests": found}
        self._send(200, json.dumps(listed).encode(), {"Content-Type": INDEX})

    def _allowed(self) -> bool:
        header, registry = self.headers.get("Authorization", ""), self.registry
        if registry.auth == "basic":
            return header == _basic(registry)
        return not registry.auth or header.removeprefix("Bearer ") in registry.tokens

    def _challenge(self) -> None:
        basic, realm = 'Basic realm="here"', f"{self.registry.scheme}://{self.registry.host}/token"
        bearer = f'Bearer realm="{realm}",service="some, service",scope="repository:a:pull"'
        own = basic if self.registry.auth == "basic" else bearer
        self._send(401, b"", {"WWW-Authenticate": self.registry.challenge or own, "Set-Cookie": "session=registry"})

    def _token(self, body: bytes) -> None:
        query = parse_qs(urlsplit(self.path).query) | parse_qs(body.decode())
        by_password = self.headers.get("Authorization") == _basic(self.registry)
        by_token = query.get("refresh_token") == [self.registry.refresh_token]
        if query.get("service") != ["some, service"] or not query.get("scope") or not (by_password or by_token):
            self._send(401, b'{"errors": [{"code": "UNAUTHORIZED", "message": "no"}]}')
            return
        token = f"token-{len(self.registry.requests)}-{query['scope']}"
        self.registry.tokens.append(token)
        self._send(200, json.dumps({"token": token}).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes = b"", headers: dict[str, Any] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": len(body)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Quiet."""


def _basic(registry: RegistryServer) -> str:
    return "Basic " + base64.b64encode(f"{registry.user}:{registry.password}".encode()).decode()
