"""Archives of images lose the layers that are there already, and nothing else."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from skyward.engine.images import Archive, read

LAYERS = {"a/layer.tar": b"a" * 700_000, "b/layer.tar": b"b" * 10, "c/layer.tar": b"c" * 3000}
CONFIG = {"rootfs": {"diff_ids": ["sha256:1", "sha256:2", "sha256:3"]}}


def archive(path: Path, *, link: str | None = None) -> Path:
    """What an engine writes: the layers in no order of theirs, the manifest last."""
    files = {**dict(reversed(LAYERS.items())), "x.json": json.dumps(CONFIG).encode()}
    manifest = [{"Config": "x.json", "RepoTags": ["a:1"], "Layers": list(LAYERS)}]
    files["manifest.json"] = json.dumps(manifest).encode()
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), 1.5  # which takes a header of its own
            if name == link:
                info.type, info.linkname, info.size = tarfile.SYMTYPE, "../a/layer.tar", 0
            tar.addfile(info, io.BytesIO(content))
    return path


def names_without(path: Path, lowest: int) -> list[str]:
    with path.open("rb") as file:
        data = b"".join(read(file, Archive.of(file).without(lowest)))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar.getmembers():
            content = tar.extractfile(member)
            assert (
                not member.isreg() or member.name not in LAYERS or not content or content.read() == LAYERS[member.name]
            )
        return tar.getnames()


def test_an_archive_is_whole_without_sparing(tmp_path: Path) -> None:
    """Byte for byte."""
    path = archive(tmp_path / "a.tar")
    with path.open("rb") as file:
        assert b"".join(read(file, Archive.of(file).without(0))) == path.read_bytes()


def test_the_lowest_layers_are_left_out(tmp_path: Path) -> None:
    """Lowest by the image's own order; the rest can be read."""
    path = archive(tmp_path / "a.tar")
    assert names_without(path, 2) == ["c/layer.tar", "x.json", "manifest.json"]
    assert names_without(path, 3) == ["x.json", "manifest.json"]


def test_an_archive_with_links_between_layers_stays_whole(tmp_path: Path) -> None:
    """The layer that a link leads to is needed though it is there."""
    path = archive(tmp_path / "a.tar", link="c/layer.tar")
    assert len(names_without(path, 2)) == 5


def test_layers_are_told_from_the_lowest_up(tmp_path: Path) -> None:
    """By the digests that engines know them by."""
    with archive(tmp_path / "a.tar").open("rb") as file:
        assert Archive.of(file).layers == ("sha256:1", "sha256:2", "sha256:3")


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    """A tar of something else."""
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        tar.addfile(tarfile.TarInfo("hello"))
    with path.open("rb") as file, pytest.raises(ValueError, match="not an archive of one image"):
        Archive.of(file)
