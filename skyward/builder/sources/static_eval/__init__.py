"""Reading Python without running it: names, containers, functions and classes of a script, followed as Python has them.

What is certain is a value. What only a run can tell (arguments of the program, the environment, other packages) is an
`Unknown` that says why; so is whatever may have been changed by code that is not followed. Nothing of the user's runs:
only built-in operations on constants and Skyward's own values do.

`Interpreter` reads a script once from its top to its end, then the functions that nobody was seen to call. Functions
that others get hold of may be called at any time. What they change is found when they are read; then all is read once
more, with that being unknown from the begin on.

`reading.py` has what is shared by those that evaluate: `statements.py`, `expressions.py`, `comprehensions.py`,
`calls.py`, `classes.py`, `mutations.py` and `files.py` (imports). `values.py` and `state.py` are what they work on.
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
    """Follows one script.

    Args:
        source: the script.
        on_pool: is told of each pool that is made, at that moment: its arguments may be changed afterwards.
    """

    def __init__(self, source: Source, on_pool: Callable[[PoolCall, Reading], None]) -> None:
        self._source = source
        self._on_pool = on_pool
        self._sources: dict[Path, Source] = {}
        self._made: dict[ast.expr, Any] = {}

    def run(self) -> Reading:
        """Read the script.

        Raises:
            ConfigError: it takes too long, or a file beside it cannot be read.
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
        """Read all, and find what functions may change that nobody can tell when they run."""
        reading.statements.run(self._source.tree.body, reading.main.scope)
        end = reading.state.count
        done: set[int] = set()
        while todo := [each for key, each in reading.functions.items() if key not in done]:
            for function in todo:
                done.add(id(function))
                is_alone = not function.is_called and function.module is reading.main  # may make a pool all the same
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
