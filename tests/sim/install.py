"""Puts the simulation in the place of `skyward.system`; to be imported before anything else of skyward."""

from __future__ import annotations

import importlib.util
import random
import secrets
import sys
from concurrent import futures
from pathlib import Path
from queue import Empty, Full
from types import ModuleType
from typing import Any

from tests.sim import modules, net, threads

assert not any(name.startswith("skyward.") for name in sys.modules), "something of skyward has been imported before"


def _copy(name: str, replaced: dict[str, Any]) -> ModuleType:
    """A module of the standard library, executed again on top of others."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = {key: sys.modules.get(key) for key in replaced}
    sys.modules.update(replaced)
    try:
        spec.loader.exec_module(module)
    finally:
        for key, value in before.items():
            if value is None:
                del sys.modules[key]
            else:
                sys.modules[key] = value
    return module


_threading, _time = modules.Threading(), modules.Time()
_base = _copy("concurrent.futures._base", {"threading": _threading, "time": _time})
vars(_base).update({name: getattr(futures, name) for name in ("CancelledError", "InvalidStateError", "TimeoutError")})


def _install() -> None:
    system = ModuleType("skyward.system")
    system.__path__ = [str(Path(__file__).parents[2] / "skyward/system")]  # `collector` is not replaced
    later, process_end = ModuleType("skyward.system.futures"), ModuleType("skyward.system.process_end")
    vars(process_end).update(
        before_end=_nothing, soon=_nothing, on_signals=_nothing
    )  # a simulated process has no end of Python's
    vars(system).update(
        threading=_threading,
        time=_time,
        socket=net.SocketModule(),
        select=net.SelectModule(),
        Empty=Empty,
        Full=Full,
        Queue=threads.Queue,
        SimpleQueue=threads.SimpleQueue,
        futures=later,
        process_end=process_end,
    )
    vars(later).update(
        {name: value for name, value in vars(_base).items() if not name.startswith("__")},
        ThreadPoolExecutor=modules.ThreadPoolExecutor,
    )
    sys.modules["skyward.system"], sys.modules["skyward.system.futures"] = system, later
    sys.modules["skyward.system.process_end"] = process_end


def _nothing(_action: object) -> None:
    pass


_install()
chance = random.Random(0)  # seeded anew by each simulation
secrets.token_bytes = lambda nbytes=None: chance.randbytes(nbytes or 32)
secrets.token_hex = lambda nbytes=None: chance.randbytes(nbytes or 32).hex()
