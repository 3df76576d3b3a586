"""Functions that look at where they are, on bases that others made."""

from __future__ import annotations

import skyward as sky


@sky.compute
def found(*modules: str) -> dict[str, str]:
    """Where each module comes from."""
    from importlib import import_module

    return {name: str(import_module(name).__file__) for name in modules}


@sky.compute
def variables(*names: str) -> list[str | None]:
    import os

    return [os.environ.get(name) for name in names]
