"""Transfers of an image to several machines at the same time."""

from __future__ import annotations

from typing import Any

import pytest

from skyward.delivery.deliver import _on_each
from skyward.engine.images import Follow
from skyward.errors import EngineError, ImageError


class Named:
    """A machine, as far as transfers go."""

    def __init__(self, name: str) -> None:
        self.name = name


def machines(count: int = 3) -> Any:
    return [Named(f"gpu{number}") for number in range(1, count + 1)]


@pytest.mark.parametrize(
    ("bad", "kind", "words"),
    [
        (["gpu2"], EngineError, "^no space left on gpu2$"),
        (["gpu1", "gpu2"], ImageError, "^2 hosts could not get the image:\n  gpu[12]  no space left on gpu"),
    ],
)
def test_failures_are_named(bad: list[str], kind: type[Exception], words: str) -> None:
    """The others have the image all the same."""
    got: list[str] = []

    def work(machine: Any, _: Follow) -> None:
        if machine.name in bad:
            raise EngineError(f"no space left on {machine.name}")
        got.append(machine.name)

    with pytest.raises(kind, match=words):
        _on_each(machines(), work, "sending to", print)
    assert sorted(got) == sorted({"gpu1", "gpu2", "gpu3"} - set(bad))
