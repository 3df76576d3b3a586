"""Hashes of package files, which are large: read once, and again when they have changed."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from skyward.builder.files.copied import sha256_of


def test_a_file_is_read_once_and_again_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second answer comes from the cache, which a changed file of the same name and size does not meet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wheel = tmp_path / "big-1.0-py3-none-any.whl"
    wheel.write_bytes(b"one")
    assert sha256_of(wheel) == sha256(b"one").hexdigest()
    kept = list((tmp_path / "cache/skyward/hashes").iterdir())
    assert len(kept) == 1
    kept[0].write_text("f" * 64)
    assert sha256_of(wheel) == "f" * 64  # taken from the cache
    wheel.unlink()
    wheel.write_bytes(b"two")
    assert sha256_of(wheel) == sha256(b"two").hexdigest()
    kept[0].write_text("cut off")
    assert sha256_of(wheel) == sha256(b"two").hexdigest()
