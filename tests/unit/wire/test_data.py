"""results='data': what arrives as it was, and what a hostile node cannot do."""

from __future__ import annotations

import array
import collections
import copyreg
import datetime as dt
import decimal
import fractions
import io
import os
import pathlib
import pickle
import struct
import sys
import sysconfig
import types
import uuid
import zoneinfo
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skyward.errors import RemoteError, SerializationError
from skyward.wire import data, payload
from skyward.wire.datatypes import MAKERS
from tests.unit.wire import own_types
from tests.unit.wire.own_types import CALLED, Colour, Frozen, Guarded, Pair, Plain, Point, Right


@pytest.fixture(autouse=True)
def none_called() -> Iterator[None]:
    """No method of a user's class has run while values were read, other than what the test itself did."""
    CALLED.clear()
    yield
    CALLED.clear()


def send(value: Any) -> tuple[bytes, list[bytearray]]:
    """A value on its way; its buffers as they come from a socket."""
    head, buffers = payload.dumps(value, what="The result of f()", pickler=data.Pickler)
    CALLED.clear()
    return head, [bytearray(buffer) for buffer in buffers]


def through(value: Any) -> Any:
    return payload.loads(*send(value), what="The result of f()", only_data=True)


def refused(pickled: bytes, buffers: Any = ()) -> str:
    with pytest.raises(SerializationError, match=r"The result of f\(\) ") as caught:
        payload.loads(pickled, buffers, what="The result of f()", only_data=True)
    return str(caught.value)


BERLIN = zoneinfo.ZoneInfo("Europe/Berlin") if "Europe/Berlin" in zoneinfo.available_timezones() else dt.UTC
VALUES: list[Any] = [
    *(None, True, 7, -(10**40), 1.5, 2 - 3j, "text", b"bytes", bytearray(b"more"), ..., range(3, 9, 2), slice(1, None)),
    *([1, [2]], (1, (2,), ()), {"a": {1: None}}, {1, 2}, frozenset({(1, 2)}), b"x" * (3 << 20), [b"y" * (2 << 20)]),
    *(collections.OrderedDict(b=1, a=2), collections.Counter("hello"), collections.deque([1, 2], 5)),
    *(dt.datetime(2026, 1, 2, 3, 4, 5, 6), dt.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1), dt.date(1, 1, 1)),
    *(dt.time(1, 2, tzinfo=dt.UTC), dt.timedelta(-1, 5, 7), dt.timezone(dt.timedelta(hours=1), "X"), BERLIN),
    *(decimal.Decimal("1.10"), fractions.Fraction(1, 3), uuid.UUID(int=5), pathlib.PurePosixPath("/a/b"), Path("c")),
    *(Frozen("a", None), Pair(1, [2]), Colour.RED, Right.READ | Right.WRITE, [Colour.RED] * 2),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_data_arrives_as_it_was(value: Any) -> None:
    got = through(value)
    assert got == value
    assert type(got) is type(value)


def test_a_defaultdict_keeps_its_factory() -> None:
    got = through(collections.defaultdict(list, a=[1]))
    assert got["a"] == [1]
    assert got["b"] == []
    with pytest.raises(SerializationError, match="a defaultdict that makes"):
        through(collections.defaultdict(lambda: 1))


def test_an_object_that_is_there_twice_is_one() -> None:
    shared = [1]
    got = through([shared, {"again": shared}, Pair(0, shared)])
    assert got[0] is got[1]["again"] is got[2].right


def test_a_memoryview_keeps_its_form() -> None:
    got = through(memoryview(array.array("d", [1.0, 2.0])))
    assert got.format == "d"
    assert list(got) == [1.0, 2.0]


def test_a_dataclass_is_filled_and_none_of_its_methods_runs() -> None:
    """Nested and frozen ones with slots too; what a cached property holds is worked out again."""
    point = Point(1.5, ["a"])
    assert point.double == 3
    vars(point)["extra"] = 7
    got = through(Frozen("f", point))
    assert CALLED == []
    assert (got.inner.x, got.inner.tags, got.inner.extra) == (1.5, ["a"], 7)
    assert "double" not in vars(got.inner)


