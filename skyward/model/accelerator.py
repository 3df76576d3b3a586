"""Accelerators by their common names, with the properties that the image compiler uses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from skyward.errors import ConfigError
from skyward.model.parameters import suggesting

# memory of one device in GB, by the name people use; every one of them runs CUDA
_NVIDIA = {
    "T4": 16, "T4G": 16, "L4": 24, "L20": 48, "L40": 48, "L40S": 48, "A2": 16, "A10": 24, "A10G": 24, "A30": 24,
    "A40": 48, "V100": 16, "P4": 8, "P40": 24, "P100": 16, "K80": 12,
    "A100": 40, "A100-80GB": 80, "H20": 96, "H100": 80, "H200": 141, "GH200": 96, "B200": 180, "B300": 270,
    "RTX3070": 8, "RTX3080": 10, "RTX3090": 24, "RTX4080": 16, "RTX4090": 24, "RTX5080": 16, "RTX5090": 32,
    "A4000": 16, "A5000": 24, "A6000": 48,
}  # fmt: skip
_OTHER = {"Trainium": 32, "Trainium2": 96, "Inferentia2": 32, "MI300X": 192, "MI250X": 128}
_SPELLING = {name.lower(): name for name in (*_NVIDIA, *_OTHER)}


@suggesting("sky.Accelerator")
@dataclass(frozen=True, slots=True)
class Accelerator:
    """A kind and number of accelerators on each node.

    Attributes:
        name: common name such as "A100" or "T4"; any other one needs `cuda=`.
        count: devices per node.
        memory_gb: memory of one device in GB; None for what the name usually has.
        cuda: whether it runs CUDA; None for what the name says.

    Raises:
        ConfigError: the name is empty, or unknown and `cuda` not given; or the count is below 1.
    """

    name: str
    count: int = 1
    memory_gb: float | None = None
    cuda: bool | None = None

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigError("An accelerator needs a name such as 'A100'; found an empty one.")
        if isinstance(self.count, bool) or self.count < 1:
            raise ConfigError(
                f"An accelerator's count is the number of devices per node, at least 1; found {self.count}."
            )
        name = _SPELLING.get(self.name.strip().lower(), self.name.strip())
        object.__setattr__(self, "name", name)
        if self.memory_gb is None:
            object.__setattr__(self, "memory_gb", {**_NVIDIA, **_OTHER}.get(name))
        if self.cuda is None:
            if name not in _NVIDIA and name not in _OTHER:
                raise ConfigError(_unknown(name))
            object.__setattr__(self, "cuda", name not in _OTHER)

    @classmethod
    def of(cls, value: Accelerator | str | None) -> Accelerator | None:
        """The accelerator a caller means: an object, a name ("A100"), a name with a count ("A100:4"), or None."""
        if value is None or isinstance(value, Accelerator):
            return value
        if not isinstance(value, str):
            raise ConfigError(
                "accelerator= takes a name, with the devices per node if there are several, such as 'A100:4', or "
                f"sky.Accelerator(...); found {value!r}."
            )
        name, _, count = value.partition(":")
        if count and not count.isdigit():
            raise ConfigError(
                f"Accelerator {value!r}: after the colon stands the number of devices per node, as in 'A100:4'."
            )
        return cls(name, int(count) if count else 1)

    @property
    def is_trainium(self) -> bool:
        """Whether this is one of AWS's own training chips."""
        return self.name.startswith("Trainium")


def fits(accelerator: Accelerator, shown: str) -> bool:
    """Whether a GPU that NVIDIA's driver calls so may be this accelerator; False where it certainly is another.

    The driver says "NVIDIA A100-SXM4-80GB" or "NVIDIA GeForce RTX 4090". A name that is not known fits all.
    """
    words = _words(shown)
    models = _models(words)
    wanted, _, gigabytes = accelerator.name.partition("-")
    if not models or wanted not in _NVIDIA:
        return True
    if wanted not in models:
        return False
    told = next((int(word[:-2]) for word in words if re.fullmatch(r"[0-9]+GB", word)), None)
    return not gigabytes or told is None or f"{told}GB" == gigabytes


def model_of(shown: str) -> str | None:
    """The common name of a GPU that NVIDIA's driver calls so; None where it is not known."""
    return next(iter(sorted(_models(_words(shown)))), None)


def _words(shown: str) -> list[str]:
    return re.findall(r"[A-Z0-9]+", shown.upper())


def _models(words: list[str]) -> set[str]:
    return {*words, *map("".join, pairwise(words))} & _NVIDIA.keys()


def _unknown(name: str) -> str:
    from difflib import get_close_matches  # 5 ms that a pool without mistakes saves

    near = get_close_matches(name.lower(), _SPELLING, 1)
    counted = re.fullmatch(r"(?:(\d+)\s*x\s*)?(.*?)(?:\s*[x*]\s*(\d+))?", name, re.IGNORECASE)
    if counted and (counted[1] or counted[3]) and (known := _SPELLING.get(counted[2].lower())):
        meant = f"{known}:{counted[1] or counted[3]}"
        return f"The accelerator {name!r} is not known: for so many {known} on each node write {meant!r}."
    meant = f"is {_SPELLING[near[0]]!r} meant?" if near else f"known are {', '.join((*_NVIDIA, *_OTHER))}."
    return (
        f"The accelerator {name!r} is not known; {meant} For another one say whether it runs CUDA: "
        f"sky.Accelerator({name!r}, memory_gb=..., cuda=True)."
    )
