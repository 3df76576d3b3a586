"""`pool.map`: batches of items, and journals of results.

Items share a message if a message each would cost more than the calls. A worker calls the function for the items of a
batch one after another and answers after 5 ms with the results so far. The remaining items are sent again: if a call
took 1 ms or more, in batches of as many items as were finished in that time (usually one), otherwise in somewhat
smaller batches. The duration of a function therefore need not be known: an item waits behind another of a slow
function at most once, and the last items are spread over all workers. With `journal=`, each item is a separate call:
results in the file are reused, the others are computed and added to it.
"""

from __future__ import annotations

import inspect
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from skyward._pool.code.identity import Arguments, code_digest
from skyward._pool.progress import Counting
from skyward._pool.signals import uninterrupted
from skyward._pool.task import Task, item_note
from skyward.errors import ConfigError, SerializationError
from skyward.records.results import ResultJournal, ResultKey
from skyward.system import SimpleQueue
from skyward.wire import batch, payload
from skyward.wire.batch import COUNT
from skyward.wire.messages import RESULT_HEAD

_PER_SLOT = 4  # initial batches, so that no slot waits long for another at the end
_LEAST, _MOST = 8, 4096  # items in an initial batch
_SHORT_S = 0.001  # a call that takes longer gains little from a batch


def check_map(fn: Any, iterables: tuple[Any, ...]) -> None:
    """Check the arguments of a map.

    Raises:
        TypeError: `fn` is not a function, an argument is not iterable, or the function takes another number of
            arguments; the message says what to write.
    """
    if hasattr(fn, "fn") and hasattr(fn, "args"):
        raise TypeError(f"map() takes the function itself, as in `pool.map(f, items)`; found the call {fn!r}.")
    if not callable(fn):
        raise TypeError(
            f"map() takes a function, and then its items, as in `pool.map(f, items)`; found {reprlib.repr(fn)} in the "
            "function's place."
        )
    for items in iterables:
        try:
            iter(items)
        except TypeError:
            remedy = f"for the numbers below it write range({items})" if isinstance(items, int) else "make it a list"
            raise TypeError(
                f"map() calls the function once for each item of an iterable; found {reprlib.repr(items)} of type "
                f"{type(items).__name__}: {remedy}."
            ) from None
    _check_takes(fn, len(iterables))


def _check_takes(fn: Callable[..., Any], count: int) -> None:
    """Check that a function can be called with one item of each iterable.

    Raises:
        TypeError: it takes more or fewer arguments.
    """
    plain = getattr(fn, "fn", fn)
    try:
        signature = inspect.signature(plain, follow_wrapped=False)
    except (TypeError, ValueError):  # a C function without a signature
        return
    try:
        signature.bind(*[None] * count)
    except TypeError as error:
        name = getattr(plain, "__name__", None) or type(plain).__name__
        if count > 1:
            raise TypeError(
                f"map() calls {name}() with an item of each of {count} iterables, which does not fit it: {error}."
            ) from None
        raise TypeError(
            f"map() calls {name}() with one item, which does not fit it: {error}. For items of several arguments write "
            f"`sky.gather(*({name if name.isidentifier() else 'f'}(*item) for item in items)) >> pool`."
        ) from None


class Sending(NamedTuple):
    """Functions that create and send the calls of a map.

    Attributes:
        single: creates the call for the item with this index.
        batch: creates the call for the items in this payload.
        submit: sends calls and puts each into the queue when it has ended.
        cancel: stops calls that have not ended.
        drain: waits until earlier output is shown.
        quiet: whether to show no progress.
    """

    single: Callable[[int], Task]
    batch: Callable[[bytes], Task]
    submit: Callable[[list[Task], SimpleQueue[Task]], None]
    cancel: Callable[[Sequence[Task]], None]
    drain: Callable[[], None]
    quiet: bool


def pays(fn: Callable[..., Any], items: int, slots: int) -> bool:
    """Return whether to use batches for a function and this number of items."""
    return items >= _LEAST * _PER_SLOT * slots and not inspect.isgeneratorfunction(fn)


