"""The process that runs a program to find its first pool, or imports it to find what is declared at its top level.

`python -m skyward.runs.described HOW NAME PROGRAM ARGUMENTS`: HOW is "import", "run" or "module" (as `python -m` does);
NAME is the one variable that is wanted, or "". Answers go to the socket in SKYWARD_DESCRIBE, see `describe`.
"""

from __future__ import annotations

import ast
import asyncio
import ctypes
import inspect
import runpy
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from skyward._pool.decorator import SCOPE, PoolScope
from skyward._pool.description import describe, send
from skyward._pool.pool import ComputePool
from skyward.builder.sources.declared import Declared
from skyward.model.image import Image
from skyward.model.source import parts_of
from skyward.runs.program import PR_SET_PDEATHSIG


def main(how: str, name: str, program: str, *arguments: str) -> None:
    """Run or import a program, and send what it declares at its top level if it opens no pool."""
    if sys.platform == "linux":  # a program whose result nobody waits for must not go on and open its pool
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.argv = [program, *arguments]
    sys.path.insert(0, str(Path.cwd() if how == "module" else Path(program).absolute().parent))
    try:
        if how == "module":
            values = runpy.run_module(program, run_name="__main__", alter_sys=True)
        elif program.endswith(".ipynb"):
            values = _run_cells(Path(program))
        else:
            values = runpy.run_path(program, run_name="__mp_main__" if how == "import" else "__main__")
        send("found", list(_declared(program, values, name)))
    except Exception as error:
        trace = error.__traceback__
        while trace and any(trace.tb_frame.f_globals is each for each in (globals(), vars(runpy))):
            trace = trace.tb_next
        traceback.print_exception(error.with_traceback(trace))
        send("failed", _sentence(error))
        sys.exit(1)


def _sentence(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "it reads standard input, which is empty here."
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"it needs the module {error.name!r}, which is not installed here."
    return f"{type(error).__name__}: {error}"


def _run_cells(path: Path) -> dict[str, Any]:
    """Run the code cells of a notebook; return the names that they bind."""
    module = sys.modules["__main__"] = ModuleType("__main__")
    for name, text in parts_of(path):
        code = compile(text, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        result = FunctionType(code, vars(module))()
        if inspect.iscoroutine(result):  # of a cell with `await`
            asyncio.run(result)
    return vars(module)


def _declared(program: str, values: Mapping[str, Any], name: str) -> Iterator[Declared]:
    """Yield the pools bound at the top level of a program, and the images there that none of them uses."""
    names = [name] if name else values.keys() - _imported(program)
    wanted = {key: value for key, value in values.items() if key in names}
    pools = {key: pool for key, value in wanted.items() if (pool := _pool(value)) is not None}
    yield from (describe(pool, key, f"{program}, {key}") for key, pool in pools.items())
    seen = [pool._settings.image for pool in pools.values()]
    for key, value in wanted.items():
        if isinstance(value, Image) and value not in seen:
            seen.append(value)
            yield Declared(name=key, where=f"{program}, {key}", root=Path.cwd(), image=value)


def _pool(value: object) -> ComputePool | None:
    scope = value if isinstance(value, PoolScope) else getattr(value, SCOPE, None)
    return scope.make() if isinstance(scope, PoolScope) else value if isinstance(value, ComputePool) else None


def _imported(program: str) -> set[str]:
    """Return the names that import statements of a program bind: what they name is declared elsewhere."""
    if not program.endswith(".py"):
        return set()
    nodes = ast.walk(ast.parse(Path(program).read_bytes()))
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return {alias.asname or alias.name for node in imports for alias in node.names}


if __name__ == "__main__":
    main(*sys.argv[1:])
