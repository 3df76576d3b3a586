"""Arrays, data frames and tensors under results='data': decomposed on a node and rebuilt on the client.

Values of numpy, pandas and PyTorch are decomposed through their public interfaces into built-in values and plain
memory, and rebuilt the same way. See `datatypes` for the rules that apply to code run on the client.
"""

from __future__ import annotations

import ctypes
import pickle
import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]
_SIMPLE = re.compile(r"[<>|=]?[biufcSUVmM][0-9]{1,9}(\[[0-9]{0,9}[a-zA-Z]{1,7}\])?")
_MASKED = re.compile(r"U?Int(8|16|32|64)|Float(32|64)|boolean")
_ZONE = re.compile(r"(?!dateutil|tzlocal|pytz)[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*|UTC[+-][0-9]{2}:[0-9]{2}")
_FREQUENCY = re.compile(r"-?[0-9]{0,9}[A-Za-z]{1,6}(-[A-Za-z]{3})?")
_DTYPE = re.compile(r"(u?int|float|bfloat|complex)[0-9]{1,3}|bool|float8_[a-z0-9]+")


def _library(name: str) -> Any:
    """Return one of the three libraries; the names are constants of this module, never taken from a node."""
    return sys.modules.get(name) or import_module(name)


def reduce(obj: Any) -> Reduced | None:
    """Return how a value of one of the three libraries is sent; None if it is of none, or is not data."""
    root = type(obj).__module__.partition(".")[0]
    if root == "numpy":
        return _reduce_numpy(obj)
    if root == "pandas":
        return _reduce_pandas(obj)
    return _reduce_torch(obj) if root == "torch" else None


# numpy --------------------------------------------------------------------------------------------------------------


def _reduce_numpy(obj: Any) -> Reduced | None:
    np = _library("numpy")
    if isinstance(obj, np.memmap):
        obj = np.asarray(obj)
    if type(obj) is np.ndarray:
        if obj.dtype == object:
            return objects, (obj.shape, obj.reshape(-1).tolist() if obj.ndim else [obj.item()])
        if (descr := _descr(obj.dtype)) is None:
            return None
        order = "F" if obj.flags.f_contiguous and not obj.flags.c_contiguous else "C"
        flat = (obj.T if order == "F" else np.ascontiguousarray(obj)).reshape(-1)
        bare = flat.view(np.uint8) if flat.size and obj.itemsize else np.empty(0, np.uint8)
        return array, (descr, obj.shape, order, pickle.PickleBuffer(bare))
    if isinstance(obj, np.generic):
        descr = _descr(obj.dtype)
        return None if descr is None else (scalar, (descr, obj.tobytes()[: obj.dtype.itemsize]))
    if isinstance(obj, np.dtype):
        descr = _descr(obj)
        return None if descr is None else (dtype, (descr,))
    return None


def _descr(kind: Any) -> Any:
    """Return a dtype as text or as a list of its fields; None if it holds more than plain memory."""
    np = _library("numpy")
    if kind.hasobject:
        return None
    descr = np.lib.format.dtype_to_descr(kind)
    return descr if _is_descr(descr) else None


def _is_descr(descr: Any) -> bool:
    if isinstance(descr, str):
        return bool(_SIMPLE.fullmatch(descr))
    if type(descr) is tuple:  # a field that is itself an array
        return len(descr) == 2 and _is_descr(descr[0]) and _is_shape(descr[1])
    if type(descr) is not list:
        return False
    return all(
        type(field) is tuple
        and len(field) in (2, 3)
        and type(field[0]) is str
        and _is_descr(field[1])
        and _is_shape((field[2:] or ((),))[0])
        for field in descr
    )


def _is_shape(shape: Any) -> bool:
    return type(shape) is tuple and all(type(size) is int and size >= 0 for size in shape)


def dtype(descr: Any) -> Any:
    """Return a dtype without objects."""
    if not _is_descr(descr):
        raise ValueError(f"no dtype of plain memory: {str(descr)[:80]!r}")
    return _library("numpy").lib.format.descr_to_dtype(descr)