# numpy, pandas, PyTorch --------------------------------------------------------------------------------------------


def test_arrays_arrive_as_they_were() -> None:
    np = pytest.importorskip("numpy")
    big = np.arange(100_000, dtype=np.float32).reshape(100, 1000)
    arrays = [
        *(big, big.T, big[::2, ::3], np.asfortranarray(big), np.array(5), np.zeros((0, 3)), np.arange(3) > 1),
        *(np.array(["a", "bcd"]), np.array([b"x"]), np.array(["2026-01-02", "NaT"], "M8[us]"), np.array([1], "m8[D]")),
        np.array([(1, 2.5, "x")], dtype=[("a", "i4"), ("b", "f8", (1,)), ("c", "U3")]),
        np.array([1, 2], dtype=">i2"),
        np.array([1 + 2j], np.complex64),
    ]
    for given in arrays:
        got = through(given)
        assert got.dtype == given.dtype
        assert got.shape == given.shape
        assert got.flags.writeable
        np.testing.assert_array_equal(got, given)
    assert through(np.asfortranarray(big)).flags.f_contiguous
    mixed = np.array([1, "a", None, [2]], dtype=object)
    assert through(mixed).tolist() == mixed.tolist()
    for scalar in (np.float64(1.5), np.int8(-3), np.bool_(True), np.str_("é"), np.str_(""), np.datetime64(5, "s")):
        got = through(scalar)
        assert got == scalar
        assert type(got) is type(scalar)
    assert through(np.dtype("f8")) == np.dtype("f8")


def test_a_large_array_is_not_copied() -> None:
    np = pytest.importorskip("numpy")
    head, buffers = send(np.ones(1 << 20))
    assert len(head) < 1000
    got = payload.loads(head, buffers, only_data=True)
    buffers[0][:8] = struct.pack("d", 7.0)
    assert got[0] == 7.0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_frames_arrive_as_they_were() -> None:
    pd, np = pytest.importorskip("pandas"), pytest.importorskip("numpy")
    when = pd.date_range("2026-01-01", periods=3, freq="D")
    columns = {
        "int": [1, 2, 3], "float": [1.0, None, 3.0], "text": ["a", None, "c"], "flag": [True, False, True],
        "kind": pd.Categorical(["x", "y", "x"], ordered=True), "when": when, "zone": when.tz_localize("UTC"),
        "far": when.tz_localize("Europe/Berlin"), "delta": when - when[0], "maybe": pd.array([1, None, 3], "Int16"),
        "real": pd.array([1.5, None, 3], "Float32"), "bool": pd.array([True, None, False], "boolean"),
        "string": pd.array(["p", None, "q"], "string"), "object": np.array([1, "a", [2]], dtype=object),
    }  # fmt: skip
    mixed = pd.DataFrame(columns, index=pd.Index(["r", "s", "t"], name="row"))
    pairs = pd.MultiIndex.from_product([["a", "b"], [1, 2]], names=["l", None])
    plain = pd.DataFrame(np.arange(8.0).reshape(4, 2), index=pairs, columns=["x", "y"])
    plain.attrs["source"] = "here"
    for frame in (mixed, plain, pd.DataFrame(), plain.iloc[:0], mixed[["int"]], pd.DataFrame(1, when, [3, 4])):
        pd.testing.assert_frame_equal(through(frame), frame)
    assert through(plain).attrs == {"source": "here"}
    for name in mixed:
        pd.testing.assert_series_equal(through(mixed[name]), mixed[name])
    for index in (
        mixed.index,
        pairs,
        when,
        pd.RangeIndex(3),
        pd.Index([1.5]),
        pd.CategoricalIndex(["a"]),
        when - when[0],
    ):
        pd.testing.assert_index_equal(through(index), index)
    for value in (pd.Timestamp("2026-01-01 10:00", tz="Europe/Berlin"), pd.Timestamp(5), pd.Timedelta("3min"), pd.NA):
        assert (got := through(value)) is value or got == value
    assert through(pd.NaT) is pd.NaT
    assert through(mixed["maybe"].array).tolist() == [1, pd.NA, 3]
    with pytest.raises(SerializationError, match="Period"):
        through(pd.period_range("2026", periods=2))


