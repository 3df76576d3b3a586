"""A map whose items travel in batches: order, sizes, what is left over, errors; its worker is played here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from skyward._pool.maps import BatchedMap, JournaledMap, Sending
from skyward._pool.task import Task
from skyward.errors import WorkerLostError
from skyward.records.results import ResultJournal
from skyward.system import SimpleQueue
from skyward.wire import batch, payload
from skyward.wire.batch import COUNT
from skyward.wire.frames import Frame
from skyward.wire.messages import RESULT_HEAD, Kind
from tests.unit.pool.fakes import FUNCTION, error


class Played:
    """A worker that makes `at_once` calls of a batch, each of which takes so many seconds, and says how many it got."""

    def __init__(self, fn: Callable[[Any], Any], items: Sequence[Any], *, at_once: int = 10**6, each_s: float = 1e-6):
        self.fn, self.items, self.at_once, self.each_s = fn, items, at_once, each_s
        self.sizes: list[int] = []
        self.cancelled: list[Task] = []
        self.lost = False
        self._ids = itertools.count(1)

    def run(self, slots: int = 2) -> list[Any]:
        sending = Sending(self._single, self._batch, self._submit, self.cancelled.extend, lambda: None, quiet=True)
        return BatchedMap(self.items, slots, sending).run()

    def run_with(self, journal: Path) -> list[Any]:
        sending = Sending(self._single, self._batch, self._submit, self.cancelled.extend, lambda: None, quiet=True)
        calls = [(item,) for item in self.items]
        return JournaledMap(journal, False, "image", print).run(same, calls, sending, return_exceptions=False)

    def _single(self, index: int) -> Task:
        data, buffers = payload.dumps_arguments((self.items[index],), {}, of="work")
        task = Task(next(self._ids), FUNCTION, data, buffers, None, 0)
        task.item = index, self.items[index]
        return task

    def _batch(self, data: bytes) -> Task:
        task = Task(next(self._ids), FUNCTION, data, (), None, 0)
        task.is_batch = True
        return task

    def _submit(self, tasks: list[Task], arrived: SimpleQueue[Task]) -> None:
        for task in tasks:
            task.on_done(arrived.put)
        for task in reversed(tasks):  # answers come in another order
            self._answer(task)

    def _answer(self, task: Task) -> None:
        if self.lost:
            task.resolve(error=WorkerLostError("lost", node=1, rank=1))
        elif task.is_batch:
            entries, results = batch.loads(task.data), list[Any]()
            self.sizes.append(len(entries))
            for index, entry in enumerate(entries[: self.at_once]):
                try:
                    batch.add(results, self.fn(batch.value_of(entry, "An item")), "A result")
                except ValueError as raised:
                    task.resolve(error(task, raised)._replace(buffers=[COUNT.pack(index)]))
                    return
            head = RESULT_HEAD.pack(self.each_s * len(results)) + batch.dumps(results)
            task.resolve(Frame(Kind.RESULT, task.id, head, [COUNT.pack(len(results))]))
        else:
            self.sizes.append(1)
            (item,), _ = payload.loads(task.data, task.buffers)
            try:
                data = payload.dumps(self.fn(item))[0]
            except ValueError as raised:
                task.resolve(error(task, raised))
                return
            task.resolve(Frame(Kind.RESULT, task.id, RESULT_HEAD.pack(self.each_s) + data))


def same(item: Any) -> Any:
    return item


@pytest.mark.parametrize("at_once", [1, 3, 7, 10**6])
def test_results_are_in_the_order_of_the_items(at_once: int) -> None:
    """However many of a batch a worker gets done."""
    items = [*range(200), "text", [1], None]
    assert Played(same, items, at_once=at_once).run() == items


def test_short_calls_stay_together() -> None:
    """Some batches for each slot, and where the time was up too early, somewhat smaller ones."""
    played = Played(same, range(8000))
    played.run()
    assert played.sizes == [1000] * 8
    played = Played(same, range(8000), at_once=500)
    played.run()
    assert set(played.sizes) == {1000, 500}


def test_slow_calls_are_sent_alone() -> None:
    """After the first batch of each; so nothing waits behind a slow call for long."""
    played = Played(same, range(160), at_once=1, each_s=0.02)
    played.run()
    assert played.sizes == [20] * 8 + [1] * 152


def test_an_error_names_its_item_and_the_rest_is_stopped() -> None:
    """The item is the one that raised it."""

    def fails(item: int) -> int:
        if item == 77:
            raise ValueError("odd")
        return item

    played = Played(fails, range(200))
    with pytest.raises(ValueError, match="odd") as caught:
        played.run()
    assert caught.value.__notes__[-1] == "for item 77 of the map: 77"
    assert played.cancelled


def test_a_lost_batch_names_the_items_it_may_be_of() -> None:
    """Which of them ran when the worker ended is not known."""
    played = Played(same, range(160))
    played.lost = True
    with pytest.raises(WorkerLostError) as caught:
        played.run()
    assert caught.value.__notes__ == ["for one of the items 140 to 159 of the map, which ran together"]


def test_what_has_arrived_when_a_map_fails_is_in_its_journal(tmp_path: Path) -> None:
    """Also what comes after the failure, which ends the map."""

    def fails(item: int) -> int:
        if item == 2:
            raise ValueError("odd")
        return item

    with pytest.raises(ValueError, match="odd"):
        Played(fails, range(6)).run_with(tmp_path / "j")
    with ResultJournal(tmp_path / "j") as journal:
        assert len(journal) == 5