def array(descr: Any, shape: tuple[int, ...], order: str, memory: Any) -> Any:
    """Return an array of numbers, strings or datetimes that uses this memory without a copy."""
    np, kind = _library("numpy"), dtype(descr)
    if not _is_shape(shape) or order not in ("C", "F"):
        raise ValueError(f"no array: shape {shape!r}, order {order!r}")
    if 0 in shape or not kind.itemsize:
        return np.empty(shape, kind, order)
    if type(memory) is bytes:
        memory = bytearray(memory)  # as for small arrays; the array must be writable
    return np.frombuffer(memory, np.uint8).view(kind).reshape(shape, order=order)


def objects(shape: tuple[int, ...], items: list[Any]) -> Any:
    """Return an array of objects, each of which is data."""
    np = _library("numpy")
    if not _is_shape(shape) or type(items) is not list:
        raise ValueError("no array of objects")
    made = np.empty(len(items), object)
    for index, item in enumerate(items):
        made[index] = item
    return made.reshape(shape)


def scalar(descr: Any, memory: bytes) -> Any:
    """Return a numpy scalar: a number, string or datetime."""
    np, kind = _library("numpy"), dtype(descr)
    if len(memory) != kind.itemsize:
        raise ValueError(f"{len(memory)} bytes for a {kind}")
    return np.ndarray((), kind, memory)[()] if memory else np.zeros((), kind)[()]


# pandas -------------------------------------------------------------------------------------------------------------


def _reduce_pandas(obj: Any) -> Reduced | None:
    pd, kind = _library("pandas"), type(obj)
    if obj is pd.NaT or obj is pd.NA:
        return missing, (obj is pd.NA,)
    if kind is pd.Timestamp:
        utc = obj if obj.tz is None else obj.tz_convert("UTC").tz_localize(None)
        return timestamp, (utc.to_datetime64(), None if obj.tz is None else str(obj.tz))
    if kind is pd.Timedelta:
        return timedelta, (obj.to_timedelta64(),)
    if isinstance(obj, pd.Index):
        return _reduce_index(obj)
    if kind is pd.Series:
        return series, (_values(obj.array), obj.index, obj.name, dict(obj.attrs))
    if kind is pd.DataFrame:
        kinds = list(set(obj.dtypes))
        if len(kinds) == 1 and isinstance(kinds[0], _library("numpy").dtype):
            return frame, (obj.to_numpy(), obj.index, obj.columns, dict(obj.attrs))
        parts = [_values(obj.iloc[:, number].array) for number in range(obj.shape[1])]
        return columns, (parts, obj.index, obj.columns, dict(obj.attrs))
    if isinstance(obj, pd.api.extensions.ExtensionArray):
        return _reduce_extension(obj)
    return None


def _values(values: Any) -> Any:
    """Return the numpy array inside a pandas array that only wraps one; return all others unchanged."""
    pd = _library("pandas")
    return values.to_numpy() if type(values) is pd.arrays.NumpyExtensionArray else values


def _reduce_index(obj: Any) -> Reduced | None:
    pd, kind = _library("pandas"), type(obj)
    if kind is pd.RangeIndex:
        return range_index, (obj.start, obj.stop, obj.step, obj.name)
    if kind is pd.MultiIndex:
        return multi_index, (list(obj.levels), [list(map(int, codes)) for codes in obj.codes], list(obj.names))
    if kind in (pd.DatetimeIndex, pd.TimedeltaIndex):
        return index, (obj.array, obj.name, obj.freqstr)
    return (index, (_values(obj.array), obj.name, None)) if kind in (pd.Index, pd.CategoricalIndex) else None