def test_tensors_arrive_as_data() -> None:
    torch = pytest.importorskip("torch")
    base = torch.arange(60_000, dtype=torch.float64).reshape(100, 600)
    for tensor in (
        base,
        base.T,
        base[::2, 3:5],
        torch.tensor(5),
        torch.zeros(0, 2),
        torch.ones(3, dtype=torch.bfloat16),
    ):
        got = through(tensor)
        assert got.dtype == tensor.dtype
        assert torch.equal(got, tensor)
    model = torch.nn.Linear(3, 2)
    state = through(model.state_dict())
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    weight = through(model.weight)
    assert isinstance(weight, torch.nn.Parameter)
    assert weight.requires_grad
    assert through((torch.float32, torch.Size([1, 2]), torch.device("cuda:1")))[1] == torch.Size([1, 2])
    got = through(torch.ones(3))
    got += 1  # its memory is its own
    with pytest.raises(SerializationError, match="Linear"):
        through(model)


# what is not data --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [Plain(), Plain, len, lambda: 1, os.system, os, ValueError("x"), object(), io.StringIO(), {"deep": [Plain()]}],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_data_is_refused_where_it_is(value: Any) -> None:
    """On the node, with the type, the function and what to do."""
    with pytest.raises(SerializationError) as caught:
        send(value)
    assert "The result of f() " in str(caught.value)


def test_the_refusal_says_what_to_do() -> None:
    with pytest.raises(SerializationError, match=r"f\(\) holds a tests\.unit\..*\.Plain\. .*results='any'"):
        send([Plain()])


def glob(module: str, name: str) -> bytes:
    """The instructions that name something, in the way of protocol 4."""
    parts = b"".join(b"\x8c" + bytes([len(text.encode())]) + text.encode() for text in (module, name))
    return parts + b"\x93"


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


