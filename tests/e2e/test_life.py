"""A pool whose program ends, forgets it or is told to end: it is closed, and nothing is left of it."""

from __future__ import annotations

import gc
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import skyward as sky
from skyward.errors import PoolError
from tests.e2e.clients import Client
from tests.waiting import wait_until

Start = Callable[..., Client]
Check = Callable[[Client], None]


@pytest.fixture
def program(script: Callable[..., Any]) -> Iterator[Callable[[str], Client]]:
    """Start a program on processes; `work` sleeps, `IMAGE` and `sky` are there."""
    clients: list[Client] = []

    def start(text: str) -> Client:
        head = """
            import signal, sys, threading, time
            import skyward as sky

            @sky.compute
            def work(seconds=60):
                print("at work", flush=True)
                time.sleep(seconds)
                return "done"

            def new_pool(**settings):
                return sky.ComputePool(sky.Local(), **settings)
            """
        clients.append(Client(script(textwrap.dedent(head) + textwrap.dedent(text))))
        return clients[-1]

    yield start
    for one in clients:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_closes_the_pool_like_ctrl_c(client: Start, nothing_left: Check, name: str) -> None:
    """And the program ends with the status of that signal; its own blocks are left in order."""
    one = client("try: work() >> pool\n        finally: print('left in order', flush=True)", nodes=2)
    one.wait_for("at work")
    one.process.send_signal(signal.Signals[name])
    assert one.end() == 128 + signal.Signals[name], one.seen
    assert "left in order" in one.seen
    assert f"is closed because of {name}" in one.seen
    assert "Traceback" not in one.seen
    nothing_left(one)


def test_sigterm_while_the_pool_opens(client: Start, nothing_left: Check) -> None:
    """What has begun of it is removed."""
    slow = """
from skyward._pool.nodes.node_client import NodeClient
_open = NodeClient.open
def slow(self, timeout_s):
    print("starting", flush=True)
    time.sleep(0.5)
    return _open(self, timeout_s)
NodeClient.open = slow
"""
    one = client(extra=slow, nodes=2)
    one.wait_for("starting")
    one.process.send_signal(signal.SIGTERM)
    assert one.end() == 143, one.seen
    nothing_left(one)


@pytest.mark.parametrize("_attempt", range(3))  # where the main thread is when they come is a matter of microseconds
def test_a_second_signal_hurries(program: Callable[[str], Client], nothing_left: Check, _attempt: int) -> None:
    """A node that takes its time to end is not waited for."""
    one = program(
        """
        from contextlib import contextmanager

        def slow():
            @contextmanager
            def around(info):
                yield
                print("leaving", flush=True)
                time.sleep(60)
            return sky.Plugin.create("slow").with_around_app(around)

        with new_pool(plugins=[slow()]) as pool:
            print("pool", pool.id, flush=True)
        """
    )
    one.wait_for("leaving")
    one.process.send_signal(signal.SIGTERM)
    one.process.send_signal(signal.SIGHUP)
    assert one.end(within_s=30.0) == 143, one.seen
    nothing_left(one)


def test_the_programs_own_handler_decides(program: Callable[[str], Client], nothing_left: Check) -> None:
    """It is called, the pool goes on, and what was installed before is installed again."""
    one = program(
        """
        told = threading.Event()
        def handler(*_): told.set()
        signal.signal(signal.SIGTERM, handler)
        with new_pool() as pool:
            print("ready", flush=True)
            told.wait()
            print(work(0) >> pool, flush=True)
        assert signal.getsignal(signal.SIGTERM) is handler
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
        """
    )
    one.wait_for("ready")
    one.process.send_signal(signal.SIGTERM)
    assert one.end() == 0, one.seen
    assert "done" in one.seen


def test_what_is_ignored_stays_ignored(program: Callable[[str], Client]) -> None:
    """A program under nohup outlives its terminal."""
    one = program(
        """
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with new_pool() as pool:
            signal.raise_signal(signal.SIGHUP)
            print(work(0) >> pool, flush=True)
        """
    )
    assert one.end(60.0) == 0, one.seen


