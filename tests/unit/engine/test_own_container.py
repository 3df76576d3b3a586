"""Where an engine sees the files of a client that it runs in a container itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward.engine import container
from skyward.engine.container import seen_by_engine, this_container

ID = "d59f78b19621bc8cc494b9a977a45df070332b6734e0f0c6e819d1a29807fc62"
ABOUT = {
    "Mounts": [
        {"Destination": "/data", "Source": "/srv/data"},
        {"Destination": "/data/run", "Source": "/var/lib/docker/volumes/v/_data"},
    ],
    "GraphDriver": {"Data": {"MergedDir": "/var/lib/docker/overlay2/x/merged"}},
}


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("/data/a", "/srv/data/a"),
        ("/data/run/skyward-1/0", "/var/lib/docker/volumes/v/_data/skyward-1/0"),
        ("/data2/a", "/var/lib/docker/overlay2/x/merged/data2/a"),
        ("/tmp/skyward-1/0", "/var/lib/docker/overlay2/x/merged/tmp/skyward-1/0"),
    ],
)
def test_the_innermost_mount_counts(here: str, there: str) -> None:
    """Else the container's own layer."""
    assert str(seen_by_engine(Path(here), ABOUT)) == there


def test_what_is_not_known_stays() -> None:
    """As with images in containerd, whose layers have no place that is told."""
    assert seen_by_engine(Path("/tmp/a"), {"Mounts": [], "GraphDriver": {"Data": None}}) == Path("/tmp/a")


def test_a_container_is_known_by_the_files_that_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a machine that has none is no container."""
    table = tmp_path / "mountinfo"
    monkeypatch.setattr(container, "_MOUNTS", table)
    assert this_container() is None
    table.write_text("22 1 254:0 / / rw - ext4 /dev/vda rw\n")
    assert this_container() is None
    table.write_text(f"145 127 254:0 /var/lib/docker/containers/{ID}/hostname /etc/hostname rw - ext4 /dev/vda rw\n")
    assert this_container() == ID