class BatchedMap:
    """A map that sends its items in batches.

    Args:
        items: the arguments of its calls.
        slots: number of calls that can run at once.
        sending: creates and sends the calls.
    """

    def __init__(self, items: Sequence[Any], slots: int, sending: Sending) -> None:
        self._items, self._slots, self._sending = items, max(1, slots), sending
        self._results: list[Any] = [None] * len(items)
        self._ended = 0
        self._arrived: SimpleQueue[Task] = SimpleQueue()
        self._open: dict[Task, range] = {}  # calls that have not ended, with their items

    def run(self) -> list[Any]:
        """Run the map and return the results in the order of the items.

        Raises:
            The first error of any item; the other calls are stopped.
        """
        calls = self._calls(range(len(self._items)), self._part(len(self._items)))
        try:
            with Counting(tuple(calls), quiet=self._sending.quiet, total=len(self._items)) as counting:
                self._send(calls)
                while self._open:
                    task = counting.take(self._arrived, self._ended)
                    self._take(task, self._open.pop(task))
            self._sending.drain()
        except BaseException:
            self._sending.cancel(tuple(self._open))
            raise
        return self._results

    def _part(self, items: int) -> int:
        """Return the batch size at which this number of items makes several batches for each slot."""
        return min(_MOST, items // (_PER_SLOT * self._slots))

    def _calls(self, items: range, size: int) -> dict[Task, range]:
        """Return the calls for these items, each with its range of items."""
        calls = {}
        while items:
            entries = self._packed(items[:size])
            task = self._sending.batch(batch.dumps(entries)) if len(entries) > 1 else self._sending.single(items.start)
            calls[task] = items[: max(1, len(entries))]
            items = items[len(calls[task]) :]
        return calls

    def _packed(self, items: range) -> list[Any]:
        """Return the entries of a batch for as many items, from the first on, as fit; none if there is only one."""
        values = [self._items[index] for index in items]
        if len(values) < 2 or batch.are_numbers(values):
            return values if len(values) > 1 else []
        entries, size = list[Any](), 0
        for value in values:
            try:
                size += batch.add(entries, value, "An item")
            except SerializationError:  # a separate call for it reports what cannot be pickled
                break
            if size >= payload.OUT_OF_BAND:
                return entries[:-1]
        return entries

    def _send(self, calls: dict[Task, range]) -> None:
        self._open.update(calls)
        self._sending.submit(list(calls), self._arrived)

    def _take(self, task: Task, items: range) -> None:
        """Store the results of a call, and send the items that it did not process."""
        if task.failed:
            self._sending.drain()
            raise self._error(task, items)
        if not task.is_batch or task.stream is not None:
            results = [task.value()]
        else:
            assert task.frame is not None
            entries = batch.loads(memoryview(task.frame.head)[RESULT_HEAD.size :])
            what = f"A result of {task.function.name}()"
            results = [batch.value_of(entry, what) for entry in entries]
        done = len(results)
        size = 1 if task.stream is not None else done  # a generator streams its items over its own call
        self._results[items.start : items.start + done] = results
        self._ended += done
        if rest := items[done:]:
            if task.stream is None and task.run_s < done * _SHORT_S:
                size = max(size, self._part(len(rest)))
            self._send(self._calls(rest, size))

    def _error(self, task: Task, items: range) -> BaseException:
        """Return the error of a call, with a note naming the item, or the items of the batch if it is unknown."""
        error = task.failure()
        assert error is not None
        if not task.is_batch:
            return error
        if task.error is None and task.frame is not None and task.frame.buffers:
            index = items[COUNT.unpack(task.frame.buffers[0])[0]]
            return payload.noted(error, item_note(index, self._items[index]))
        return payload.noted(error, f"for one of the items {items[0]} to {items[-1]} of the map, which ran together")


@dataclass(frozen=True, slots=True)
class JournaledMap:
    """A map of one function with a journal.

    Attributes:
        journal: the path of the journal.
        any_version: whether results of other versions of the function, or other images, are used.
        image: identity of what nodes run: their image, or without one provider and Python version.
        tell: prints a permanent line.
    """

    journal: str | Path
    any_version: bool
    image: str
    tell: Callable[[str], None]

    def run(
        self, fn: Callable[..., Any], calls: Sequence[tuple[Any, ...]], sending: Sending, *, return_exceptions: bool
    ) -> list[Any]:
        """Run the calls whose results are missing, and return the results of all calls in order.

        Args:
            fn: the undecorated function.
            calls: the arguments of each call.
            sending: creates and sends the calls.
            return_exceptions: whether to return exceptions of calls in place of their results.

        Raises:
            ConfigError: the file is not a journal owned by this user, or is in use.
            JournalError: it cannot be read or written.
            SerializationError: the function or an item cannot be identified by a digest.
            Any exception of a call, unless it is to be returned; results that arrived before are saved.
        """
        name = getattr(fn, "__qualname__", type(fn).__name__).rpartition("<locals>.")[2]
        if inspect.isgeneratorfunction(fn):
            raise ConfigError(f"journal= keeps results; {name}() is a generator function. Let it return a list.")
        with ResultJournal(self.journal) as journal:
            keys = self._keys(fn, name, calls)
            stored = dict.fromkeys(journal.keys)  # oldest first
            others = {(key.arguments, key.occurrence): key for key in stored if key.function == name}
            used = keys
            if self.any_version:
                used = [key if key in stored else others.get((key.arguments, key.occurrence), key) for key in keys]
            kept = [journal.load(key) for key in used]
            missing = [index for index, parts in enumerate(kept) if parts is None]
            if said := self._said(stored, keys, used, len(missing)):
                self.tell(said)
            tasks = self._compute(journal, keys, missing, sending, stops=not return_exceptions)
        computed = map(Task.outcome if return_exceptions else Task.value, tasks)
        return [next(computed) if parts is None else self._value(parts, name) for parts in kept]

    def _keys(self, fn: Callable[..., Any], name: str, calls: Sequence[tuple[Any, ...]]) -> list[ResultKey]:
        first = ResultKey(function=name, code=code_digest(fn), image=self.image, arguments="")
        arguments, seen, keys = Arguments(), Counter[str](), []
        for call in calls:
            digest = arguments.digest(call, of=name)
            keys.append(replace(first, arguments=digest, occurrence=seen[digest]))
            seen[digest] += 1
        return keys

    def _value(self, parts: list[bytearray], name: str) -> Any:
        data, *buffers = parts
        return payload.loads(data, buffers, what=f"A result of {name}() in {self.journal}")

    def _compute(
        self,
        journal: ResultJournal,
        keys: Sequence[ResultKey],
        missing: Sequence[int],
        sending: Sending,
        *,
        stops: bool,
    ) -> list[Task]:
        """Save results in the order of their arrival; stop the rest at Ctrl-C, or if it `stops` at the first error."""
        tasks, arrived = [sending.single(index) for index in missing], SimpleQueue[Task]()
        key_of = {task: keys[index] for task, index in zip(tasks, missing, strict=True)}
        sending.submit(tasks, arrived)
        try:
            with Counting(tasks, quiet=sending.quiet) as counting:
                for _ in tasks:
                    task = counting.take(arrived)
                    sending.drain()
                    if not task.failed:
                        self._keep(journal, key_of[task], task)
                    elif stops:
                        break
            if counting.failed and stops:
                sending.cancel(tasks)  # ends them at once, so that what arrived meanwhile is saved too
                for late in (arrived.get() for _ in range(len(tasks) - counting.ended)):
                    if not late.failed:
                        self._keep(journal, key_of[late], late)
                task.value()  # raises
        except BaseException:
            sending.cancel(tasks)
            raise
        return tasks

    def _keep(self, journal: ResultJournal, key: ResultKey, task: Task) -> None:
        if task.frame is None:
            raise ConfigError(f"journal= keeps results; {key.function}() returned an iterator. Let it return a list.")
        body = memoryview(task.frame.head)[RESULT_HEAD.size :]
        with uninterrupted:
            journal.keep(key, [body, *task.frame.buffers])

    def _said(
        self, stored: Iterable[ResultKey], keys: Sequence[ResultKey], used: Sequence[ResultKey], missing: int
    ) -> str:
        """Return the message about a journal's earlier results and those not used; "" if there are none."""
        texts = [f"{len(keys) - missing} of {len(keys)} results are there"] if missing < len(keys) else []
        if changed := sum(key is not own for key, own in zip(used, keys, strict=True)):
            texts[0] += f", {changed} of them of another version or image"
        if keys and not self.any_version:
            own = keys[0]
            others = [key for key in stored if key.function == own.function]
            code = sum(key.code != own.code for key in others)
            image = sum(key.code == own.code and key.image != own.image for key in others)
            if code:
                texts.append(f"{own.function}() has changed: {_counted(code)} of another version of it and not used")
            if image:
                texts.append(f"{_counted(image)} of another image and not used")
            if code or image:
                texts.append("map(..., any_version=True) uses such results")
        return f"journal {self.journal}: {'; '.join(texts)}" if texts else ""


def _counted(results: int) -> str:
    return f"{results} results are" if results > 1 else "1 result is"
