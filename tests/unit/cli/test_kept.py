"""`skyward down` and pools with names that are kept where it was not told to look."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from skyward.cli.main import main
from skyward.records.kept_pool import KeptPool, pool_folder


def test_a_pool_that_is_kept_elsewhere_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its record has the keys of nodes that run: it stays, and the message says where they are."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = pool_folder("warm")
    folder.mkdir(parents=True)
    record = KeptPool(name="warm", pool="0badcafe", provider="SSH(hosts=('gpu1',))", until=time.time() + 600)
    record.write(folder)
    assert main(["down", "warm"]) == 1
    assert "it is kept on SSH(hosts=('gpu1',)). Name that place with --at." in capsys.readouterr().err
    assert KeptPool.read(folder) == record
