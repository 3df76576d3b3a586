"""Texts of errors and notes: why something cannot be sent or has failed on a node, and what to do about it."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from skyward.errors import SerializationError
from skyward.model.instance import CODE_DIR, ENV_VAR, InstanceInfo
from skyward.wire.exceptions import said

Pickle = Callable[[object], object]  # raises if the object cannot be pickled
_MAX_TRIES = 300  # maximum number of objects pickled again in the search
_MAX_DEPTH = 12
_NO_GPU = re.compile(
    r"Torch not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available|no CUDA-capable device"
)
_NO_GROUP = re.compile(r"Default process group has not been initialized")
_STAYS = "Locks, connections, open files and threads cannot be sent. Create them inside the function."


# unpicklable values ---------------------------------------------------------------------------------------------------


def unpicklable(what: str, obj: object, error: Exception, pickle: Pickle) -> SerializationError:
    """Return the error for a value, naming the part that cannot be pickled."""
    inner = path_of(obj, pickle)
    found = f"{inner} of it gives {said(error)}" if inner else said(error)
    if "cannot pickle 'generator'" in found:
        remedy = " Give it as a list: list(...) makes one."
    elif isinstance(error, TypeError | NotImplementedError) and "client only" not in found:
        remedy = f" {_STAYS}"
    else:
        remedy = ""
    return SerializationError(f"{what} cannot be pickled: {found}.{remedy}")


def unpicklable_function(fn: Callable[..., Any], error: Exception, pickle: Pickle) -> SerializationError:
    """Return the error for a function, naming the variable it uses that cannot be pickled."""
    name = getattr(fn, "__qualname__", None) or repr(fn)
    inner = path_of(fn, pickle)
    found = f"{inner.removeprefix('.')}, which it uses, gives {said(error)}" if inner else said(error)
    advice = "create what cannot be sent (locks, connections, open files) inside the function."
    if inner.startswith(".get_ipython"):
        advice = "`!`, `%` and get_ipython() are the notebook's own, which nodes have not. Use subprocess in functions."
    return SerializationError(
        f"Function {name}() cannot be pickled: {found}. It is sent with the variables it uses: {advice}"
    )


def path_of(value: object, pickle: Pickle) -> str:
    """Return the path to the innermost unpicklable part of a value, "['model'].lock"; empty if it is the whole value.

    Follows items of built-in containers and attributes.
    """
    tries = iter(range(_MAX_TRIES))
    path = ""
    for _ in range(_MAX_DEPTH):
        for step, part in _parts(value):
            if next(tries, None) is None:
                return path
            if not _works(pickle, part):
                path, value = path + step, part
                break
        else:
            return path
    return path


def _works(pickle: Pickle, value: object) -> bool:
    try:
        pickle(value)
    except Exception:  # reducers are foreign code; any exception counts
        return False
    return True


def _refuses(value: object) -> bool:
    """Return whether the class itself refuses to be pickled, so that its contents need not be searched."""
    return type(value).__reduce__ is not object.__reduce__ and not _works(lambda it: it.__reduce__(), value)


def _parts(value: object) -> Iterator[tuple[str, Any]]:
    if _refuses(value):
        return
    if isinstance(value, Mapping):
        yield from ((f"[{key!r:.60}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, type):
        return
    elif isinstance(value, FunctionType):
        names = set(_names(value.__code__))
        yield from ((f".{name}", part) for name, part in value.__globals__.items() if name in names)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if cell.cell_contents is not value:
                yield f".{name}", cell.cell_contents
    elif isinstance(state := getattr(value, "__dict__", None), dict):
        yield from ((f".{name}", part) for name, part in state.items())


def _names(code: CodeType) -> Iterator[str]:
    """Yield the global names used by a function and by the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def cause_of(error: Exception) -> Exception | None:
    """Return the pickler's error if its frames show where in the user's code it was raised."""
    trace = error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__"))
        if module.partition(".")[0] not in ("skyward", "cloudpickle", "copyreg", "pickle"):
            return error
        trace = trace.tb_next
    return None


# failed unpickling ----------------------------------------------------------------------------------------------------


def missing_module(what: str, error: ModuleNotFoundError) -> str:
    if ENV_VAR in os.environ:
        return f"{what} cannot be unpickled on the node. {_remedy(error)}"
    return f"{what} needs the module {error.name!r}, which is not installed here. Install it, or return plain data."


def _remedy(error: ModuleNotFoundError) -> str:
    return (
        f"The image has no module {error.name!r}: add the package that provides it to Image(pip=[...]), or its file to "
        "Image(includes=[...]). Nodes of sky.Local() have no image, but the packages that this program has."
    )


def where_of() -> str:
    """Return where unpickling failed: on the node or here."""
    return "on the node" if ENV_VAR in os.environ else "here"


# exceptions of functions ----------------------------------------------------------------------------------------------


def advice_on(error: BaseException, text: str) -> tuple[str, ...]:
    """Return what to do about an exception raised on a node, if that is known."""
    notes = []
    if isinstance(error, FileNotFoundError) and CODE_DIR in Path(str(error.filename)).parts:
        notes.append(
            "Packages are sent without what git ignores, what looks like credentials, and their largest files if all "
            "exceed 20 MB; other folders only with the modules that are imported. Add files to Image(includes=[...])."
        )
    if ENV_VAR in os.environ:
        if isinstance(error, ModuleNotFoundError):
            notes.append(_remedy(error))
        if advice := _of_pool(text):
            notes.append(advice)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            notes.append("A file system of this node is full: write less, or free space. /dev/shm grows with memory=.")
    return tuple(notes)


def _of_pool(text: str) -> str:
    """Return the advice for the text of a node's exception; usually ""."""
    if _NO_GPU.search(text) and not ((place := InstanceInfo.current()) and place.accelerators):
        return "The pool's nodes have no GPU: ask for some, ComputePool(accelerator='A100'), or compute on the CPU."
    if _NO_GROUP.search(text):
        return (
            "sky.plugins.torch() creates the process group, on pools of several ranks: "
            "ComputePool(nodes=2, plugins=[sky.plugins.torch()])."
        )
    return ""
