"""Items of `pool.map` that travel together, because a message for each would cost more than its call.

A worker calls the function for one item of a batch after the other, and after 5 ms it answers with the results so far.
What it has not come to is sent again: where a call took a millisecond or more, in batches of as many items as it has
finished in that time, mostly one; else in somewhat smaller batches. So nobody has to know how long a function takes: an
item waits behind another of a slow function at most once, and the last items are spread over all workers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from skyward._pool.calls.task import Task, item_note
from skyward._pool.progress import Counting
from skyward.errors import SerializationError
from skyward.system import SimpleQueue
from skyward.wire import payload
from skyward.wire.batch import COUNT, Packer, Unpacker
from skyward.wire.messages import RESULT_HEAD

_PER_SLOT = 4  # batches to begin with, so that no slot waits long for another at the end
_LEAST, _MOST = 8, 4096  # items of one to begin with
_SHORT_S = 0.001  # a call that takes longer gains little from a batch


class Sending(NamedTuple):
    """How the calls of a map are made and sent.

    Attributes:
        single: makes the call for the item with this number.
        batch: makes the call for the items in this payload.
        submit: sends calls; the queue receives each of them when it has ended.
        cancel: stops those that have not ended.
        drain: waits until what was printed before is shown.
    """

    single: Callable[[int], Task]
    batch: Callable[[bytes], Task]
    submit: Callable[[list[Task], SimpleQueue[Task]], None]
    cancel: Callable[[Sequence[Task]], None]
    drain: Callable[[], None]


def pays(fn: Callable[..., Any], items: int, slots: int) -> bool:
    """Whether batches are tried with a function and so many items."""
    return items >= _LEAST * _PER_SLOT * slots and not inspect.isgeneratorfunction(fn)


class BatchedMap:
    """A map whose items travel in batches.

    Args:
        items: the arguments of its calls.
        slots: how many calls can run at once.
        sending: how they are sent.
        quiet: show no progress.
    """

    def __init__(self, items: Sequence[Any], slots: int, sending: Sending, *, quiet: bool) -> None:
        self._items, self._slots, self._sending, self._quiet = items, max(1, slots), sending, quiet
        self._results: list[Any] = [None] * len(items)
        self._ended = 0
        self._arrived: SimpleQueue[Task] = SimpleQueue()
        self._open: dict[Task, range] = {}  # the calls that have not ended, and their items

    def run(self) -> list[Any]:
        """The results, in the order of the items.

        Raises:
            The first error of any item, the others being stopped.
        """
        calls = self._calls(range(len(self._items)), self._part(len(self._items)))
        try:
            with Counting(tuple(calls), quiet=self._quiet, total=len(self._items)) as counting:
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
        """How many of these items make a batch, so that there are several for each slot."""
        return min(_MOST, items // (_PER_SLOT * self._slots))

    def _calls(self, items: range, size: int) -> dict[Task, range]:
        """The calls for these items, each with its own."""
        calls = {}
        while items:
            packer = self._packed(items[:size])
            task = self._sending.batch(packer.dumps()) if len(packer) > 1 else self._sending.single(items.start)
            calls[task] = items[: max(1, len(packer))]
            items = items[len(calls[task]) :]
        return calls

    def _packed(self, items: range) -> Packer:
        """As many of these items, from the first on, as are small together; of one alone nothing has to be packed."""
        packer = Packer()
        if len(items) < 2 or packer.add_numbers(self._items[items.start : items.stop]):
            return packer
        for index in items:
            try:
                packer.add(self._items[index], "An item")
            except SerializationError:  # the call for it alone tells what in it cannot be pickled
                break
            if packer.is_full:
                packer.remove_last()
                break
        return packer

    def _send(self, calls: dict[Task, range]) -> None:
        self._open.update(calls)
        self._sending.submit(list(calls), self._arrived)

    def _take(self, task: Task, items: range) -> None:
        """Keep what a call has given, and send the items that it has not come to."""
        if task.failed:
            self._sending.drain()
            raise self._error(task, items)
        if not task.is_batch or task.stream is not None:
            results = [task.value()]
        else:
            assert task.frame is not None
            results = Unpacker(memoryview(task.frame.head)[RESULT_HEAD.size :]).all(
                f"A result of {task.function.name}()"
            )
        done = len(results)
        size = 1 if task.stream is not None else done  # a generator's items come over the call that has returned it
        self._results[items.start : items.start + done] = results
        self._ended += done
        if rest := items[done:]:
            if task.stream is None and task.run_s < done * _SHORT_S:
                size = max(size, self._part(len(rest)))
            self._send(self._calls(rest, size))

    def _error(self, task: Task, items: range) -> BaseException:
        """What a call has failed with; it names the item, or the few of which it can be any."""
        error = task.failure()
        assert error is not None
        if not task.is_batch:
            return error
        if task.error is None and task.frame is not None and task.frame.buffers:
            index = items[COUNT.unpack(task.frame.buffers[0])[0]]
            return payload.noted(error, item_note(index, self._items[index]))
        return payload.noted(error, f"for one of the items {items[0]} to {items[-1]} of the map, which ran together")
