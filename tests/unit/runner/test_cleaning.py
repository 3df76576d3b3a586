"""What is removed of what a client has left, as far as this machine can show it without losing anything."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from skyward.runner.entry import container


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory that functions write to here."""
    monkeypatch.setattr(container, "places", lambda: (tmp_path,))
    return tmp_path


def tree(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*"))


def test_what_came_later_goes_and_what_was_there_stays(place: Path) -> None:
    """Also where nobody may look, and behind links; empty directories of the image's own are kept."""
    (place / "own" / "empty").mkdir(parents=True)
    (place / "own" / "data").write_text("image")
    known = container.files()
    outside = place.parent / f"{place.name}-outside"
    outside.mkdir()
    (outside / "file").write_text("another's")
    (place / "own" / "empty" / "new").write_text("x")
    (place / "link").symlink_to(outside)
    (place / "deep" / "er").mkdir(parents=True)
    (place / "deep" / "er" / "file").write_text("x")
    (place / "deep" / "er").chmod(0)
    (place / "deep").chmod(0o500)

    container.remove_files(known, keep=())

    assert tree(place) == ["own", "own/data", "own/empty"]
    assert (outside / "file").read_text() == "another's"


def test_what_has_been_changed_goes(place: Path) -> None:
    """Its old content is nowhere; whoever comes next is better off without it than with somebody else's."""
    (place / "changed").write_text("image")
    (place / "kept").write_text("image")
    known = container.files()
    (place / "changed").write_text("client")
    os.utime(place / "changed", ns=(0, 0))
    (place / "kept").write_text("ours")

    container.remove_files(known, keep=(str(place / "kept"),))

    assert tree(place) == ["kept"]


def test_volumes_are_left_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is mounted below, whoever has written to it."""
    known = container.files()
    (place / "data").mkdir()
    (place / "data" / "file").write_text("x")
    (place / "new").write_text("x")
    monkeypatch.setattr(container, "mounts", lambda: {str(place / "data"): "disk", "/elsewhere": "disk"})

    assert container.volumes() == [str(place / "data")]
    container.remove_files(known, keep=())

    assert tree(place) == ["data", "data/file"]


@pytest.mark.parametrize(
    ("parents", "ended"),
    [
        ({1: 0, 7: 1, 20: 0, 21: 20}, []),
        ({1: 0, 7: 1, 20: 0, 30: 1, 31: 30}, [30, 31]),
        ({1: 0, 7: 1, 8: 7}, [8]),
    ],
    ids=["what the engine has started", "what has lost its parent", "its own children"],
)
def test_only_what_clients_have_started_is_ended(
    parents: dict[int, int], ended: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not init (1), not the standby (7), not other clients and shells, which have no parent in the container."""
    monkeypatch.setattr(container, "_parents", lambda **_: parents)
    monkeypatch.setattr(os, "getpid", lambda: 7)

    assert container._clients() == ended


def test_nothing_is_cleaned_where_other_programs_run() -> None:
    """This machine, or a container in which a shell or a test has started the standby."""
    with subprocess.Popen(["sleep", "60"]) as other:
        assert not container.is_alone()
        other.kill()
