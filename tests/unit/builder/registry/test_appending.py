"""The layer that is put on an image: what is in it, and that nothing else decides its bytes."""

from __future__ import annotations

import io
import itertools
import tarfile

import pytest

from skyward.builder.registry.appending import BakedFile, append, layer_tar
from skyward.errors import ConfigError

FILES = (
    BakedFile("train.py", b"print(1)\n"),
    BakedFile("package/__init__.py", b""),
    BakedFile("package/ümlaut.py", "ä".encode()),
    BakedFile("run.sh", b"#!/bin/sh\n", executable=True),
)


def members(data: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getmembers()


def test_what_is_in_a_layer() -> None:
    """Directories from the given one down, then files; modes say whether a file may be run."""
    found = [(member.name, member.type, member.mode) for member in members(layer_tar(FILES, "/opt/code"))]

    assert found == [
        ("opt/code", tarfile.DIRTYPE, 0o755),
        ("opt/code/package", tarfile.DIRTYPE, 0o755),
        ("opt/code/package/__init__.py", tarfile.REGTYPE, 0o644),
        ("opt/code/package/ümlaut.py", tarfile.REGTYPE, 0o644),
        ("opt/code/run.sh", tarfile.REGTYPE, 0o755),
        ("opt/code/train.py", tarfile.REGTYPE, 0o644),
    ]


def test_a_layer_depends_on_its_files_only() -> None:
    """Whatever the order, the bytes are the same; no time, owner or name of this machine is in them."""
    layers = {layer_tar(files, "/opt/code") for files in itertools.permutations(FILES)}

    assert len(layers) == 1
    for member in members(layers.pop()):
        assert (member.mtime, member.uid, member.gid, member.uname, member.gname) == (0, 0, 0, "", "")


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/x", "", ".", "train.py", "package"])
def test_wrong_paths(path: str) -> None:
    """Nothing lies outside of the directory, or twice in it."""
    with pytest.raises(ConfigError, match="file"):
        layer_tar([*FILES, BakedFile(path, b"x")], "/opt/code")


def test_a_file_that_is_a_directory_too() -> None:
    """In whatever order they come."""
    with pytest.raises(ConfigError, match="directory"):
        layer_tar([BakedFile("a", b""), BakedFile("a/b", b"")], "/opt/code")


@pytest.mark.parametrize("into", ["code", "/", "/opt/../etc", ""])
def test_wrong_directories(into: str) -> None:
    """The directory is given by its absolute path."""
    with pytest.raises(ConfigError, match="absolute"):
        layer_tar(FILES, into)


@pytest.mark.parametrize("target", ["b.io/x:1", "a.io/x@sha256:" + "0" * 64])
def test_another_registry(target: str) -> None:
    """Layers cannot be taken over from another registry; a digest cannot be chosen."""
    with pytest.raises(ConfigError, match="same registry"):
        append("a.io/x:1", target, FILES, into="/opt/code", platform="linux/amd64")
