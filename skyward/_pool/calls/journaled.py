"""`pool.map(..., journal=)`: results that a file holds are taken from there, the others are computed and kept in it."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from skyward._pool.calls.task import Task
from skyward._pool.code.identity import Arguments, code_digest
from skyward._pool.config import PoolConfig
from skyward._pool.progress import Counting, Progress
from skyward._pool.signals import uninterrupted
from skyward.errors import ConfigError, JournalError
from skyward.records.results import ResultJournal, ResultKey
from skyward.system import SimpleQueue
from skyward.wire import payload
from skyward.wire.messages import RESULT_HEAD


@dataclass(frozen=True, slots=True)
class JournaledMap:
    """A map of one function with a journal.

    Attributes:
        journal: its file.
        image: identity of what the nodes run.
        only_data: whether the pool reads results as data only.
        tell: prints a line that stays.
    """

    journal: str | Path
    image: str
    only_data: bool
    tell: Callable[[str], None]

    @classmethod
    def of(cls, journal: str | Path, image: str | None, pool: PoolConfig, progress: Progress) -> JournaledMap:
        """For a pool with an image of this name; without one, what the nodes run is this Python at the provider."""
        python = f"{pool.provider.name}, Python {sys.version_info.major}.{sys.version_info.minor}"
        return cls(journal, image or python, pool.results == "data", progress.tell)

    def run(
        self, fn: Callable[..., Any], calls: Sequence[tuple[Any, ...]], start: Callable[[list[int]], Running]
    ) -> list[Any]:
        """The results of all calls, in their order.

        Args:
            fn: the undecorated function.
            calls: its arguments in each of them.
            start: begins the calls with these numbers.

        Raises:
            ConfigError: the file is not a journal of this user's, or is in use.
            JournalError: it cannot be read or written.
            SerializationError: the function or an item cannot be told from others.
            Whatever a call raises; the results that came before it are kept.
        """
        name = getattr(fn, "__qualname__", type(fn).__name__).rpartition("<locals>.")[2]
        if inspect.isgeneratorfunction(fn):
            raise ConfigError(f"journal= keeps results; {name}() is a generator function. Let it return a list.")
        with ResultJournal(self.journal) as journal:
            keys = self._keys(fn, name, calls)
            kept = [self._kept(journal, key) for key in keys]
            missing = [index for index, parts in enumerate(kept) if parts is None]
            if keys and (said := self._said(journal, keys[0], len(keys), len(missing))):
                self.tell(said)
            tasks = self._compute(journal, [keys[index] for index in missing], start(missing))
        computed = iter(tasks)
        return [next(computed).value() if parts is None else self._value(parts, name) for parts in kept]

    def _keys(self, fn: Callable[..., Any], name: str, calls: Sequence[tuple[Any, ...]]) -> list[ResultKey]:
        first = ResultKey(function=name, code=code_digest(fn), image=self.image, arguments="")
        arguments, seen, keys = Arguments(), Counter[str](), []
        for call in calls:
            digest = arguments.digest(call, of=name)
            keys.append(replace(first, arguments=digest, occurrence=seen[digest]))
            seen[digest] += 1
        return keys

    def _kept(self, journal: ResultJournal, key: ResultKey) -> tuple[bool, list[bytearray]] | None:
        """A result as it came from its node, and whether that made it as data only; None if it is not to be used."""
        is_data = journal.is_data(key)
        if is_data is None or (self.only_data and not is_data):
            return None
        parts = journal.load(key)
        return None if parts is None else (is_data, parts)

    def _value(self, kept: tuple[bool, list[bytearray]], name: str) -> Any:
        is_data, (data, *buffers) = kept
        return payload.loads(data, buffers, what=f"A result of {name}() in {self.journal}", only_data=is_data)

    def _compute(self, journal: ResultJournal, keys: Sequence[ResultKey], running: Running) -> list[Task]:
        """Keep results as they come; on the first error, and on Ctrl-C, keep those that are here and stop the rest."""
        place = dict(zip(running.tasks, keys, strict=True))
        try:
            for task in running.ended():
                self._keep(journal, place.pop(task), task)
        except JournalError:
            running.stop()
            raise
        except BaseException:
            running.stop()
            with suppress(JournalError):  # the error that is raised matters more
                for task, key in place.items():
                    if task.done and not task.failed and task.stream is None:
                        self._keep(journal, key, task)
            raise
        return running.tasks

    def _keep(self, journal: ResultJournal, key: ResultKey, task: Task) -> None:
        if task.failed:
            task.value()  # raises
        if task.frame is None:
            raise ConfigError(f"journal= keeps results; {key.function}() returned an iterator. Let it return a list.")
        body = memoryview(task.frame.head)[RESULT_HEAD.size :]
        with uninterrupted:
            journal.keep(key, [body, *task.frame.buffers], only_data=self.only_data)

    def _said(self, journal: ResultJournal, key: ResultKey, items: int, missing: int) -> str:
        """What a user has to know of a journal with earlier results; "" if there are none."""
        said = f"{items - missing} of {items} results are there" if missing < items else ""
        earlier = [each for each in journal.keys if each.function == key.function]
        code = sum(each.code != key.code for each in earlier)
        image = sum(each.code == key.code and each.image != key.image for each in earlier)
        others = sorted({each.function for each in journal.keys} - {key.function})
        unused = []
        if code:
            unused.append(f"{key.function}() has changed: {_counted(code)} of another version of it")
        if image:
            unused.append(f"{_counted(image)} of another image")
        if not earlier and others:
            named = ", ".join(f"{name}()" for name in others[:3]) + ", ..." * (len(others) > 3)
            unused.append(f"all {_counted(len(journal))} of {named}")
        texts = [said] * bool(said) + [f"{text} and not used" for text in unused]
        return f"journal {self.journal}: {'; '.join(texts)}" if texts else ""


@dataclass(frozen=True, slots=True)
class Running:
    """Calls that have been sent.

    Attributes:
        tasks: the calls, in the order of their items.
        arrived: receives each of them when it has ended.
        cancel: stops those that have not.
        drain: waits until what was printed before is shown.
        counting: shows how many have ended.
    """

    tasks: list[Task]
    arrived: SimpleQueue[Task]
    cancel: Callable[[Sequence[Task]], None]
    drain: Callable[[], None]
    counting: Counting

    def ended(self) -> Iterator[Task]:
        """Each call when it has ended."""
        with self.counting:
            for _ in self.tasks:
                task = self.counting.take(self.arrived)
                self.drain()
                yield task

    def stop(self) -> None:
        """Stop the calls that have not ended."""
        self.cancel(self.tasks)


def _counted(results: int) -> str:
    return f"{results} results are" if results > 1 else "1 result is"
