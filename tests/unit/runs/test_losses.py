"""Cuts of the connection to a machine: they are told of and outlasted, for a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward.errors import HostLostError
from skyward.model.ssh import SshHost
from skyward.runs import follow
from skyward.runs.find import Run
from skyward.runs.follow import Losses
from skyward.runs.there import RunsThere


def test_a_question_is_asked_until_it_is_answered_or_patience_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is told of once, and its end."""
    monkeypatch.setattr(follow, "_RETRY_S", 0.001)
    said: list[str] = []
    answers = iter([0, 0, 3, 4])

    def ask() -> int:
        if answer := next(answers, 0):
            return answer
        raise HostLostError("gpu1 does not answer.")

    losses = Losses(Run(name="train", folder=tmp_path, there=RunsThere(SshHost(host="gpu1"))), said.append)
    assert [losses.outlast(ask), losses.outlast(ask)] == [3, 4]
    lost, again = said
    assert "Run train may still run there" in lost and again == "gpu1 answers again."
    monkeypatch.setattr(follow, "PATIENCE_S", 0.01)
    with pytest.raises(HostLostError, match="gpu1 has not answered for 0 s"):
        losses.outlast(ask)
