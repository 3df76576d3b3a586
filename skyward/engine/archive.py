"""What `docker save` writes, as a file: which layers are in it, and the same archive without some of them.

`docker load` looks first for each layer among those that the engine has: one that is there need not be in the archive.
That holds for engines with a store of layers of their own; one that keeps images in containerd wants all of them.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

_CHUNK = 1 << 18


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
            ValueError: it is no archive of one image.
        """
        with tarfile.open(fileobj=file) as tar:
            members = tar.getmembers()
            try:
                (manifest,) = _document(tar, "manifest.json")
                layers = _document(tar, manifest["Config"])["rootfs"]["diff_ids"]
            except (KeyError, TypeError, AttributeError, tarfile.TarError) as error:
                raise ValueError(f"This is no archive of one image: {error!r}.") from error
        starts = [member.offset for member in members]
        end = file.seek(0, 2)
        names = [member.name for member in members]
        parts = tuple(zip(names, starts, [*starts[1:], end], strict=True))
        linked = any(not member.isreg() for member in members if member.name in manifest["Layers"])
        return cls(tuple(layers), parts, () if linked else tuple(manifest["Layers"]))

    def without(self, lowest: int) -> list[tuple[int, int]]:
        """Where the file has what remains without so many of the lowest layers: start and end of each piece."""
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
