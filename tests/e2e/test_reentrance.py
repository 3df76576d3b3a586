"""Code that Python may run anywhere calls the pool while the code that it interrupts does the same."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import faulthandler, gc, itertools, signal, sys, time, weakref
import skyward as sky

faulthandler.dump_traceback_later(25, exit=True)  # a call that waits for itself

@sky.compute
def echo(number):
    print("on the node", flush=True)
    return number

def wait():
    assert echo(2) >> pool == 2
def send():
    sent.append(echo(3) > pool)
def several():
    assert pool.map(echo, [4, 5]) == [4, 5]
    assert sky.gather(echo(6), echo(7)) >> pool == (6, 7)
def speak():
    print("here", flush=True)

how, sent, ticks, busy, ended = sys.argv[1], [], 0, False, False
ways = itertools.cycle((wait, send, several, speak))

def tick(*_):
    global ticks, busy
    if not busy and not ended:
        busy = True
        next(ways)()
        ticks += 1
        if how == "signal":
            signal.setitimer(signal.ITIMER_REAL, 0.002)
        busy = False

class Node:
    pass
if how == "destructor":
    Node.__del__ = tick

with sky.ComputePool(sky.Local(), nodes=2) as pool:
    echo(0) >> pool
    gc.set_threshold(30)
    if how == "signal":
        signal.signal(signal.SIGALRM, tick)
        signal.setitimer(signal.ITIMER_REAL, 0.002)
    elif how == "collector":
        gc.callbacks.append(tick)
    end = time.monotonic() + 1.2
    while time.monotonic() < end:
        node = Node()
        node.itself = node
        if how == "weak reference":
            weakref.finalize(node, tick).atexit = False
        future = echo(8) > pool
        assert echo(9) >> pool == 9
        assert list(sky.gather(echo(1), echo(2), stream=True) >> pool) == [1, 2]
        assert future.result() == 8 and future.done()
    ended = True
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    gc.callbacks.clear()
    assert [each.result() for each in sent] == [3] * len(sent)
print(f"{ticks} ticks", file=sys.stderr)
"""


@pytest.mark.parametrize("how", ["signal", "destructor", "weak reference", "collector"])
def test_calls_in_the_midst_of_calls(how: str) -> None:
    """Each gets its result, in the background and at once; nothing waits for itself."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stderr.split()[-2]) > 2
    assert "AssertionError" not in done.stderr