START = b"\x80\x05"
TOUCH = text("touch /tmp/skyward-was-here") + b"\x85"  # in a tuple
HOSTILE = {
    "reduce": START + glob("os", "system") + TOUCH + b"R.",
    "dotted": START + glob("os", "path.os.system") + TOUCH + b"R.",
    "global": b"\x80\x02cposix\nsystem\n(X\x01\x00\x00\x00atR.",
    "inst": b"(S'touch /tmp/x'\nios\nsystem\n.",
    "obj": START + b"(" + glob("os", "system") + text("x") + b"o.",
    "newobj": START + glob("subprocess", "Popen") + TOUCH + b"\x81.",
    "newobj_ex": START + glob("subprocess", "Popen") + TOUCH + b"}\x92.",
    "build": START + b"]" + b"}" + text("__class__") + b"Nsb.",
    "build a maker": START + glob("skyward.wire.datatypes", "steps") + b"}b.",
    "persid": b"\x80\x02Pos.system\n.",
    "binpersid": START + text("os.system") + b"Q.",
    "ext1": START + b"\x82\x07.",
    "ext4": START + b"\x84\x07\x00\x00\x00" + TOUCH + b"R.",
    "eval": START + glob("builtins", "eval") + text("1") + b"\x85R.",
    "getattr": START + glob("builtins", "getattr") + b")R.",
    "import": START + glob("builtins", "__import__") + text("antigravity") + b"\x85R.",
    "partial": START + glob("functools", "partial") + b")R.",
    "reconstructor": START + glob("copyreg", "_reconstructor") + b")R.",
    "attrgetter": START + glob("operator", "attrgetter") + text("a") + b"\x85R.",
    "torch load": START + glob("skyward.wire.tensors", "load") + b"C\x01x\x85R.",
    "undecorated": START + glob("skyward.wire.payload", "undecorated") + text("os") + text("system") + b"\x86R.",
    "numpy load": START + glob("numpy", "load") + text("/tmp/x") + b"\x85R.",
    "numpy reconstruct": START + glob("numpy._core.multiarray", "_reconstruct") + b")R.",
    "torch rebuild": START + glob("torch._utils", "_rebuild_tensor_v2") + b")R.",
    "a helper": START + glob("skyward.wire.arrays", "_library") + text("antigravity") + b"\x85R.",
    "a helper's module": START + glob("skyward.wire.datatypes", "sys.modules") + b".",
    "a maker as a value": START + glob("skyward.wire.datatypes", "steps") + b".",
    "a maker in a list": START + b"]" + glob("skyward.wire.datatypes", "steps") + b"a.",
    "a maker in a tuple": START + glob("skyward.wire.datatypes", "steps") + b"\x85.",
    "a maker in a dict": START + b"}" + text("a") + glob("skyward.wire.datatypes", "steps") + b"s.",
    "a value called": START + text("os.system") + TOUCH + b"R.",
    "no end": START + b"]",
    "empty": b"",
    "noise": b"\xff\xfe\x00garbage",
    "an empty stack": START + b".",
    "a huge string": START + b"\x8e" + struct.pack("<Q", 1 << 61) + b"x.",
    "an unknown memo": START + b"h\x63.",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_runs_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[object] = []
    for module, function in ((os, "system"), (pickle, "loads")):
        monkeypatch.setattr(module, function, lambda *args: ran.append(args))
    monkeypatch.setattr("subprocess.Popen", lambda *args, **_: ran.append(args))
    before = set(sys.modules)

    refused(HOSTILE[name])

    assert ran == []
    assert "antigravity" not in set(sys.modules) - before


def test_an_extension_that_was_used_before_is_no_way_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once looked up, pickle takes it from a cache without asking."""
    copyreg.add_extension("os", "system", 7)
    try:
        assert pickle.loads(b"\x80\x02\x82\x07.") is os.system
        assert "ext" in refused(START + b"\x82\x07" + TOUCH + b"R.").lower()
        assert "ext" in refused(START + b"\x82\x07.").lower()
    finally:
        copyreg.remove_extension("os", "system", 7)
        copyreg.clear_extension_cache()


def call(maker: str, *arguments: Any) -> bytes:
    """A pickle that calls a maker with whatever it likes."""
    (name,) = (each for each in MAKERS if each.endswith(f".{maker}"))
    module, _, function = name.rpartition(".")
    return START + glob(module, function) + pickle.dumps(arguments, 5)[2:].removesuffix(b".") + b"R."


OWN = own_types.__name__
LIES: dict[str, bytes] = {
    "a module that is not imported": call("record", "antigravity", "X", {}),
    "a function as class": call("record", "os", "system", {}),
    "an attribute of a class": call("record", OWN, "Point.__init__", {}),
    "no dataclass": call("record", OWN, "Plain", {}),
    "a class with __del__": call("record", OWN, "Guarded", {"path": "/"}),
    "a property": call("record", OWN, "Point", {"trap": 1}),
    "a method": call("record", OWN, "Point", {"__post_init__": 1}),
    "a dunder": call("record", OWN, "Point", {"__class__": 1}),
    "a dataclass of Python's": call("record", "graphlib", "TopologicalSorter", {}),
    "a plain class as tuple": call("named_tuple", OWN, "Plain", ()),
    "a tuple of another length": call("named_tuple", OWN, "Pair", (1,)),
    "an unknown member": call("member", OWN, "Colour", "__init__"),
    "no enumeration": call("member", OWN, "Plain", "x"),
    "a zone outside": call("place", "../../../etc/passwd"),
    "an array of objects over memory": call("array", "|O", (1,), "C", b"12345678"),
    "an array of objects in fields": call("array", [("a", "|O")], (1,), "C", b"12345678"),
    "an array larger than its memory": call("array", "<f8", (1 << 40,), "C", b"12345678"),
    "a negative shape": call("array", "<f8", (-1,), "C", b"12345678"),
    "a scalar of objects": call("scalar", "|O", b"12345678"),
    "a scalar of another size": call("scalar", "<f8", b"1"),
    "a dtype by expression": call("dtype", "i4,f8"),
    "a dtype with offsets": call("dtype", {"names": ["a"], "formats": ["i8"], "offsets": [100], "itemsize": 1}),
    "a deque of no list": call("queue", "abc", None),
    "a factory": call("with_default", "eval", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_maker_is_not_fooled(name: str) -> None:
    pytest.importorskip("numpy")
    refused(LIES[name])
    assert CALLED == []
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "lie",
    [
        call("tensor", "float64", (100,), b"12345678", False, False),
        call("tensor", "load", (1,), b"12345678", False, False),
        call("tensor_dtype", "nn"),
        call("device", "../x"),
    ],
)
def test_a_tensor_is_no_way_in(lie: bytes) -> None:
    pytest.importorskip("torch")
    refused(lie)


@pytest.mark.parametrize(
    "lie",
    [
        call("timestamp", "2026", None),
        call("strings", ["a"], "object"),
        call("strings", [1], "str"),
        call("series", [1], [2], "x", {}),
        call("frame", 1, 2, 3, {}),
        call("index", "abc", None, None),
        call("moments", [1], "dateutil//etc/passwd"),
    ],
)
def test_a_frame_is_no_way_in(lie: bytes) -> None:
    pytest.importorskip("pandas")
    refused(lie)


def test_the_usual_pickle_of_an_array_is_refused_too() -> None:
    """numpy's own way builds arrays from whatever state it is given."""
    np = pytest.importorskip("numpy")
    assert "numpy" in refused(pickle.dumps(np.arange(3), 5))


def test_a_dataclass_that_another_package_defines_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its methods are not this program's, and nobody here expects one."""
    module = types.ModuleType("installed_package")
    module.__file__ = f"{sysconfig.get_paths()['purelib']}/installed_package.py"
    module.Point = Point  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "installed_package", module)
    assert "does not define itself" in refused(call("record", "installed_package", "Point", {"x": 1}))


