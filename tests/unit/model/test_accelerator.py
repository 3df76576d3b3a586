"""Accelerators by name: what is known of them, and what must be said of others."""

from __future__ import annotations

import pytest

import skyward as sky
from skyward.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "name", "count", "cuda"), [("a100:4", "A100", 4, True), ("MI300X", "MI300X", 1, False)]
)
def test_known_names_say_what_they_are(text: str, name: str, count: int, cuda: bool) -> None:
    """In any spelling, with a number after a colon."""
    found = sky.Accelerator.of(text)
    assert found is not None
    assert (found.name, found.count, found.cuda) == (name, count, cuda)


@pytest.mark.parametrize(("name", "advice"), [("H10O", "is 'H100' meant"), ("B9000", "B300"), ("Gaudi3", "known are")])
def test_an_unknown_name_is_no_nvidia_gpu(name: str, advice: str) -> None:
    """It is refused with what may be meant, and how another one is described."""
    with pytest.raises(ConfigError, match=f"{name}.*not known; .*{advice}.*cuda=True"):
        sky.ComputePool(sky.Local(), accelerator=name)


def test_another_accelerator_can_be_described() -> None:
    """By what images and pools have to know of it."""
    described = sky.Accelerator("B9000", memory_gb=400, cuda=True)
    assert (described.name, described.memory_gb, described.cuda) == ("B9000", 400, True)
