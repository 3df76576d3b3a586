"""Moving images: out of one engine into others as a stream, or from a registry. Standard library only.

`docker load` looks first for each layer among those that the engine has: one that is there need not be in the archive.
That holds for engines with a store of layers of their own; one that keeps images in containerd wants all of them.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from socket import SHUT_RDWR
from time import monotonic
from typing import IO, Any
from urllib.parse import urlencode

from skyward.engine.address import EngineAddress
from skyward.engine.failures import broken_off, not_pulled, translate
from skyward.engine.lines import SocketLine, auth_header

_CHUNK = 1 << 18


def save(engine: EngineAddress, ref: str) -> Iterator[bytes]:
    """An image with its tag, as `docker save` writes it.

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
    """Load an image that `save` has read into an engine.

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
            broken = error  # an engine that refuses hangs up, and has said why before that
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
    """A pull of an image by an engine, followed from another thread: how far it is, and whether it goes on.

    Attributes:
        bytes: downloaded so far.
        total: bytes of the layers that are known so far.
        moved: monotonic time of the last progress.
        retrying: what the engine says while it asks the registry again; "" otherwise.
    """

    def __init__(self, engine: EngineAddress, ref: str, auth: Mapping[str, str]) -> None:
        self.bytes = self.total = 0
        self.moved, self.retrying = monotonic(), ""
        self._engine, self._ref, self._auth = engine, ref, auth
        self._line = SocketLine(engine)
        self._layers: dict[str, tuple[int, int]] = {}

    def run(self) -> None:
        """Pull, with these credentials for this one pull; the engine does not keep them.

        Raises:
            ImageNotFoundError: the registry does not have it, refuses, or cannot be reached; says which.
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
        """End it."""
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
    """An archive of one image in a file that can be read from any place.

    Attributes:
        layers: digests of the layers, the lowest first.
        parts: name, start and end of each of its entries, in order; the last is the mark of the end.
        paths: the entry of each layer.
    """

    layers: tuple[str, ...]
    parts: tuple[tuple[str, int, int], ...]
    paths: tuple[str, ...]

    @classmethod
    def of(cls, file: IO[bytes]) -> Archive:
        """The archive in a file.

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
        """The pieces of the file, as start and end, that remain without so many of the lowest layers."""
        spared = set(self.paths[:lowest]) - set(self.paths[lowest:])
        return [(start, end) for name, start, end in self.parts if name not in spared]


def read(file: IO[bytes], pieces: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """These pieces of a file, one after the other; several threads may read it at once."""
    for start, end in pieces:
        while start < end and (chunk := os.pread(file.fileno(), min(_CHUNK, end - start), start)):
            start += len(chunk)
            yield chunk


def _document(tar: tarfile.TarFile, name: str) -> Any:
    member = tar.extractfile(name)
    assert member is not None
    return json.loads(member.read())
