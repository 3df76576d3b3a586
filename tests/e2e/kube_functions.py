"""Functions that the tests of `sky.Kubernetes` send to nodes; nothing here is imported from pytest."""

from __future__ import annotations

import skyward as sky


@sky.compute
def fill(gigabytes: float) -> int:
    """Use so much memory."""
    return len(bytearray(int(gigabytes * (1 << 30))))
