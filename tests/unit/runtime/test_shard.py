from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward.errors import ConfigError
from skyward.runtime.shard import shard
from tests.unit.runtime.conftest import Place

SECOND_OF_FOUR: dict[str, Any] = {"node": 1, "total_nodes": 4}


def test_the_part_follows_the_place_in_the_pool(place: Place) -> None:
    """Without arguments the node and the number of nodes are the pool's."""
    place(1, 4)
    assert shard(list(range(10))) == [1, 5, 9]


def test_reference_values() -> None:
    """Striding, blocks and the seeded permutation are those users already rely on."""
    assert shard(range(10), **SECOND_OF_FOUR) == range(1, 10, 4)
    assert list(shard(range(10), drop_last=True, **SECOND_OF_FOUR)) == [2, 3]
    assert shard(tuple(range(10)), shuffle=True, seed=42, **SECOND_OF_FOUR) == (3, 6, 1)


@given(
    length=st.integers(0, 40),
    total=st.integers(1, 7),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    seed=st.integers(0, 99),
)
def test_parts_cover_the_data_once(length: int, total: int, shuffle: bool, drop_last: bool, seed: int) -> None:
    """Over all nodes no row comes twice; none is missing, except that drop_last leaves out the remainder."""
    data = list(range(length))
    parts = [
        shard(data, shuffle=shuffle, seed=seed, drop_last=drop_last, node=node, total_nodes=total)
        for node in range(total)
    ]
    rows = [row for part in parts for row in part]
    assert len(set(rows)) == len(rows)
    if drop_last:
        assert {len(part) for part in parts} == {length // total}
    else:
        assert sorted(rows) == data
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(length=st.integers(0, 40), shuffle=st.booleans(), drop_last=st.booleans())
def test_every_type_gives_the_same_rows(length: int, shuffle: bool, drop_last: bool) -> None:
    """List, tuple, range, array, column, table, index and any other sequence are cut alike, and stay aligned."""
    frame = pd.DataFrame({"a": range(length)}, index=range(100, 100 + length))
    collections: tuple[Any, ...] = (
        range(length),
        tuple(range(length)),
        np.arange(length),
        frame,
        frame["a"],
        pd.Index(range(length)),
        deque(range(length)),
    )
    expected, *others = shard(list(range(length)), *collections, shuffle=shuffle, drop_last=drop_last, **SECOND_OF_FOUR)
    numbers, items, array, table, column, index, sequence = others
    assert list(numbers) == list(items) == array.tolist() == table["a"].tolist() == expected
    assert column.tolist() == index.tolist() == sequence == expected
    assert table.index.tolist() == [100 + row for row in expected]


def test_unequal_lengths_are_refused() -> None:
    """Rows could not be aligned; the message says how long each argument is."""
    with pytest.raises(ConfigError, match="their lengths are 3, 2, 3"):
        shard([1, 2, 3], np.zeros(2), (1, 2, 3))


@pytest.mark.parametrize(("node", "total"), [(4, 4), (-1, 4), (0, 0), (1, None)])
def test_an_impossible_node_is_refused(node: int, total: int | None) -> None:
    """A part is 0 to total_nodes - 1."""
    with pytest.raises(ValueError, match="node must be 0 to total_nodes - 1"):
        shard([1, 2], node=node, total_nodes=total)


@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        ("text", "a list of the strings"),
        (b"bytes", "a list of the strings"),
        ({"x": [1]}, "its values as separate arguments"),
        ({1, 2}, "sorted"),
        ({1: 2}.keys(), "sorted"),
        (iter([1, 2]), "makes one of an iterator"),
        (7, "a sequence, an array or a table"),
        (np.float64(1), "a sequence, an array or a table"),
        (np.array(1), "a sequence, an array or a table"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_what_has_no_rows_is_refused(data: object, remedy: str) -> None:
    """The message names the position and type, and says what to pass."""
    with pytest.raises(TypeError, match="argument 1 is") as caught:
        shard([1, 2], data)
    assert type(data).__name__ in str(caught.value)
    assert remedy in str(caught.value)


def test_torch_tensors_and_parameters() -> None:
    """Tensors give tensors: views in order, rows by index when shuffled; a parameter's part keeps its gradient."""
    torch = pytest.importorskip("torch")
    data = torch.arange(10.0)
    part = shard(data, **SECOND_OF_FOUR)
    assert part.tolist() == [1, 5, 9]
    assert part.untyped_storage().data_ptr() == data.untyped_storage().data_ptr()
    weights = torch.nn.Parameter(data)
    shuffled, order = shard(weights, list(range(10)), shuffle=True, seed=42, **SECOND_OF_FOUR)
    assert shuffled.tolist() == order == [3, 6, 1]
    shuffled.sum().backward()
    assert weights.grad.nonzero().flatten().tolist() == [1, 3, 6]
    assert shard(torch.zeros(1, 2), shuffle=True, node=1, total_nodes=2).shape == (0, 2)
