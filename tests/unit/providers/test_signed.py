"""Pools that want to see a signature."""

from __future__ import annotations

from pathlib import Path

import pytest

import skyward as sky
from skyward.errors import ConfigError


def test_a_key_that_is_not_there(tmp_path: Path) -> None:
    """It is missed when the pool is described, before anything is created."""
    with pytest.raises(ConfigError, match=r"verify= names the file of a public key; there is no .*none\.pub"):
        sky.ComputePool(sky.Local(), verify=str(tmp_path / "none.pub"))


def test_a_provider_without_a_registry(tmp_path: Path) -> None:
    """A check that cannot be made is refused, not left out, when the pool is described: nothing exists yet."""
    key = tmp_path / "team.pub"
    key.touch()
    for provider in (sky.Local(), sky.Docker(), sky.SSH("node1"), [sky.SSH("node1", registry="r.io/x"), sky.Local()]):
        with pytest.raises(ConfigError, match=r"team\.pub'\) requires a signature of the image.* registry="):
            sky.ComputePool(provider, verify=str(key), display="quiet")
    sky.ComputePool(sky.SSH("node1", registry="r.io/x"), verify=str(key), display="quiet")