def test_the_makers_are_these() -> None:
    """A new one is a decision: it runs on the client with whatever a hostile node gives it."""
    assert len(MAKERS) == 47
    assert not [name for name in MAKERS if name.rpartition(".")[2].startswith("_")]


# exceptions --------------------------------------------------------------------------------------------------------


class Hostile(Exception):
    def __reduce__(self) -> Any:
        return CALLED.append, ("unpickled",)


def raised(error: Exception) -> bytes:
    try:
        raise error
    except Exception as caught:
        return payload.dump_exception(caught)


def test_an_exception_comes_as_text() -> None:
    """With its type's name, its text and its traceback, and nothing of it is unpickled."""
    dumped = raised(Hostile("boom"))
    CALLED.clear()
    error = payload.load_exception(dumped, only_data=True)
    assert CALLED == []
    assert type(error) is RemoteError
    assert error.type_name.endswith("Hostile")
    assert "boom" in str(error)
    assert "results='data'" in str(error)
    assert "in raised" in error.traceback
    assert "raise error" in str(error.__cause__)


def test_skywards_own_exceptions_are_made_from_their_text() -> None:
    error = payload.load_exception(raised(SerializationError("The result holds x.")), only_data=True)
    assert type(error) is SerializationError
    assert str(error) == "The result holds x."


@pytest.mark.parametrize("only_data", [True, False])
@pytest.mark.parametrize("broken", [HOSTILE["reduce"], pickle.dumps((1, 2)), pickle.dumps(("a",) * 7), b""])
def test_a_record_that_is_none_is_told_as_such(broken: bytes, *, only_data: bool) -> None:
    error = payload.load_exception(broken, only_data=only_data)
    assert isinstance(error, RemoteError)
    assert "its record is broken" in str(error)


def test_no_device_is_read_for_the_source_of_a_traceback() -> None:
    """A node names the files; one of them might never end."""
    record = ("E", "text", 'Traceback:\n  File "/dev/zero", line 1, in f\nE', True, (), None, "")
    assert isinstance(payload.load_exception(pickle.dumps(record, 5), only_data=True), RemoteError)


def test_guarded_is_refused_for_its_del() -> None:
    with pytest.raises(SerializationError, match="__del__"):
        through(Guarded("/"))
