"""What `make engine` says of the machine, and what it leaves to others."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts.engine import commands, daemon, debian
from scripts.engine.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """An empty clone with its engine folder."""
    (tmp_path / ".engine").mkdir()
    return Place(tmp_path)


@pytest.mark.parametrize(("free_gb", "told"), [(3.2, "only 3.2 GB are free in"), (500, "")])
def test_a_disk_with_little_room_is_told(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], free_gb: float, told: str
) -> None:
    """In a sentence that names the folder and the way out; a disk with room is not spoken of."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=int(free_gb * 1e9)))

    commands._tell_room(place)

    out = capsys.readouterr().out
    assert (told in out) if told else not out
    assert not told or ("make clean" in out and str(place.root) in out)


@pytest.mark.parametrize(
    ("has_sshd", "is_root", "installs"), [(True, True, False), (False, True, True), (False, False, False)]
)
def test_the_ssh_server_of_the_tests(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    has_sshd: bool,
    is_root: bool,
    installs: bool,
) -> None:
    """Is installed where it is missing and can be; who is not root is told, and nothing fails."""
    asked: list[Any] = []
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/usr/sbin/{name}" if has_sshd else None)
    monkeypatch.setattr(os, "geteuid", lambda: 0 if is_root else 1000)
    monkeypatch.setattr(debian, "is_debian", lambda: True)
    monkeypatch.setattr(debian, "ensure", lambda _place, packages, **_: asked.append(packages))

    commands._ssh_server(place)

    assert bool(asked) == installs
    assert all("openssh-server" in packages for packages in asked)
    assert ("openssh-server" in capsys.readouterr().out) == (not has_sshd and not is_root)


def test_builds_keep_a_bounded_cache(place: Place) -> None:
    """The private engine drops old layers and wheels of builds by itself."""
    gc = json.loads(json.dumps(daemon._settings(place)))["builder"]["gc"]

    assert gc["enabled"] is True
    assert gc["defaultKeepStorage"].endswith("GB")
