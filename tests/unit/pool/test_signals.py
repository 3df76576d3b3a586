"""Ctrl-C waits for the end of a piece of bookkeeping, and is lost nowhere."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from skyward._pool import signals
from skyward.errors import PoolError

Guard = signals._Uninterrupted


@pytest.fixture
def uninterrupted() -> Iterator[Guard]:
    """One of our own: pools of other tests may be open and use the common one."""
    guard = Guard()
    guard.install()
    yield guard
    guard.uninstall()


def test_it_comes_when_the_piece_is_done(uninterrupted: Guard) -> None:
    """Also when pieces are nested, and also when it comes twice."""
    reached = []
    with pytest.raises(KeyboardInterrupt):
        with uninterrupted:
            with uninterrupted:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
            reached.append("the end of the outer piece")
        reached.append("what follows")
    assert reached == ["the end of the outer piece"]
    with uninterrupted:
        reached.append("nothing is pending any more")


def test_the_programs_own_handler_is_respected_and_given_back() -> None:
    """A program may do something else on Ctrl-C; with several pools open the last gives the signal back."""
    uninterrupted = Guard()
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: heard.append(number))
    own = signal.getsignal(signal.SIGINT)
    try:
        uninterrupted.install()
        uninterrupted.install()
        with uninterrupted:
            signal.raise_signal(signal.SIGINT)
            assert heard == []
        assert heard == [signal.SIGINT]
        uninterrupted.uninstall()
        assert signal.getsignal(signal.SIGINT) is not own
        uninterrupted.uninstall()
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


SIGNALLED_AT_ONCE = """
import os, signal
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))  # before the hooks of the package
from skyward._pool.signals import uninterrupted
assert uninterrupted.install()
child = os.fork()
if child == 0:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""


def test_a_forked_process_is_ended_however_early_the_signal_comes() -> None:
    """As multiprocessing ends its processes, which it then waits for; the parent's signals are not blocked for long."""
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED_AT_ONCE], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == f"{-signal.SIGTERM} set()\n"


# waits of the main thread ---------------------------------------------------------------------------------------------

WAITS = {
    "a call": "Latch(1).wait()",
    "a future": "CallFuture('f', print, Callbacks()).result()",
    "an exception": "CallFuture('f', print, Callbacks()).exception()",
    "a map": "Counting([task()], quiet=True).take(SimpleQueue())",
    "a stream": "next(StreamSource(print, lambda: None, 0.0, SimpleQueue()).open(print, print))",
    "a condition": "listen(partial(Condition.wait_for, held(), lambda: False))",
    "a limit": "listen(Event().wait, 1000.0)",
}
WAITING = """
import signal, sys, threading, time
from functools import partial
from queue import SimpleQueue
from threading import Condition, Event
from types import SimpleNamespace
from skyward._pool.background import Callbacks
from skyward._pool.calls import CallFuture, Latch
from skyward._pool.progress import Counting
from skyward._pool.signals import listen
from skyward._pool.task import StreamSource


def task():
    return SimpleNamespace(function=SimpleNamespace(name="f"))


def held():
    condition = Condition()
    condition.acquire()
    return condition


def send():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    while not waits.is_set():
        time.sleep(0.01)
    time.sleep(0.3)  # the main thread waits by then; earlier is just as good
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)


def handle(number, frame):
    sys.exit(7)


waits = Event()
signal.signal(signal.SIGUSR1, handle)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])  # so that the kernel gives it to the other thread
threading.Thread(target=send, daemon=True).start()
waits.set()
"""


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_wait_is_interrupted_by_a_signal_that_another_thread_receives(wait: str) -> None:
    """A handler runs in the main thread, whose waits for a lock such a signal does not end."""
    ended = subprocess.run(
        [sys.executable, "-c", WAITING + wait], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stderr) == (7, "")


def test_a_wait_in_slices_keeps_its_limit_and_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slices are at most as long as `LISTEN_S`, and what is left."""
    asked: list[float] = []

    def wait(seconds: float) -> bool:
        asked.append(seconds)
        return len(asked) == 4

    assert not signals.listen(wait, 0.0)
    assert asked == [0.0]
    assert signals.listen(wait)
    assert asked[1:] == [signals.LISTEN_S] * 3
    monkeypatch.setattr(signals, "LISTEN_S", 0.01)
    assert not signals.listen(threading.Event().wait, 0.05)


def test_a_thread_that_receives_results_waits_for_none() -> None:
    """A destructor that does so there is told why, instead of waiting for ever."""
    told: list[str] = []

    def wait() -> None:
        try:
            signals.listen(lambda _: True)
        except PoolError as error:
            told.append(str(error))

    for name in (f"{signals.RECEIVER}0", "of the program"):
        thread = threading.Thread(target=wait, name=name)
        thread.start()
        thread.join()
    assert len(told) == 1
    assert "`f() > pool`" in told[0]


@pytest.mark.parametrize("number", [signal.SIGALRM, signal.SIGUSR1])
def test_handlers_of_other_signals_wait_too(uninterrupted: Guard, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """They may call the pool; the program gets each of them back, also one that it saves and restores."""
    monkeypatch.setattr(signals, "uninterrupted", uninterrupted)
    heard: list[str] = []
    before = signal.signal(number, lambda *_: heard.append("outer"))
    own = signal.getsignal(number)
    with uninterrupted:
        signal.raise_signal(number)
        assert heard == []
    assert heard == ["outer"]
    saved = signal.signal(number, lambda *_: heard.append("inner"))
    with uninterrupted:
        signal.raise_signal(number)
    signal.signal(number, saved)
    signal.raise_signal(number)
    assert heard == ["outer", "inner", "outer"]
    uninterrupted._give_back()
    assert signal.getsignal(number) is own
    signal.signal(number, before)
