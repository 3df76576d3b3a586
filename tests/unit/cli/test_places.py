"""Where commands look: this machine, the places of this user's records, and those of `--at`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

import skyward as sky
from skyward.cli import places
from skyward.cli.places import Place, ask_all, place_options
from skyward.errors import ProviderError


def found(monkeypatch: pytest.MonkeyPatch, recorded: list[str], *words: str) -> list[tuple[str, bool]]:
    """The places that a command receives: their names, and whether only records name them."""
    monkeypatch.setattr(places, "recorded", lambda: {each: {"cafe0001"} for each in recorded})
    seen: list[tuple[str, bool]] = []

    @place_options
    def command(places: Sequence[Place]) -> int:
        seen.extend((each.name, each.is_recorded) for each in places)
        return 0

    import click

    assert CliRunner().invoke(click.command()(command), words, standalone_mode=False).exception is None
    return seen[2:]


def test_places_are_looked_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that the user names is not a recorded one; one whose key is gone is left out."""
    recorded = ["ssh://gpu1", "ssh://gpu2", f"ssh://gpu3?key={tmp_path}/gone"]

    assert found(monkeypatch, recorded, "--at", "ssh://gpu1") == [("gpu1", False), ("gpu2", True)]


def test_recorded_places_that_do_not_answer_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may have been switched off; the others are shown."""
    import threading

    never = threading.Event()
    monkeypatch.setattr(places, "_RECORDED_S", 0.1)
    monkeypatch.setattr(sky.SSH, "find", lambda _: never.wait(600))
    monkeypatch.setattr(sky.Local, "find", lambda _: [])
    given = [Place("local", sky.Local()), Place("gpu1", sky.SSH("gpu1"), pools=frozenset())]

    (_, local), (_, gpu1) = ask_all(given)
    never.set()

    assert local == []
    assert isinstance(gpu1, ProviderError)
