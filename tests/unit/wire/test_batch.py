"""Several values in one payload, each as if it had been sent by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from skyward.wire import batch


def test_what_two_values_share_arrives_as_two() -> None:
    """And as it was when it was added; arrays are writable."""
    shared, entries = [1], list[Any]()
    for value in (shared, 2.5, "text", shared, None, (1, 2), np.arange(3)):
        batch.add(entries, value, "A value")
    shared.append(2)
    *values, array = (batch.value_of(each, "A value") for each in batch.loads(batch.dumps(entries)))
    assert values == [[1], 2.5, "text", [1], None, (1, 2)]
    assert values[0] is not values[3]
    assert array.flags.writeable and list(array) == [0, 1, 2]
