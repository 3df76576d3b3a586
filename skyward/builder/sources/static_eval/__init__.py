"""Static evaluation of Python: names, containers, functions and classes of a script, followed by Python's rules.

What is certain becomes a value. What is known only at run time (program arguments, the environment, other packages)
becomes an `Unknown` that gives the reason; so does everything that code which is not followed may have changed. No user
code runs, only built-in operations on constants and Skyward's own values.

`Interpreter` reads a script once from top to bottom, then the functions without a visible call. Functions that other
code can reach may be called at any time. The changes they make are found when they are read; then the script is read
again with those values unknown from the start.

`reading.py` holds the state shared by the evaluators: `statements.py`, `expressions.py`, `comprehensions.py`,
`calls.py`, `classes.py`, `mutations.py` and `files.py` (imports). `values.py` and `state.py` define the data they work
on.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from skyward.builder.sources.static_eval.calls import Calls
from skyward.builder.sources.static_eval.classes import Classes
from skyward.builder.sources.static_eval.comprehensions import Comprehensions
from skyward.builder.sources.static_eval.expressions import Expressions
from skyward.builder.sources.static_eval.files import Imports, Source
from skyward.builder.sources.static_eval.mutations import Assignments, Methods
from skyward.builder.sources.static_eval.reading import PoolCall, Reading, TooLongError, Volatile
from skyward.builder.sources.static_eval.statements import Statements
from skyward.builder.sources.static_eval.values import Function, Module, Unknown
from skyward.errors import ConfigError

_MOST_READINGS = 6

Found = tuple[tuple[object, str], str, set[object]]  # a name or container, a place, and sites as in `Volatile`

__all__ = ["Interpreter", "PoolCall", "Reading", "Source", "Unknown"]


class Interpreter:
    """Evaluator of one script.

    Args:
        source: the script.
        on_pool: called for each pool at the moment it is created, as its arguments may change afterwards.
    """

    def __init__(self, source: Source, on_pool: Callable[[PoolCall, Reading], None]) -> None:
        self._source = source
        self._on_pool = on_pool
        self._sources: dict[Path, Source] = {}
        self._made: dict[ast.expr, Any] = {}

    def run(self) -> Reading:
        """Read the script.

        Raises:
            ConfigError: the script takes too long, or a file beside it cannot be read.
        """
        volatile: dict[tuple[object, str], Volatile] = {}
        try:
            for _ in range(_MOST_READINGS):
                reading = self._reading(volatile)
                found = list(self._read(reading))
                more = [each for each in found if each[0] not in volatile or not each[2] <= volatile[each[0]].sites]
                if not more:
                    return reading
                for key, place, sites in more:
                    volatile.setdefault(key, Volatile(place, set())).sites.update(sites)
        except (TooLongError, RecursionError):
            pass
        raise ConfigError(
            f"{self._source.path} does too much at its top for its images to be found without running it. "
            "Declare them in a TOML file."
        )

    def _reading(self, volatile: dict[tuple[object, str], Volatile]) -> Reading:
        reading = Reading(Module(self._source), volatile, self._on_pool)
        reading.expressions = Expressions(reading)
        reading.comprehensions = Comprehensions(reading, self._made)
        reading.calls = Calls(reading)
        reading.classes = Classes(reading)
        reading.methods = Methods(reading)
        reading.assignments = Assignments(reading)
        reading.statements = Statements(reading)
        reading.imports = Imports(reading, self._sources)
        reading.note_stores(self._source)
        return reading

    def _read(self, reading: Reading) -> Iterator[Found]:
        """Read the whole script, and yield the changes made by functions that may run at an unknown time."""
        reading.statements.run(self._source.tree.body, reading.main.scope)
        end = reading.state.count
        done: set[int] = set()
        while todo := [each for key, each in reading.functions.items() if key not in done]:
            for function in todo:
                done.add(id(function))
                is_alone = not function.is_called and function.module is reading.main  # may still create a pool
                if function.exposed is not None or is_alone:
                    yield from self._explore(function, end, reading)

    def _explore(self, function: Function, end: int, reading: Reading) -> Iterator[Found]:
        state, since = reading.state, reading.births
        exposed = function.exposed
        reading.window = (end if exposed is None else exposed, end)
        reading.quiet += function.module is not reading.main
        state.begin()
        reading.calls.explore(function)
        changes = state.end()
        reading.quiet -= function.module is not reading.main
        reading.window = None
        for change in changes.values() if exposed is not None else ():
            key, made = reading.site(change.holder)
            if made <= since and key is not None:
                place = next(iter(change.places), "a line of a function")
                yield (key, change.name or ""), place, reading.sites_before(change.every, since)
