"""What a caller asks of a pool, in its final form."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import skyward as sky
from skyward._pool.config import memory_of
from skyward.errors import ConfigError
from skyward.providers import Provider


@pytest.mark.parametrize(
    ("memory", "count"),
    [
        ("1GiB", 1024**3),
        ("1Gi", 1024**3),
        ("1GB", 10**9),
        ("1g", 10**9),
        (1, 10**9),
        ("1.5 GB", 15 * 10**8),
        ("512MB", 512 * 10**6),
        ("512MiB", 512 * 1024**2),
        ("2TB", 2 * 10**12),
        ("2 tib", 2 * 1024**4),
    ],
)
def test_memory_has_the_bytes_that_its_unit_says(memory: str | float, count: int) -> None:
    """Nodes get exactly so many: the engine is told the GiB times 1024**3."""
    gib = memory_of(memory)
    assert gib is not None
    assert int(gib * 1024**3) == count


@pytest.mark.parametrize("memory", ["1KB", "many", "0GB", -1])
def test_other_amounts_are_refused(memory: str | float) -> None:
    """Nothing is guessed."""
    with pytest.raises(ConfigError, match="memory"):
        memory_of(memory)


@pytest.mark.parametrize("provider", [sky.Local(), sky.Docker()])
def test_an_image_for_another_python_is_refused_by_the_constructor(provider: Provider) -> None:
    """Nodes of another version could run no function: that is said before an image is built for minutes."""
    other = f"3.{sys.version_info[1] + 1}"
    with pytest.raises(ConfigError, match=f"python='{other}', but this client runs Python 3.*leave python='auto'"):
        sky.ComputePool(provider, image=sky.Image(python=other))


def test_missing_includes_are_refused_by_the_constructor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is created; on a node, where the client's files are not, a pool may be made and never opened."""
    monkeypatch.chdir(tmp_path)
    image = sky.Image(includes=["src"])
    with pytest.raises(ConfigError, match=r"names 'src', but .* does not exist"):
        sky.ComputePool(sky.Local(), image=image)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/.env").write_text("")
    with pytest.raises(ConfigError, match=r"src/\.env: it seems to hold credentials"):
        sky.ComputePool(sky.Local(), image=image)
    monkeypatch.setenv("COMPUTE_POOL", "{}")
    assert not sky.ComputePool(sky.Local(), image=image).is_active
