"""Data on its way to real nodes and back: each node's part of it, and large arrays at the cost of one copy."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import skyward as sky

Script = Callable[..., "subprocess.Popen[str]"]
PAYLOAD = 256 * 1024 * 1024


@sky.compute
def part(*data: Any, **how: Any) -> Any:
    return sky.shard(*data, **how)


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        (list(range(7)), [[0, 2, 4, 6], [1, 3, 5]]),
        (tuple("abcde"), [("a", "c", "e"), ("b", "d")]),
        (range(5), [range(0, 5, 2), range(1, 5, 2)]),
    ],
    ids=["list", "tuple", "range"],
)
def test_sequences_keep_their_kind(pool: sky.ComputePool, data: Any, parts: list[Any]) -> None:
    """Each node takes every second item, as the type it was."""
    found = part(data) @ pool
    assert found == parts
    assert [type(one) for one in found] == [type(data)] * 2


def test_shuffled_parts_stay_aligned(pool: sky.ComputePool) -> None:
    """One permutation for all arguments and all nodes: rows stay together, no row is lost or doubled."""
    x = np.arange(100)
    y = [int(value) * 10 for value in x]
    z = pd.Series(x * 100)
    parts = part(x, y, z, shuffle=True, seed=42) @ pool
    rows = [int(row) for xs, _, _ in parts for row in xs]
    for xs, ys, zs in parts:
        assert [value // 10 for value in ys] == list(xs) == [value // 100 for value in zs]
    assert sorted(rows) == list(range(100))
    assert rows != sorted(rows)
    again = part(x, shuffle=True, seed=42) @ pool
    np.testing.assert_array_equal(again[0], parts[0][0])


PROGRAM = """
import json, sys
import numpy as np
import skyward as sky

def peak():  # not by getrusage(): a process inherits that from the one that started it
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["VmHWM"].split()[0]) * 1024

@sky.compute
def memory():
    import numpy
    return peak()

@sky.compute
def echo(x):
    return x

@sky.compute
def length(x):
    return x.nbytes, float(x[-1])

x = np.ones({payload} // 8)
found = {{}}
with sky.ComputePool(sky.Local(), nodes={nodes}, display="quiet") as pool:
    nodes_before, client_before = memory() @ pool, peak()
    if "{how}" == "there and back":
        y = echo(x) >> pool
        assert y.nbytes == x.nbytes and (y[:: 4096] == 1).all() and y.flags.writeable
        y[0] = 2
    else:
        assert length(x) @ pool == [(x.nbytes, 1.0)] * {nodes}
    found["client"] = peak() - client_before
    found["nodes"] = [after - before for after, before in zip(memory() @ pool, nodes_before)]
print(json.dumps(found))
"""


def measure(script: Script, how: str, nodes: int) -> dict[str, Any]:
    """Extra memory at the peak, in payloads, of a fresh client and fresh workers."""
    text = PROGRAM.format(how=how, nodes=nodes, payload=PAYLOAD)
    program = script(text)
    out, err = program.communicate(timeout=250)
    assert program.returncode == 0, err
    found = json.loads(out)
    return {"client": found["client"] / PAYLOAD, "nodes": [extra / PAYLOAD for extra in found["nodes"]]}


def test_a_large_array_there_and_back_costs_one_copy(script: Script) -> None:
    """256 MB: the worker holds the argument, which is the result; the client the result. Nobody holds it twice."""
    extra = measure(script, "there and back", 1)
    assert 0.8 < extra["client"] < 1.3
    assert 0.8 < extra["nodes"][0] < 1.3


def test_a_large_argument_for_all_nodes_is_not_copied_here(script: Script) -> None:
    """A broadcast sends views of the caller's own memory, to each node once."""
    extra = measure(script, "to all", 2)
    assert extra["client"] < 0.3
    assert all(0.8 < node < 1.3 for node in extra["nodes"])
