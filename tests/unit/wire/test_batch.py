"""Several values in one payload, each as if it had been sent by itself."""

from __future__ import annotations

import numpy as np

from skyward.wire.batch import Packer, Unpacker
from skyward.wire.payload import OUT_OF_BAND


def packed(*values: object) -> Packer:
    packer = Packer()
    for value in values:
        packer.add(value, "A value")
    return packer


def test_what_two_values_share_arrives_as_two() -> None:
    """And as it was when it was added."""
    shared = [1]
    packer = packed(shared, 2.5, "text", shared, None)
    shared.append(2)
    values = Unpacker(packer.dumps()).all("A value")
    assert values == [[1], 2.5, "text", [1], None]
    assert values[0] is not values[3]


def test_a_large_value_fills_it_and_can_be_taken_out() -> None:
    """An array that is alone may still be sent so: it arrives writable, as arrays of calls do."""
    array = np.arange(OUT_OF_BAND, dtype=np.uint8)
    packer = packed(1, array)
    assert packer.is_full
    (_, found) = Unpacker(packer.dumps()).all("A value")
    assert (found == array).all()
    assert found.flags.writeable
    packer.remove_last()
    assert Unpacker(packer.dumps()).all("A value") == [1]
    assert packed(*["text" * 100] * 200).is_full