def _reduce_extension(obj: Any) -> Reduced | None:
    pd, np = _library("pandas"), _library("numpy")
    if type(obj) is pd.arrays.NumpyExtensionArray:
        return plain, (obj.to_numpy(),)
    if type(obj) is pd.arrays.DatetimeArray:
        utc = obj if obj.tz is None else obj.tz_convert("UTC").tz_localize(None)
        return moments, (np.asarray(utc), None if obj.tz is None else str(obj.tz))
    if type(obj) is pd.arrays.TimedeltaArray:
        return durations, (np.asarray(obj),)
    if type(obj) is pd.Categorical:
        return categories, (np.asarray(obj.codes), obj.categories, bool(obj.ordered))
    if isinstance(obj.dtype, pd.StringDtype):
        return strings, (
            [None if gone else str(text) for text, gone in zip(obj, obj.isna(), strict=True)],
            str(obj.dtype),
        )
    if _MASKED.fullmatch(str(obj.dtype)):
        known = obj.to_numpy(dtype=obj.dtype.numpy_dtype, na_value=False if str(obj.dtype) == "boolean" else 0)
        return masked, (known, np.asarray(obj.isna()))
    return None


def missing(is_na: bool) -> Any:
    """Return `pandas.NA` or `pandas.NaT`."""
    return _library("pandas").NA if is_na else _library("pandas").NaT


def timestamp(utc: Any, zone: str | None) -> Any:
    """Return a `pandas.Timestamp`."""
    made = _library("pandas").Timestamp(_scalar(utc))
    return made if zone is None else made.tz_localize("UTC").tz_convert(_checked(_ZONE, zone))


def timedelta(length: Any) -> Any:
    """Return a `pandas.Timedelta`."""
    return _library("pandas").Timedelta(_scalar(length))


def plain(values: Any) -> Any:
    """Return a pandas array that wraps a numpy array."""
    return _library("pandas").arrays.NumpyExtensionArray(_array(values))


def moments(utc: Any, zone: str | None) -> Any:
    """Return an array of timestamps."""
    made = _library("pandas").DatetimeIndex(_array(utc))
    return (made if zone is None else made.tz_localize("UTC").tz_convert(_checked(_ZONE, zone))).array


def durations(values: Any) -> Any:
    """Return an array of time differences."""
    return _library("pandas").TimedeltaIndex(_array(values)).array


def categories(codes: Any, names: Any, is_ordered: bool) -> Any:
    """Return a `pandas.Categorical`."""
    return _library("pandas").Categorical.from_codes(_array(codes), _labels(names), ordered=bool(is_ordered))


def strings(texts: list[str | None], kind: str) -> Any:
    """Return an array of strings."""
    if (
        kind not in ("str", "string")
        or type(texts) is not list
        or not {type(each) for each in texts} <= {str, type(None)}
    ):
        raise ValueError("not an array of strings")
    return _library("pandas").array(texts, dtype=kind)


def masked(values: Any, gone: Any) -> Any:
    """Return an array of numbers or booleans with missing values."""
    arrays = _library("pandas").arrays
    kinds = {"b": arrays.BooleanArray, "i": arrays.IntegerArray, "u": arrays.IntegerArray, "f": arrays.FloatingArray}
    return kinds[_array(values).dtype.kind](values, _array(gone))


def range_index(start: int, stop: int, step: int, name: Any) -> Any:
    """Return a `pandas.RangeIndex`."""
    return _library("pandas").RangeIndex(start, stop, step, name=name)


def multi_index(levels: list[Any], codes: list[list[int]], names: list[Any]) -> Any:
    """Return a `pandas.MultiIndex`."""
    return _library("pandas").MultiIndex([_labels(level) for level in levels], codes, names=names)


def index(values: Any, name: Any, frequency: str | None) -> Any:
    """Return any other index."""
    pd = _library("pandas")
    made = pd.Index(_column(values), dtype=values.dtype, name=name)
    if frequency is None:
        return made
    return type(made)(made, freq=_checked(_FREQUENCY, frequency), name=name)


def series(values: Any, labels: Any, name: Any, attrs: dict[Any, Any]) -> Any:
    """Return a `pandas.Series`."""
    pd = _library("pandas")
    made = pd.Series(_column(values), _labels(labels), dtype=values.dtype, name=name, copy=False)
    made.attrs = attrs
    return made


def frame(values: Any, labels: Any, names: Any, attrs: dict[Any, Any]) -> Any:
    """Return a `pandas.DataFrame` whose columns have one dtype."""
    pd = _library("pandas")
    labels, names = _labels(labels), _labels(names)
    made = pd.DataFrame(_array(values), labels, names, dtype=values.dtype, copy=False)
    made.attrs = attrs
    return made