def test_an_asyncio_program(program: Callable[[str], Client], nothing_left: Check) -> None:
    """With a handler of the loop's it decides; without one its tasks are left in order."""
    one = program(
        """
        import asyncio

        async def main():
            with new_pool() as pool:
                try:
                    await asyncio.wrap_future(work() > pool)
                finally:
                    print("task left", flush=True)
        asyncio.run(main())
        """
    )
    one.wait_for("at work")
    one.process.send_signal(signal.SIGTERM)
    assert one.end() == 143, one.seen
    assert "task left" in one.seen
    nothing_left(one)


@pytest.mark.parametrize(
    "end",
    ["", "sys.exit(3)", "raise ValueError('over')", "threading.Thread(target=lambda: work(1) >> pool).start()"],
    ids=["end", "exit", "error", "thread"],
)
def test_a_pool_that_is_open_at_the_end(program: Callable[[str], Client], nothing_left: Check, end: str) -> None:
    """The program ends in order: the pool is closed, after the program's own threads have ended."""
    one = program(
        f"""
        pool = new_pool().open()
        print("pool", pool.id, flush=True)
        print(work(0) >> pool, flush=True)
        {end}
        """
    )
    assert one.end(60.0) == {"sys.exit(3)": 3, "raise ValueError('over')": 1}.get(end, 0), one.seen
    assert "done" in one.seen
    assert "Exception in thread" not in one.seen
    assert "PoolClosedError" not in one.seen
    nothing_left(one)


def test_a_pool_of_a_thread(program: Callable[[str], Client], nothing_left: Check) -> None:
    """A pool of the main thread lets signals be heard; the threads that use others end with those."""
    one = program(
        """
        def use():
            with new_pool() as mine:
                work() >> mine
        with new_pool() as pool:
            thread = threading.Thread(target=use)
            thread.start()
            thread.join()
        """
    )
    one.wait_for("at work")
    one.process.send_signal(signal.SIGTERM)
    assert one.end() == 143, one.seen
    nothing_left(one)


def test_a_forked_child_dies_as_ever(program: Callable[[str], Client], nothing_left: Check) -> None:
    """The signals of a child are its own, and it closes no pool."""
    one = program(
        """
        import multiprocessing
        with new_pool() as pool:
            child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
            child.start()
            time.sleep(0.3)
            child.terminate()
            child.join()
            print("child", child.exitcode, work(0) >> pool, flush=True)
        """
    )
    assert one.end(60.0) == 0, one.seen
    assert "child -15 done" in one.seen
    nothing_left(one)


def test_open_and_close() -> None:
    """Closing twice is closing once; a pool can be opened again, and not while it is open."""
    pool = sky.ComputePool(sky.Local(), display="quiet")
    pool.close()
    assert pool.open() is pool
    with pytest.raises(PoolError, match="is open already"):
        pool.open()
    assert sky.compute(int)("7") >> pool == 7
    pool.close()
    pool.close()
    assert not pool.is_active
    with pool:
        assert sky.compute(int)("8") >> pool == 8


def test_a_forgotten_pool_is_closed() -> None:
    """With a warning, as a file; its nodes end within seconds."""

    def nodes(of: str) -> list[Any]:
        return [about for about in sky.Local().find() if about["pool"] == of]

    pool = sky.ComputePool(sky.Local(), display="quiet").open()
    name = pool.id
    assert nodes(name)
    with pytest.warns(ResourceWarning, match=f"{name}.* was opened and never closed"):
        del pool
        gc.collect()
    wait_until(lambda: not nodes(name))


def test_a_generator_that_is_dropped_leaves_its_pool() -> None:
    """So do notebooks, when a cell's generator goes."""

    def results() -> Any:
        with sky.ComputePool(sky.Local(), display="quiet") as pool:
            pools.append(pool.id)
            yield sky.compute(int)("7") >> pool
            yield None

    pools: list[str] = []
    items = results()
    assert next(items) == 7
    del items
    gc.collect()
    assert [about for about in sky.Local().find() if about["pool"] == pools[0]] == []
    assert sys.exc_info() == (None, None, None)
