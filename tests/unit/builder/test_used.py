"""When images were last used."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from skyward.builder.store import forget_use, last_use, note_use

TAG = "skyward:sky-1-0123456789abcdef"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_use_is_remembered_for_the_identity() -> None:
    """Whatever repository its tag stands in."""
    assert last_use(TAG) is None
    note_use(TAG)
    assert last_use("host:5000/team/x:sky-1-0123456789abcdef") == pytest.approx(time.time(), abs=5)
    assert last_use("skyward:sky-1-fedcba9876543210") is None


def test_what_is_gone_is_forgotten() -> None:
    """Also twice."""
    note_use(TAG)
    forget_use(TAG)
    forget_use(TAG)
    assert last_use(TAG) is None
