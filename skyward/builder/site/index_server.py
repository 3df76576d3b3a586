"""An HTTP server of local package folders for builds: package indexes on the loopback interface.

A build cannot see this machine's files, and mounting them would put their content into cache keys. So the folders are
served while the build runs, below a path that only this user's builds know.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import threading
from collections.abc import Iterator
from html import escape
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copyfileobj
from types import TracebackType
from typing import Self
from urllib.parse import quote, unquote, urljoin, urlsplit
from zipfile import BadZipFile, ZipFile

from skyward.builder.files.copied import sha256_of
from skyward.builder.folders import cache_path, read, write
from skyward.model.image import package_name

_ENDINGS = (".whl", ".tar.gz", ".zip")
_JSON = "application/vnd.pypi.simple.v1+json"  # https://packaging.python.org/en/latest/specifications/simple-repository-api/


class FolderServer:
    """Server of folders during a `with` block; `url(folder)` returns the address of a folder.

    A folder holds either package files, or one folder per package as a PEP 503 index has them (`index.html` or files).
    The address stays the same across builds if possible, because uv's cache depends on it.
    """

    def __init__(self, *, port_there: int | None = None) -> None:
        """`port_there` is the port for a build on another machine, on that machine's loopback interface."""
        self._there = port_there
        self._token = _own_token()
        self._folders: list[Path] = []
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def url(self, folder: Path) -> str:
        """Return the address of a folder, as an index and as a page of files; the first call starts the server."""
        if self._server is None:
            self._server = self._listen()
            serve = self._server.serve_forever
            # the interval limits how long the end of a build waits for the server
            threading.Thread(target=serve, args=(0.05,), name="skyward-folders", daemon=True).start()
        if folder not in self._folders:
            self._folders.append(folder)
        # the folder's own path instead of a counter, as the address must not depend on the order of folders
        port = self._there or self._server.server_address[1]
        return f"http://127.0.0.1:{port}/{self._token}{quote(folder.as_posix())}"

    @property
    def forward(self) -> str | None:
        """The port to forward for a build on another machine, as ssh's option -R; None if nothing is served."""
        if self._there is None or self._server is None:
            return None
        return f"127.0.0.1:{self._there}:127.0.0.1:{self._server.server_address[1]}"

    def _listen(self) -> ThreadingHTTPServer:
        handler = type("Handler", (_Handler,), {"token": self._token, "folders": self._folders})
        try:
            return _Server(("127.0.0.1", 42000 + int(self._token[:4], 16) % 4000), handler)
        except OSError:  # the port is in use
            return _Server(("127.0.0.1", 0), handler)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore connections broken by a build that ends during a download; the build reports its own errors."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    token: str
    folders: list[Path]

    def do_GET(self) -> None:
        _, token, path = (*unquote(urlsplit(self.path).path).split("/", 2), "")[:3]
        rest = f"/{path}"
        matching = [f for f in self.folders if f"{rest}/".startswith(f"{f.as_posix()}/")]
        folder = max(matching, key=lambda f: len(f.parts), default=None)
        if not hmac.compare_digest(token.encode(), self.token.encode()) or folder is None:
            self.send_error(404)
            return
        self._answer(folder, rest.removeprefix(folder.as_posix()).strip("/"))

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, folder: Path, wanted: str) -> None:
        package, _, name = wanted.rpartition("/")
        name, dot_metadata = (name.removesuffix(".metadata"), name.endswith(".whl.metadata"))
        if name.endswith(_ENDINGS):
            target = distributions(folder, package or None).get(name)
            metadata = _metadata(target) if target and dot_metadata else None
            if target is None or (dot_metadata and metadata is None):
                self.send_error(404)
            elif metadata is not None:
                self._send(metadata, "text/plain; charset=utf-8")
            else:
                self._send_file(target)
            return
        files = distributions(folder, wanted or None)
        path = quote(unquote(urlsplit(self.path).path)).rstrip("/")
        if wanted and not files:
            self.send_error(404)
        elif wanted and _JSON in self.headers.get("Accept", ""):
            self._send(_project(package_name(wanted), path, files), _JSON)
        else:
            self._send(_page(path, files), "text/html; charset=utf-8")

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_file(self, path: Path) -> None:
        with path.open("rb") as file:
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
            self.end_headers()
            if self.command != "HEAD":
                copyfileobj(file, self.wfile, 1 << 20)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - fixed by the base class
        """Log no requests, as their paths contain the token."""


def distributions(folder: Path, package: str | None = None) -> dict[str, Path]:
    """Return the package files of a folder by name: those of one package, or all directly in the folder."""
    files = {path.name: path for path in _package_files(folder)}
    if package is None:
        return files
    files = {name: path for name, path in files.items() if _distribution(name) == package_name(package)}
    own = folder / package_name(package)
    if (own / "index.html").is_file():
        files.update({path.name: path for path in _linked(own / "index.html")})
    elif own.is_dir():
        files.update({path.name: path for path in _package_files(own)})
    return files


def _package_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.name.endswith(_ENDINGS) and path.is_file())


def _distribution(file: str) -> str:
    """Return the package that a file name belongs to."""
    stem = re.sub(r"\.(whl|tar\.gz|zip)$", "", file)
    return package_name(stem.split("-")[0] if file.endswith(".whl") else stem.rpartition("-")[0])


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _linked(page: Path) -> Iterator[Path]:
    """Yield the local package files that a page of an index links to."""
    links = _Links()
    links.feed(page.read_text(encoding="utf-8"))
    for link in links.found:
        target = urlsplit(urljoin(page.as_uri(), link))
        path = Path(unquote(target.path))
        if target.scheme == "file" and path.name.endswith(_ENDINGS) and path.is_file():
            yield path


def _metadata(wheel: Path) -> bytes | None:
    """Return a wheel's METADATA, so that resolving does not have to download the whole file."""
    try:
        with ZipFile(wheel) as archive:
            name = next((n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n)), None)
            return archive.read(name) if name else None
    except (BadZipFile, OSError):
        return None


def _page(path: str, files: dict[str, Path]) -> bytes:
    """Return a page of links with the files' hashes; without them, locking would have to download every file."""
    links = []
    for name in sorted(files):
        metadata = ' data-core-metadata="true"' if name.endswith(".whl") else ""
        link = f"{path}/{quote(name)}#sha256={sha256_of(files[name])}"
        links.append(f'<a href="{link}"{metadata}>{escape(name)}</a><br>')
    return ("<!DOCTYPE html><html><body>\n" + "\n".join(links) + "\n</body></html>\n").encode()


def _project(name: str, path: str, files: dict[str, Path]) -> bytes:
    """Return the files of one package as JSON. It includes their sizes, which determine the split into layers."""
    entries = [
        {
            "filename": file,
            "url": f"{path}/{quote(file)}",
            "hashes": {"sha256": sha256_of(files[file])},
            "core-metadata": file.endswith(".whl"),
            "size": files[file].stat().st_size,
        }
        for file in sorted(files)
    ]
    return json.dumps({"meta": {"api-version": "1.0"}, "name": name, "files": entries}).encode()


def _own_token() -> str:
    """Return a random token that only this user can read; it is stored, so that addresses stay the same."""
    file = cache_path("loopback-token")
    token = (read(file) or "").strip()
    if not re.fullmatch(r"[0-9a-f]{32}", token):
        token = secrets.token_hex(16)
        write(file, token)
    return token
