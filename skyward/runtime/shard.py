"""`sky.shard`: each worker's part of data that all workers have, aligned over several arguments.

No framework is imported here: the kind of a value is determined from its class, whose module is loaded already.
"""

from __future__ import annotations

import random
import sys
from array import array
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias, TypeVar, TypeVarTuple, overload

from skyward.errors import ConfigError
from skyward.model.instance import InstanceInfo

T = TypeVar("T")
U = TypeVar("U")
Ts = TypeVarTuple("Ts")
Rows: TypeAlias = "slice | array[int]"  # a stride or block of the data in order, or permuted row numbers


@overload
def shard(
    data: T,
    /,
    *,
    shuffle: bool = ...,
    seed: int = ...,
    drop_last: bool = ...,
    node: int | None = ...,
    total_nodes: int | None = ...,
) -> T: ...
@overload
def shard(
    *data: *tuple[T, U, *Ts],
    shuffle: bool = ...,
    seed: int = ...,
    drop_last: bool = ...,
    node: int | None = ...,
    total_nodes: int | None = ...,
) -> tuple[T, U, *Ts]: ...
def shard(  # type: ignore[misc] # mypy does not see that any arguments include those of a TypeVarTuple
    *data: Any,
    shuffle: bool = False,
    seed: int = 0,
    drop_last: bool = False,
    node: int | None = None,
    total_nodes: int | None = None,
) -> Any:
    """Return this worker's part of the data; the rows of all arguments stay aligned.

    Lists, tuples and ranges result in values of the same type, as do numpy arrays (memory maps included), torch tensors
    (on the same device), other arrays with a `shape`, pandas objects (by position) and Hugging Face data sets (by
    `select`). Other sequences result in lists. Arrays and tensors are views of the original unless `shuffle` is set; a
    shuffled range is a list.

    Args:
        data: one or more collections of equal length.
        shuffle: permute the rows first, in the same way on every worker.
        seed: seed of the permutation; the same seed results in the same one everywhere.
        drop_last: assign to every worker a block of `rows // workers` consecutive rows and omit the rest, so that all
            parts are equally long. Otherwise worker k gets rows k, k + workers, k + 2 * workers, ...
        node: index of the part; None for this worker's rank, 0 outside a pool.
        total_nodes: number of parts; None for the number of workers in the pool, 1 outside. With one worker per node,
            the default, rank and workers are node and nodes.

    Returns:
        The part: for one argument itself, for several a tuple.

    Raises:
        ConfigError: (a ValueError) no argument, unequal lengths, or `node` out of range.
        TypeError: an argument has no numbered rows: text, bytes, a mapping, a set, a scalar.
    """
    if not data:
        raise ConfigError("shard() needs at least one collection, as in sky.shard(x, y); it was called with none.")
    index, parts = _part(node, total_nodes)
    length = _common_length(data)
    rows = _rows(length, index, parts, seed if shuffle else None, drop_last)
    taken = tuple(_take(one, rows, length) for one in data)
    return taken[0] if len(taken) == 1 else taken


def _part(node: int | None, total: int | None) -> tuple[int, int]:
    info = InstanceInfo.current()
    index = node if node is not None else (info.global_worker_index if info else 0)
    parts = total if total is not None else (info.total_workers if info else 1)
    if not 0 <= index < parts:
        raise ConfigError(
            f"shard() was asked for part {index} of {parts}: node must be 0 to total_nodes - 1, total_nodes at least 1."
        )
    return index, parts


def _common_length(data: tuple[Any, ...]) -> int:
    lengths = [_length(one, position) for position, one in enumerate(data)]
    if len(set(lengths)) > 1:
        found = ", ".join(map(str, lengths))
        raise ConfigError(
            f"shard() keeps its arguments aligned row by row, so they must be equally long; their lengths are {found}."
        )
    return lengths[0]


def _length(data: Any, position: int) -> int:
    kind = type(data).__name__
    if isinstance(data, str | bytes | bytearray | memoryview):
        raise TypeError(f"shard() argument {position} is {kind}; pass a list of the strings or records to divide.")
    if isinstance(data, Mapping):
        raise TypeError(
            f"shard() argument {position} is a {kind}, which has no row order; pass its values as separate arguments "
            "(sky.shard(d['x'], d['y'])) or list(d.items())."
        )
    if isinstance(data, AbstractSet):
        raise TypeError(
            f"shard() argument {position} is a {kind}, whose order differs between processes; pass sorted(...) of it."
        )
    shape = getattr(data, "shape", None)
    try:
        length: int | None = shape[0] if shape else len(data)
    except TypeError:
        length = None
    if length is None or not hasattr(data, "__getitem__"):
        raise TypeError(
            f"shard() argument {position} is of type {kind}, without a length or positions; pass a sequence, an array "
            "or a table (list(...) makes one of an iterator)."
        )
    return length


def _rows(length: int, index: int, parts: int, seed: int | None, drop_last: bool) -> Rows:
    block = length // parts
    stretch = slice(index * block, (index + 1) * block) if drop_last else slice(index, None, parts)
    if seed is None:
        return stretch
    order = array("q", range(length))  # a fifth of a list's memory, and the same permutation
    random.Random(seed).shuffle(order)  # noqa: S311 - an order of rows, not a secret
    return order[stretch]


def _take(data: Any, rows: Rows, length: int) -> Any:
    if isinstance(data, list | tuple):
        taken = data[rows] if isinstance(rows, slice) else [data[i] for i in rows]
        return tuple(taken) if isinstance(data, tuple) else list(taken)
    if isinstance(data, range):
        return data[rows] if isinstance(rows, slice) else [data[i] for i in rows]
    if hasattr(data, "iloc"):
        return data.iloc[_listed(rows)]
    if _is(data, "pandas", "Index"):
        return data[rows] if isinstance(rows, slice) else data.take(_listed(rows))
    if _is(data, "datasets", "Dataset"):
        return data.select(range(length)[rows] if isinstance(rows, slice) else _listed(rows))
    if _is(data, "torch", "Tensor"):
        return data[rows if isinstance(rows, slice) else _tensor(rows, data.device)]
    if hasattr(data, "shape"):
        numpy = sys.modules.get("numpy")
        return data[rows if isinstance(rows, slice) or numpy is None else numpy.asarray(rows)]
    return [data[i] for i in (range(length)[rows] if isinstance(rows, slice) else rows)]


def _is(data: object, package: str, name: str) -> bool:
    """Return whether the value is an instance of a class of that name and top-level package."""
    return any(kind.__name__ == name and kind.__module__.partition(".")[0] == package for kind in type(data).__mro__)


def _listed(rows: Rows) -> Any:
    return rows if isinstance(rows, slice) else rows.tolist()


def _tensor(rows: array[int], device: Any) -> Any:
    torch = sys.modules["torch"]
    return torch.tensor(rows.tolist(), dtype=torch.int64, device=device)
