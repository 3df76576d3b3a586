"""The identity of an image: everything that decides its content in one canonical form, and the hash of that.

Out of it are: names of bases and indexes' mirrors, secrets' values, labels, origins, paths and times of this machine.
Texts are taken as they are: to normalise their Unicode would give two contents one name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

DOMAIN = "skyward.image"


def canonical(value: Any) -> str:
    """JSON with its keys in order and no space, so that equal values are equal texts on every machine and Python.

    Raises:
        TypeError: a value is no text, number, truth value, list, mapping of these, or None.
    """
    return json.dumps(_checked(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def identity_of(inputs: Mapping[str, str]) -> str:
    """SHA-256 (hex) over named inputs, each of them canonical."""
    whole = canonical([DOMAIN, [[name, text] for name, text in sorted(inputs.items())]])
    return hashlib.sha256(whole.encode()).hexdigest()


def digest_of(value: Any) -> str:
    """SHA-256 (hex) of a value's canonical form."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def _checked(value: Any) -> Any:
    """The value with tuples as lists; anything whose text could differ from run to run is refused."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, (list, tuple)):
        return [_checked(item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _checked(item) for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} has no canonical form: {value!r}")
