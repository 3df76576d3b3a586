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
from tests.conftest import ROOT

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


def test_an_array_is_divided_by_rows(pool: sky.ComputePool) -> None:
    """Shape and dtype are kept; together the parts are everything, once."""
    x = np.arange(30, dtype=np.float32).reshape(10, 3)
    first, second = part(x) @ pool
    assert first.dtype == second.dtype == np.float32
    np.testing.assert_array_equal(first, x[0::2])
    np.testing.assert_array_equal(second, x[1::2])


def test_tables_are_divided_by_position(pool: sky.ComputePool) -> None:
    """Whatever their index; frames stay frames, series series."""
    frame = pd.DataFrame({"a": range(5), "b": list("vwxyz")}, index=[50, 40, 30, 20, 10])
    first, second = part(frame, frame["b"]) @ pool
    pd.testing.assert_frame_equal(first[0], frame.iloc[0::2])
    pd.testing.assert_frame_equal(second[0], frame.iloc[1::2])
    pd.testing.assert_series_equal(second[1], frame["b"].iloc[1::2])


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


def test_equal_parts_leave_the_rest_out(pool: sky.ComputePool) -> None:
    """`drop_last=True` gives blocks of the same length, as collectives need them."""
    assert part(list(range(7)), drop_last=True) @ pool == [[0, 1, 2], [3, 4, 5]]


def test_bad_data_is_refused_on_the_node_as_here(pool: sky.ComputePool) -> None:
    """The error is the same as off-pool, raised as itself."""
    with pytest.raises(sky.errors.ConfigError, match="their lengths are 3, 2"):
        part([1, 2, 3], [1, 2]) @ pool


PROGRAM = """
import json, sys
import numpy as np
import skyward as sky
from tests.e2e.conftest import IMAGE

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
with sky.ComputePool(sky.{provider}(), nodes={nodes}, image=IMAGE, display="quiet") as pool:
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


def measure(script: Script, provider_name: str, how: str, nodes: int) -> dict[str, Any]:
    """Extra memory at the peak, in payloads, of a fresh client and fresh workers."""
    provider = "Docker" if provider_name == "docker" else "Local"
    text = PROGRAM.format(provider=provider, how=how, nodes=nodes, payload=PAYLOAD)
    program = script(text, PYTHONPATH=str(ROOT))
    out, err = program.communicate(timeout=250)
    assert program.returncode == 0, err
    found = json.loads(out)
    return {"client": found["client"] / PAYLOAD, "nodes": [extra / PAYLOAD for extra in found["nodes"]]}


def test_a_large_array_there_and_back_costs_one_copy(script: Script, provider_name: str) -> None:
    """256 MB: the worker holds the argument, which is the result; the client the result. Nobody holds it twice."""
    extra = measure(script, provider_name, "there and back", 1)
    assert 0.8 < extra["client"] < 1.3
    assert 0.8 < extra["nodes"][0] < 1.3


def test_a_large_argument_for_all_nodes_is_not_copied_here(script: Script, provider_name: str) -> None:
    """A broadcast sends views of the caller's own memory, to each node once."""
    extra = measure(script, provider_name, "to all", 2)
    assert extra["client"] < 0.3
    assert all(0.8 < node < 1.3 for node in extra["nodes"])


def test_many_large_results_do_not_pile_up_on_the_node(script: Script, provider_name: str) -> None:
    """A worker lets go of one call's data before the next: ten calls need as much memory as one."""
    provider = "Docker" if provider_name == "docker" else "Local"
    text = PROGRAM.format(provider=provider, how="to all", nodes=1, payload=PAYLOAD // 8)
    text = text.replace("assert length(x)", "for _ in range(10): assert length(x)")
    program = script(text, PYTHONPATH=str(ROOT))
    out, err = program.communicate(timeout=250)
    assert program.returncode == 0, err
    found = json.loads(out)
    assert found["nodes"][0] < 1.8 * PAYLOAD // 8
    assert found["client"] < 0.5 * PAYLOAD // 8
