"""The parameters of pools with names, checked before anything exists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from skyward._pool.config import seconds_of
from skyward.errors import ConfigError
from skyward.records.kept_pool import pools_folder


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(None, None), (90, 90), (0.5, 0.5), ("90s", 90), ("30m", 1800), (" 2 h ", 7200), ("1.5d", 129600)],
)
def test_durations(given: Any, seconds: float | None) -> None:
    """Seconds, or a number with a unit."""
    assert seconds_of("keep", given) == seconds


@pytest.mark.parametrize("given", ["", "soon", "5 weeks", "-5m", 0, -1, True, float("nan"), float("inf"), "11d"])
def test_what_is_no_duration_is_refused(given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what was given; nothing is made."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="keep="):
        sky.ComputePool(sky.Local(), name="warm", keep=given)
    assert not pools_folder().exists()


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "x" * 42, "a b", "a\n"])
def test_what_cannot_be_a_name_is_refused(name: Any) -> None:
    """A name is a directory's as well."""
    with pytest.raises(ConfigError, match="name= may have"):
        sky.ComputePool(sky.Local(), name=name, keep=5)


def test_keep_without_a_name_is_refused() -> None:
    """Nobody would find the pool."""
    with pytest.raises(ConfigError, match="give name= as well"):
        sky.ComputePool(sky.Local(), keep=5)


@pytest.mark.parametrize(
    ("provider", "why"),
    [
        (sky.AWS("eu-west-1"), "sky.AWS keeps none"),
        ([sky.Local(), sky.Docker()], "take one provider"),
    ],
)
def test_providers_that_cannot_keep_a_pool_say_so(provider: Any, why: str) -> None:
    """When the pool is made."""
    with pytest.raises(ConfigError, match=why):
        sky.ComputePool(provider, name="warm", keep=5)