def columns(parts: list[Any], labels: Any, names: Any, attrs: dict[Any, Any]) -> Any:
    """Return a `pandas.DataFrame` whose columns have several dtypes."""
    pd, labels = _library("pandas"), _labels(labels)
    found = {at: pd.Series(_column(part), labels, dtype=part.dtype, copy=False) for at, part in enumerate(parts)}
    made = pd.DataFrame(found, labels, copy=False)
    made.columns = _labels(names)
    made.attrs = attrs
    return made


def _array(values: Any) -> Any:
    return _exactly(values, _library("numpy").ndarray)


def _scalar(value: Any) -> Any:
    np = _library("numpy")
    return value if type(value) is np.timedelta64 else _exactly(value, np.datetime64)


def _column(values: Any) -> Any:
    pd = _library("pandas")
    return values if isinstance(values, pd.api.extensions.ExtensionArray) else _array(values)


def _labels(value: Any) -> Any:
    if not isinstance(value, _library("pandas").Index):
        raise TypeError(f"a {type(value).__name__} where a pandas.Index belongs")
    return value


def _exactly(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"a {type(value).__name__} where a {kind.__name__} belongs")
    return value


def _checked(form: re.Pattern[str], text: str) -> str:
    if not form.fullmatch(text):
        raise ValueError(f"{text[:80]!r} where a name belongs")
    return text


# PyTorch ------------------------------------------------------------------------------------------------------------


def _reduce_torch(obj: Any) -> Reduced | None:
    torch = _library("torch")
    if isinstance(obj, torch.dtype):
        return tensor_dtype, (str(obj).removeprefix("torch."),)
    if isinstance(obj, torch.device):
        return device, (str(obj),)
    if type(obj) is torch.Size:
        return size, (tuple(obj),)
    if type(obj) not in (torch.Tensor, torch.nn.Parameter) or obj.layout != torch.strided or obj.is_quantized:
        return None
    here = obj.detach().cpu().resolve_conj().resolve_neg().contiguous()
    memory = (ctypes.c_ubyte * (here.numel() * here.element_size())).from_address(here.data_ptr() or 1)
    memory.tensor = here  # keeps the tensor alive as long as the memory is used
    named = str(obj.dtype).removeprefix("torch."), tuple(obj.shape)
    return tensor, (*named, pickle.PickleBuffer(memory), obj.requires_grad, type(obj) is torch.nn.Parameter)


def tensor(kind: str, shape: tuple[int, ...], memory: Any, needs_gradient: bool, is_parameter: bool) -> Any:
    """Return a tensor in main memory, whatever its device was, that uses this memory without a copy."""
    torch = _library("torch")
    if not _is_shape(shape):
        raise ValueError(f"no tensor: shape {shape!r}")
    if 0 in shape:
        made = torch.empty(shape, dtype=tensor_dtype(kind))
    else:
        if type(memory) is bytes or memoryview(memory).readonly:
            memory = bytearray(memory)
        made = torch.frombuffer(memory, dtype=torch.uint8).view(tensor_dtype(kind)).reshape(shape)
    if is_parameter:
        return torch.nn.Parameter(made, requires_grad=bool(needs_gradient))
    return made.requires_grad_(bool(needs_gradient)) if needs_gradient else made


def tensor_dtype(name: str) -> Any:
    """Return a dtype of PyTorch."""
    torch = _library("torch")
    return _exactly(getattr(torch, _checked(_DTYPE, name)), torch.dtype)


def device(name: str) -> Any:
    """Return a device, which need not exist on this machine."""
    return _library("torch").device(name)


def size(shape: tuple[int, ...]) -> Any:
    """Return the shape of a tensor."""
    if not _is_shape(shape):
        raise ValueError(f"no shape: {shape!r}")
    return _library("torch").Size(shape)


MAKERS: tuple[Callable[..., Any], ...] = (
    *(dtype, array, objects, scalar, missing, timestamp, timedelta, plain, moments, durations, categories, strings),
    *(masked, range_index, multi_index, index, series, frame, columns, tensor, tensor_dtype, device, size),
)
