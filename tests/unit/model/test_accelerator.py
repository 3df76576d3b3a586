"""Accelerators by name: what is known of them, and what must be said of others."""

from __future__ import annotations

import pytest

import skyward as sky
from skyward.errors import ConfigError
from skyward.model.spec import fits


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


@pytest.mark.parametrize(
    ("name", "shown", "expected"),
    [
        ("A100", "NVIDIA A100-SXM4-80GB", True),
        ("A100", "NVIDIA A100 80GB PCIe", True),
        ("A100-80GB", "NVIDIA A100 80GB PCIe", True),
        ("A100-80GB", "NVIDIA A100-SXM4-40GB", False),
        ("A100", "NVIDIA H100 80GB HBM3", False),
        ("A10", "NVIDIA A10G", False),
        ("T4", "Tesla T4", True),
        ("RTX4090", "NVIDIA GeForce RTX 4090", True),
        ("RTX4090", "NVIDIA GeForce RTX 3090", False),
        ("A6000", "NVIDIA RTX A6000", True),
        ("A100", "NVIDIA GeForce RTX 2080 Ti", True),
        ("A100", "", True),
    ],
)
def test_what_the_driver_shows_is_compared_with_what_is_asked_for(name: str, shown: str, expected: bool) -> None:
    """Only what is certainly another GPU does not fit."""
    assert fits(sky.Accelerator(name), shown) is expected


def test_an_accelerator_of_an_own_name_fits_any_gpu() -> None:
    """Nobody knows what the driver calls it."""
    assert fits(sky.Accelerator("B9000", cuda=True), "NVIDIA H100 80GB HBM3")
