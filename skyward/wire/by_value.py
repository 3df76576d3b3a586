"""Functions, classes and other objects of `__main__`, which are pickled by value, as nodes do not have the program.

In a process that runs the program's functions, those that come from `__main__` share one namespace, which is
`sys.modules["__main__"]` there, so that what looks names up finds them: pickle, multiprocessing, `typing`. In the
program itself, what a function returns never changes a global or a class.

A class arrives without its class statement being run again: it is created empty, by no metaclass and hook of Python
code, and its attributes are set afterwards. It keeps its identity: it is the same class in every pickle.
"""

from __future__ import annotations

import abc
import copyreg
import dataclasses
import enum
import functools
import sys
import typing
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import BuiltinFunctionType, CellType, FunctionType, GetSetDescriptorType, MappingProxyType
from types import MemberDescriptorType as SlotDescriptorType
from typing import Any, Protocol
from uuid import uuid4

from skyward.system import threading

MAIN = ("__main__", "__mp_main__")
DESCRIPTORS = (property, classmethod, staticmethod, functools.cached_property)

_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8  # https://docs.python.org/3/c-api/typeobj.html#c.PyTypeObject.tp_flags
_AT_CREATION = ("__module__", "__qualname__", "__slots__", "__orig_bases__")  # attributes that `type` looks at
_NO_HOOK = classmethod(lambda _cls, **_: None)
_lock = threading.RLock()
_identities: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()
_classes: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()
_arrived: dict[str, bool] = {}  # identities of classes that were created here from a pickle; whether they are complete


class Program(Protocol):
    """The program's `__main__` in a process that runs its functions.

    Attributes:
        space: its globals.
    """

    space: dict[str, Any]

    def bring(self, names: Mapping[str, Any]) -> None: ...


current: ContextVar[Program | None] = ContextVar("skyward_program", default=None)  # None in the program itself


# functions ------------------------------------------------------------------------------------------------------------


class Namespace(dict[str, Any]):
    """The attributes of the program's `__main__` that Python itself uses; unpickled as its namespace."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _namespace, (dict(self),)


def is_program(space: dict[str, Any]) -> bool:
    """Return whether these are the globals of the program's `__main__`."""
    return space is vars(sys.modules["__main__"])


def attributes_of(space: Mapping[str, Any]) -> Namespace:
    """Return the attributes that relative imports and `__file__` need."""
    return Namespace(
        {"__name__": "__main__"} | {name: space[name] for name in ("__package__", "__file__") if name in space}
    )


def _namespace(attributes: dict[str, Any]) -> dict[str, Any]:
    program = current.get()
    if program is None:  # a function that a call has returned sees the values it had on the node
        return attributes
    program.space.update(attributes)
    return program.space


