"""Whatever user code does to the process that it runs in, its caller gets the right answer and the pool goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import skyward as sky
from skyward.errors import RemoteError, RemoteTraceback, SerializationError, TaskTimeoutError, WorkerLostError
from tests.e2e import user_code_functions as functions
from tests.printed import Printed
from tests.waiting import wait_until

FROZEN = (functions.Frozen(3), functions.Slotted(4))


@pytest.fixture(scope="module")
def pool() -> Iterator[sky.ComputePool]:
    """Two nodes, as processes."""
    with sky.ComputePool(sky.Local(), nodes=2) as pool:
        yield pool


@pytest.mark.parametrize("error", FROZEN, ids=lambda error: type(error).__name__)
def test_an_exception_that_cannot_be_changed_is_raised_as_itself(pool: sky.ComputePool, error: Exception) -> None:
    """By any operator, from a function, a muted one and a generator; with its cause and the note of its node."""
    ways = (
        lambda: functions.fail(error) >> pool,
        lambda: functions.fail(error) @ pool,
        lambda: (functions.fail(error) > pool).result(),
        lambda: functions.fail_in_silence(error) >> pool,
        lambda: list(functions.fail_late(error) >> pool),
        lambda: list(sky.gather(functions.fail(error), stream=True) >> pool),
    )
    for way in ways:
        with pytest.raises(type(error)) as raised:
            way()
        assert raised.value == error
        assert isinstance(raised.value.__cause__, RemoteTraceback)
        assert "on node" in raised.value.__notes__[-1]


# forks ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def threads_pool() -> Iterator[sky.ComputePool]:
    """One node, whose calls run in four threads."""
    with sky.ComputePool(sky.Local(), concurrency=4) as pool:
        yield pool


@pytest.mark.parametrize("name", ["pool", "threads_pool"])
def test_a_forked_child_ends_with_its_copy_of_the_call(name: str, request: pytest.FixtureRequest) -> None:
    """Only the worker answers; the child ends with status 0 where the function returns in it."""
    pool: sky.ComputePool = request.getfixturevalue(name)
    calls = [functions.fork_and_return(number) for number in range(100)]
    assert sky.gather(*calls) >> pool == tuple((number, 0) for number in range(100))
    assert list(functions.fork_in_generator() >> pool) == [1, 2, 3]


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, 0), (ValueError("of the child"), 1), (SystemExit(7), 7), (SystemExit(), 0), (SystemExit("text"), 1)],
    ids=str,
)
def test_a_forked_child_ends_as_any_process_does(
    pool: sky.ComputePool, printed: Printed, error: BaseException | None, status: int
) -> None:
    """With the status that Python gives a process for what was raised, and with all that it has printed."""
    assert functions.fork_and_raise(error) >> pool == status
    printed.until(out="from the child", err=str(error) if status == 1 else "")


# code that runs anywhere in other code ------------------------------------------------------------------------------


INTERRUPTING = ("signal", "destructor", "weak reference", "collector", "tracer", "profiler")


@pytest.mark.parametrize("by", ["print", "log"])
@pytest.mark.parametrize("how", INTERRUPTING)
def test_code_that_interrupts_a_print_may_print(pool: sky.ComputePool, printed: Printed, how: str, by: str) -> None:
    """Nothing waits for itself, and every line arrives."""
    lines, ticks = functions.speaks_while_it_speaks(how, by, 0.5).with_timeout(30) >> pool
    seen = "".join(printed.read())
    assert (seen.count("(line)"), seen.count("(tick)")) == (lines, ticks)
    assert lines
    assert ticks


@pytest.mark.parametrize("how", INTERRUPTING[1:])
def test_the_same_in_one_of_several_threads(threads_pool: sky.ComputePool, how: str) -> None:
    """Where handlers of signals cannot be set."""
    calls = [functions.speaks_while_it_speaks(how, "print", 0.3).with_timeout(30)] * 4
    assert all(lines and ticks for lines, ticks in sky.gather(*calls) >> threads_pool)


def test_an_exception_of_a_signal_handler_may_end_a_print(pool: sky.ComputePool) -> None:
    """The connection carries whole messages all the same."""
    assert functions.is_torn_out_of_its_prints(300).with_timeout(60) >> pool == 300


# a node that is told to end ----------------------------------------------------------------------------------------


def end_node(path: Path, *, lines: int = 1) -> int:
    """Tell the agent that has noted itself in a file to end, as `docker stop` does; its process."""
    wait_until(lambda: path.exists() and len(path.read_text().splitlines()) >= lines)
    agent = int(path.read_text().split()[0])
    os.kill(agent, signal.SIGTERM)
    return agent


@pytest.mark.parametrize("how", ["sleeps", "returns", "raises"])
def test_a_call_on_a_node_that_is_told_to_end_is_lost(pool: sky.ComputePool, tmp_path: Path, how: str) -> None:
    """Whatever the function makes of its interrupt; it runs again where its function allows that."""
    future = functions.waits(str(tmp_path / "run"), how) > pool
    end_node(tmp_path / "run")
    with pytest.raises(WorkerLostError, match=r"waits\(\)"):
        future.result(60)
    again = functions.waits_again(str(tmp_path / "again"), how) > pool
    end_node(tmp_path / "again")
    assert again.result(60) == "done"


def test_what_a_node_that_is_told_to_end_had_not_begun_runs_elsewhere(tmp_path: Path) -> None:
    """Each call once: none of those that wait there begins while the node ends."""
    path = tmp_path / "runs"
    with sky.ComputePool(sky.Local(), nodes=2) as pool:
        short = [functions.adds_a_line(str(tmp_path / "short"), 0.0) for _ in range(300)]
        sky.gather(*short) >> pool  # after which a node is sent more than it runs
        futures = [functions.adds_a_line(str(path), 0.2) > pool for _ in range(30)]
        ended = end_node(path, lines=2)
        lost = [future for future in futures if isinstance(future.exception(60), WorkerLostError)]
        assert len(lost) <= 1
        assert sum(future.exception() is None for future in futures) == len(futures) - len(lost)
        runs = path.read_text().split()
        assert len(runs) == len(futures)
        assert runs.count(str(ended)) <= 2  # of about 15 that it had been sent


# imports that are interrupted --------------------------------------------------------------------------------------


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> Iterator[sky.ComputePool]:
    """A node that has imported nothing, with calls in its main thread or in four others."""
    with sky.ComputePool(sky.Local(), concurrency=request.param) as pool:
        yield pool


@pytest.mark.parametrize("fresh", [1], indirect=True)
def test_after_an_import_that_was_interrupted_modules_can_be_imported(fresh: sky.ComputePool, tmp_path: Path) -> None:
    """Extension modules are loaded once per process: a fresh one takes its place."""
    with pytest.raises(TaskTimeoutError):
        functions.half_imports(str(tmp_path / "half")).with_timeout(1) >> fresh
    assert functions.total([1, 2, 3]) >> fresh == (6, (functions.total([]) >> fresh)[1])


@pytest.mark.parametrize("fresh", [1, 4], indirect=True)
def test_exceptions_and_results_that_end_processes_are_errors_of_their_calls(fresh: sky.ComputePool) -> None:
    """The worker and the program go on, and the next call finds the same process."""
    before = functions.total([]) >> fresh
    raising: list[Callable[[], object]] = [
        lambda: functions.raises_what_exits() >> fresh,
        lambda: functions.raises_what_exits() @ fresh,
        lambda: (functions.raises_what_exits() > fresh).result(60),
    ]
    for call in raising:
        with pytest.raises(RemoteError, match=r"raised .*Exits: <its text is unavailable: SystemExit>"):
            call()
    returning: list[Callable[[], object]] = [
        lambda: functions.returns_what_exits() >> fresh,
        lambda: (functions.returns_what_exits() > fresh).result(60),
        lambda: next(functions.yields_what_exits() >> fresh),
    ]
    for call in returning:
        with pytest.raises(SerializationError, match=r"cannot be unpickled here.*: SystemExit: 5"):
            call()
    assert functions.total([]) >> fresh == before
