"""A pool whose program ends, forgets it or is told to end: it is closed, and nothing is left of it."""

from __future__ import annotations

import gc
import signal
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import skyward as sky
from skyward.errors import PoolError
from tests.e2e.clients import Client
from tests.waiting import wait_until

Check = Callable[[Client], None]
HEAD = """
import asyncio, multiprocessing, signal, sys, threading, time
from contextlib import contextmanager
import skyward as sky

@sky.compute
def work(seconds=60):
    print("at work", flush=True)
    time.sleep(seconds)
    return "done"

@contextmanager
def around(info):
    yield
    print("at work", flush=True)
    time.sleep(60)

def new_pool(**settings):
    return sky.ComputePool(sky.Local(), **settings)
"""
LEAVES_IN_ORDER = """
with new_pool(nodes=2) as pool:
    try: work() >> pool
    finally: print("left in order", flush=True)
"""
NODE_THAT_IS_SLOW_TO_END = """
with new_pool(plugins=[sky.Plugin.create("slow").with_around_app(around)]) as pool:
    print("pool", pool.id, flush=True)
"""
OWN_HANDLER = """
told = threading.Event()
def handler(*_): told.set()
signal.signal(signal.SIGTERM, handler)
with new_pool() as pool:
    print("at work", flush=True)
    told.wait()
    print(work(0) >> pool, flush=True)
assert signal.getsignal(signal.SIGTERM) is handler
assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
"""
ASYNCIO = """
async def main():
    with new_pool() as pool:
        try: await asyncio.wrap_future(work() > pool)
        finally: print("left in order", flush=True)
asyncio.run(main())
"""
POOL_OF_A_THREAD = """
def use():
    with new_pool() as mine:
        work() >> mine
with new_pool() as pool:
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
"""
IGNORED = """
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with new_pool() as pool:
    signal.raise_signal(signal.SIGHUP)
    print(work(0) >> pool, flush=True)
"""
OPEN_AT_THE_END = """
pool = new_pool().open()
print("pool", pool.id, work(0) >> pool, flush=True)
"""
FORKED_CHILD = """
with new_pool() as pool:
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    time.sleep(0.3)
    child.terminate()
    child.join()
    print("child", child.exitcode, work(0) >> pool, flush=True)
"""


@pytest.fixture
def program(script: Callable[..., Any]) -> Iterator[Callable[[str], Client]]:
    """Start a program on processes."""
    clients: list[Client] = []

    def start(text: str) -> Client:
        clients.append(Client(script(HEAD + textwrap.dedent(text))))
        return clients[-1]

    yield start
    for one in clients:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


@pytest.mark.parametrize(
    ("text", "signals", "status", "words"),
    [
        (LEAVES_IN_ORDER, ["SIGTERM"], 143, "left in order"),
        (LEAVES_IN_ORDER, ["SIGHUP"], 129, "is closed because of SIGHUP"),
        (NODE_THAT_IS_SLOW_TO_END, ["SIGTERM", "SIGHUP"], 143, "at work"),  # the second one hurries
        (OWN_HANDLER, ["SIGTERM"], 0, "done"),
        (ASYNCIO, ["SIGTERM"], 143, "left in order"),
        (POOL_OF_A_THREAD, ["SIGTERM"], 143, "at work"),
        (IGNORED, [], 0, "done"),
        (OPEN_AT_THE_END, [], 0, "done"),
        (OPEN_AT_THE_END + "sys.exit(3)", [], 3, "done"),
        (OPEN_AT_THE_END + "threading.Thread(target=lambda: work(1) >> pool).start()", [], 0, "done"),
        (FORKED_CHILD, [], 0, "child -15 done"),
    ],
    ids=["SIGTERM", "SIGHUP", "twice", "handler", "asyncio", "thread", "nohup", "open", "exit", "late-call", "fork"],
)
def test_a_program_that_ends_closes_its_pool(
    program: Callable[[str], Client], nothing_left: Check, text: str, signals: list[str], status: int, words: str
) -> None:
    """By itself or by a signal, whose status it has; its own blocks are left in order, its own handlers decide."""
    one = program(text)
    if signals:
        one.wait_for("at work")
    for name in signals:
        one.process.send_signal(signal.Signals[name])
    assert one.end(within_s=30.0 if len(signals) > 1 else 60.0) == status, one.seen
    assert words in one.seen
    assert text != LEAVES_IN_ORDER or "Traceback" not in one.seen
    assert text == POOL_OF_A_THREAD or "PoolClosedError" not in one.seen  # the thread may print it before the end
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