def reduce_function(fn: Any, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """Complete cloudpickle's reduction of a function.

    Closures that share a variable go on sharing it, a function finds the names in its annotations, and others find it
    in `__main__` by its name.
    """
    if type(getattr(fn, "registry", None)) is MappingProxyType and hasattr(fn, "dispatch"):
        implementations = dict(fn.registry)
        return _dispatching, (implementations.pop(object),), implementations, None, None, _register
    make, (code, space, name, defaults, _), (attributes, slots), *rest, fill = reduced
    arguments = code, space, name, defaults, fn.__closure__
    slots["__closure__"] = None
    if isinstance(space, Namespace):
        slots["__globals__"] |= _annotated(fn.__annotations__, fn.__globals__)
        if fn.__globals__.get(fn.__qualname__) is fn:
            slots["__globals__"][fn.__qualname__] = fn
        names, slots["__globals__"] = slots["__globals__"], {}
        return make, arguments, (fill, names, (attributes, slots)), *rest, _fill_function
    return make, arguments, (attributes, slots), *rest, fill


def _fill_function(fn: FunctionType, state: tuple[Callable[..., None], dict[str, Any], Any]) -> None:
    fill, names, own = state
    if program := current.get():
        program.bring(names)
    else:
        fn.__globals__.update(names)
    fill(fn, own)


def _annotated(annotations: Mapping[str, Any], space: Mapping[str, Any]) -> dict[str, Any]:
    """Return the globals that annotations written as strings name, without those that need a package on the node."""
    found: dict[str, Any] = {}
    for text in annotations.values():
        if isinstance(text, str):
            try:
                names = compile(text, "", "eval").co_names
            except (SyntaxError, ValueError):
                continue
            found |= {name: space[name] for name in names if name in space and _is_everywhere(space[name])}
    return found


def _is_everywhere(value: Any) -> bool:
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and (module in MAIN or module.partition(".")[0] in sys.stdlib_module_names)


def _dispatching(fn: Callable[..., Any]) -> Any:
    return functools.singledispatch(fn)


def _register(dispatching: Any, implementations: dict[type, Callable[..., Any]]) -> None:
    for kind, fn in implementations.items():
        dispatching.register(kind, fn)


def _reduce_cell(cell: CellType) -> tuple[Any, ...]:
    try:
        return CellType, (), (cell.cell_contents,), None, None, _fill_cell
    except ValueError:  # its variable is not assigned yet
        return CellType, ()


def _fill_cell(cell: CellType, contents: tuple[Any]) -> None:
    (cell.cell_contents,) = contents


# classes --------------------------------------------------------------------------------------------------------------


def is_class(obj: type) -> bool:
    """Return whether a type was made by Python code, so that its attributes make it up."""
    return bool(obj.__flags__ & _HEAP_TYPE)


def reduce_class(cls: type) -> tuple[Any, ...]:
    """Return how a class is pickled by value."""
    identity = _identity(cls)
    own = vars(cls)
    first = {name: own[name] for name in _AT_CREATION if name in own} | {"__qualname__": cls.__qualname__}
    members = {name: value for name, value in own.items() if not _is_made_by_python(cls, name, value)}
    subclasses = [each() for each in abc._get_dump(cls)[0]] if isinstance(cls, abc.ABCMeta) else []  # type: ignore[attr-defined]
    space = vars(sys.modules["__main__"])
    names = _annotated(own.get("__annotations__", {}), space)
    outermost = cls.__qualname__.partition(".")[0]
    if cls.__module__ in MAIN and isinstance(space.get(outermost), type):
        names[outermost] = space[outermost]
    create = identity, type(cls), cls.__name__, cls.__bases__, first
    return _created, create, (identity, members, subclasses, names), None, None, _fill


def _identity(cls: type) -> str:
    with _lock:
        known = _identities.get(cls)
        if known is None:
            known = _identities[cls] = uuid4().hex
            _classes[known] = cls
        return known


def _is_made_by_python(cls: type, name: str, value: Any) -> bool:
    made = type(value) in (GetSetDescriptorType, SlotDescriptorType) and value.__objclass__ is cls
    return made or name in ("_abc_impl", "__slotnames__")  # the latter is a cache of copyreg


def _created(identity: str, meta: type, name: str, bases: tuple[type, ...], first: dict[str, Any]) -> type:
    with _lock:
        known = _classes.get(identity) or _of_program(first)
        if known is None:
            maker = abc.ABCMeta if issubclass(meta, abc.ABCMeta) else _of_c(meta)
            with _without_hooks(bases):
                known = maker.__new__(meta, name, bases, first)
            _identities[known] = identity
            _arrived[identity] = False
        _classes[identity] = known
        return known


def _of_program(first: Mapping[str, Any]) -> type | None:
    """Return the program's own class for one of another run of it, such as in a result that a journal has kept."""
    if current.get() is not None or first.get("__module__") not in MAIN:
        return None
    space, found = MappingProxyType(vars(sys.modules["__main__"])), None
    for name in first["__qualname__"].split("."):
        found = space.get(name)
        if not isinstance(found, type):
            return None
        space = vars(found)
    return found


def _of_c(kind: type) -> Any:
    """Return the first class of the method resolution order whose `__new__` is not Python code."""
    return next(each for each in kind.__mro__ if isinstance(vars(each).get("__new__"), BuiltinFunctionType))


@contextmanager
def _without_hooks(bases: tuple[type, ...]) -> Iterator[None]:
    """Replace the `__init_subclass__` of these bases for a moment, since `type` calls it in any case."""
    hooks: dict[type, Any] = {}
    for base in bases:
        above = next(each for each in base.__mro__ if "__init_subclass__" in vars(each))
        if not above.__flags__ & _IMMUTABLE_TYPE and above is not object:
            hooks[above] = vars(above)["__init_subclass__"]
    try:
        for above in hooks:
            type.__setattr__(above, "__init_subclass__", _NO_HOOK)
        yield
    finally:
        for above, hook in hooks.items():
            type.__setattr__(above, "__init_subclass__", hook)


def _fill(cls: type, state: tuple[str, dict[str, Any], list[type], dict[str, Any]]) -> None:
    identity, members, subclasses, names = state
    if identity not in _arrived:  # a class of this program has come back
        return
    plain = _of_c(type(cls)) is type
    for name, value in members.items():
        if plain:
            type.__setattr__(cls, name, value)
        else:
            setattr(cls, name, value)
    for each in subclasses:
        cls.register(each)  # type: ignore[attr-defined]
    if program := current.get():
        program.bring(names)
    if not _arrived[identity]:
        _arrived[identity] = True
        _run_hook(cls)


def _run_hook(cls: type) -> None:
    """Run the `__init_subclass__` of a module that this process has imported, which may keep its subclasses."""
    above = next(each for each in cls.__mro__[1:] if "__init_subclass__" in vars(each))
    module = above.__module__.partition(".")[0]
    if _identities.get(above) not in _arrived and module not in sys.stdlib_module_names and module not in MAIN:
        with suppress(TypeError):  # it requires keywords, and those of a class statement are not kept
            super(cls, cls).__init_subclass__()  # type: ignore[arg-type]


# members of enumerations ----------------------------------------------------------------------------------------------


def reduce_member(member: enum.Enum) -> tuple[Any, ...]:
    """Return how a member of an enumeration is pickled by value; only `_fill` puts it into its class."""
    reduced: Any = object.__reduce_ex__(member, 2)
    args = reduced[1][1:] if reduced[0] is copyreg.__newobj__ else reduced[1]  # type: ignore[attr-defined]
    identity = member._name_, member._value_
    return _member, (type(member), *identity, args), vars(member), None, None, _fill_member


def _member(cls: type[enum.Enum], name: str | None, value: Any, args: tuple[Any, ...]) -> Any:
    own = vars(cls)
    known = own.get("_member_map_", {}).get(name)
    if known is None and issubclass(cls, enum.Flag):
        known = own.get("_value2member_map_", {}).get(value)
    return _of_c(cls).__new__(cls, *args) if known is None else known


def _fill_member(member: Any, attributes: dict[str, Any]) -> None:
    vars(member).update(attributes)


# other objects --------------------------------------------------------------------------------------------------------


def reduce_descriptor(obj: Any) -> tuple[Any, ...]:
    """Return how a property, class method, static method or cached property is pickled, of subclasses as well."""
    base = next(each for each in DESCRIPTORS if isinstance(obj, each))
    args: tuple[Any, ...] = (obj.func,) if base is functools.cached_property else ()
    if base is property:
        args = obj.fget, obj.fset, obj.fdel, obj.__doc__
    elif not args:
        args = (obj.__func__,)
    state = {name: value for name, value in getattr(obj, "__dict__", {}).items() if name != "lock"}
    return _descriptor, (type(obj), base, args), state or None


def _descriptor(kind: Any, base: Any, args: tuple[Any, ...]) -> Any:
    obj = base.__new__(kind)
    base.__init__(obj, *args)
    return obj


def reduce_instance(obj: Any) -> Any:
    """Return how an object is pickled whose class is by value and says itself how: by a name, as singletons do, too."""
    reduced = obj.__reduce_ex__(5)
    if isinstance(reduced, str):
        return _singleton, (reduced, type(obj), getattr(obj, "__dict__", {}))
    return reduced


def _singleton(name: str, cls: type, attributes: dict[str, Any]) -> Any:
    program = current.get()
    space = program.space if program else vars(sys.modules["__main__"])
    if type(found := space.get(name)) is cls:
        return found
    made: Any = object.__new__(cls)
    vars(made).update(attributes)
    if program:
        space[name] = made
    return made


def _is_named(obj: Any, name: str) -> bool:
    """Return whether nodes can import an object, which is not a class or function."""
    module = sys.modules.get(obj.__module__)
    found: Any = module
    for each in name.split("."):
        found = getattr(found, each, None)
    return obj.__module__ not in MAIN and found is obj


def _reduce_cached(obj: Any) -> Any:
    if _is_named(obj, obj.__qualname__):
        return obj.__qualname__
    return _cached, (obj.__wrapped__, obj.cache_parameters())


def _cached(fn: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(fn)


def _reduce_new_type(obj: Any) -> Any:
    if _is_named(obj, obj.__qualname__):
        return obj.__qualname__
    return typing.NewType, (obj.__name__, obj.__supertype__), vars(obj)


def _reduce_parameter(obj: Any) -> Any:
    if _is_named(obj, obj.__name__):
        return obj.__name__
    named = {
        name: getattr(obj, f"__{name}__")
        for name in ("bound", "covariant", "contravariant")
        if hasattr(obj, f"__{name}__")
    }
    return _parameter, (type(obj), obj.__name__, named, obj.__module__)


def _parameter(kind: Any, name: str, named: dict[str, Any], module: str) -> Any:
    made = kind(name, **named)
    made.__module__ = module
    return made


def _reduce_weak(obj: Any) -> tuple[Any, ...]:
    return type(obj), (dict(obj),)


TABLE: Mapping[type, Callable[[Any], Any]] = {
    CellType: _reduce_cell,
    type(dataclasses.MISSING): lambda _: "MISSING",  # what fields have as their default is compared by identity
    functools._lru_cache_wrapper: _reduce_cached,
    typing.NewType: _reduce_new_type,
    typing.ParamSpec: _reduce_parameter,
    typing.TypeVarTuple: _reduce_parameter,
    weakref.WeakKeyDictionary: _reduce_weak,
    weakref.WeakValueDictionary: _reduce_weak,
}
