"""Cuts of the connection to a machine: they are told of and outlasted, for a time."""

from __future__ import annotations

import pytest

from skyward.errors import HostLostError
from skyward.runs import follow as module
from skyward.runs.follow import Losses


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for."""
    monkeypatch.setattr(module, "_RETRY_S", 0.001)


def test_a_question_is_asked_until_it_is_answered() -> None:
    """The loss is told of once, and its end."""
    said: list[str] = []
    answers = iter([0, 0, 3, 4])

    def ask() -> int:
        answer = next(answers)
        if not answer:
            raise HostLostError("gpu1 does not answer.")
        return answer

    losses = Losses("gpu1", "train", said.append)
    assert losses.outlast(ask) == 3
    assert losses.outlast(ask) == 4

    assert said == [
        "gpu1 does not answer. Run train may still run there; trying to reach it again.",
        "gpu1 answers again.",
    ]


def test_patience_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what may be, and what to do."""
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)

    def ask() -> None:
        raise HostLostError("gpu1 does not answer.")

    with pytest.raises(HostLostError, match=r"gpu1 has not answered for 0 s. .* the same command tries again"):
        Losses("gpu1", "train", lambda _: None).outlast(ask)
