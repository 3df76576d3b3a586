"""The scheduler of a simulation: real threads of which one runs at a time, and time that jumps.

Each simulated thread is a thread of this interpreter with a baton, a raw lock. Whoever holds its baton runs; at every
operation on a lock, a queue, a socket or a timer it asks the scheduler who runs next, and hands over. The choice comes
from the seed alone, so that a seed repeats a run exactly. When nobody can run, time jumps to the next timer; when there
is no timer either, that is a deadlock.
"""

from __future__ import annotations

import _thread
import contextvars
import heapq
import random
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any, Literal

Policy = Literal["uniform", "sticky", "pct"]
FOREVER = float("inf")


class SimExit(BaseException):
    """Raised in a simulated thread whose process has ended: it unwinds without another effect."""


class Thread:
    """One simulated thread.

    Attributes:
        serial: its number in this simulation; what `threading.get_ident` returns.
        what: what it waits for, for reports and for the check of what may not block.
        holds_up: the thread that it waits for, if what it waits for is a lock.
        dead: whether its process has ended; every operation then raises `SimExit`.
    """

    __slots__ = (
        "baton", "dead", "done", "handle", "joiners", "name", "parked", "pending", "priority", "process", "role",
        "serial", "target", "ticket", "timed_out", "what",
    )  # fmt: skip

    def __init__(self, serial: int, name: str, role: str, process: Process, target: Callable[[], None]) -> None:
        self.serial, self.name, self.role, self.process, self.target = serial, name, role, process, target
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.dead = self.done = self.parked = self.timed_out = False
        self.ticket = 0
        self.priority = 0.0
        self.what: tuple[str, Any] = ("", None)
        self.pending: list[Callable[[], None]] = []  # handlers of signals that have come
        self.joiners: list[Thread] = []
        self.handle: Any = None  # the object of `threading.Thread`

    def __repr__(self) -> str:
        return f"{self.process.name}/{self.name or self.role}#{self.serial}"


class Process:
    """A simulated process: threads and sockets that end together.

    Attributes:
        stops: how often it was stopped (SIGSTOP, C code that holds the interpreter's lock) and not let go on.
        code, signal: how it ended.
    """

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel, self.name = kernel, name
        self.threads: list[Thread] = []
        self.alive, self.stops = True, 0
        self.code: int | None = None
        self.signal: int | None = None
        self.sockets: dict[int, Any] = {}
        self.on_exit: list[Callable[[], None]] = []
        self.excepthook: Any = None
        self.waiters: list[Thread] = []
        self.environ: dict[str, str] = {}
        self.on_signal: Callable[[int], object] | None = None
        self.model: Any = None  # what the simulation knows of it

    def end(self, code: int | None = None, signal: int | None = None) -> None:
        """End it at once: none of its threads has another effect, its sockets are closed."""
        if not self.alive:
            return
        self.alive, self.code, self.signal = False, code, signal
        kernel = self.kernel
        kernel.note("end", self.name, code, signal)
        for thread in self.threads:
            thread.dead = True
            if thread in kernel.runnable:
                kernel.runnable.remove(thread)
        for sock in list(self.sockets.values()):
            sock.end_of_process()
        for waiter in self.waiters:
            kernel.ready(waiter)
        for action in self.on_exit:
            action()

    @property
    def stopped(self) -> bool:
        """Whether none of its threads runs."""
        return self.stops > 0

    def stop(self) -> None:
        """SIGSTOP."""
        self.stops += 1
        if self.alive and self.stops == 1:
            self.kernel.note("stop", self.name)
            self.kernel.runnable = [thread for thread in self.kernel.runnable if thread.process is not self]

    def go_on(self) -> None:
        """SIGCONT, which counts when everybody who stopped it has sent one."""
        self.stops -= 1
        if self.alive and not self.stops:
            self.kernel.note("cont", self.name)
            for thread in self.threads:
                if not (thread.parked or thread.done or thread.dead):
                    self.kernel.runnable.append(thread)


class Kernel:
    """One simulation.

    Args:
        seed: decides everything.
        ignored: a pattern; violations whose text matches it are none.
        limit_s: virtual seconds after which a run that has not ended is a failure.
        steps: operations after which it is one.
    """

    def __init__(self, seed: int, *, limit_s: float = 3000.0, steps: int = 400_000, ignored: str = "") -> None:
        self.rng = random.Random(seed)
        choose = self.rng.random()
        self.policy: Policy = "uniform" if choose < 0.3 else "sticky" if choose < 0.7 else "pct"
        self.stay = self.rng.choice((0.5, 0.8, 0.95))
        self.cost_s = self.rng.choice((1e-6, 5e-6, 2e-5))
        self.changes = {self.rng.randrange(1, 4000) for _ in range(self.rng.randrange(1, 6))}
        self.low = 0.0
        self.limit_s, self.limit_steps = limit_s, steps
        self.now = 1000.0
        self.steps = self.switches = 0
        self.runnable: list[Thread] = []
        self.threads: list[Thread] = []
        self.timers: list[tuple[float, int, Any, int]] = []
        self.sequence = 0
        self.current: Thread = None  # type: ignore[assignment]  # set before anything runs
        self.controller = _thread.allocate_lock()
        self.controller.acquire()
        self.over = False
        self.failure, self.ignored = "", ignored
        self.hash = seed
        self.at_step: dict[int, Callable[[], None]] = {}
        self.on_idle: Callable[[], None] = _nothing
        self.on_crash: Callable[[Thread, BaseException], None] = _note_crash
        self.trace: list[tuple[Any, ...]] | None = None

    # threads ---------------------------------------------------------------------------------------------------

    def spawn(self, process: Process, name: str, target: Callable[[], None], role: str = "") -> Thread:
        """A new thread of a process, ready to run."""
        thread = Thread(len(self.threads) + 1, name, role, process, target)
        thread.priority = 1 + self.rng.random()
        self.threads.append(thread)
        process.threads.append(thread)
        _dispatch(self, thread)
        if not process.alive:
            thread.dead = True
        elif not process.stopped:
            self.runnable.append(thread)
        return thread

    def run(self, thread: Thread) -> None:
        """Run until the simulation is over, then end all its threads; called by the thread that owns the simulation."""
        self.current = thread
        thread.baton.release()
        self.controller.acquire()
        for each in self.threads:
            if not each.done:
                each.dead = True
                self.current = each
                each.baton.release()
                self.controller.acquire()

    def fail(self, text: str) -> None:
        """Note a violation; the run ends at the next operation of the current thread."""
        if not self.failure and not (self.ignored and re.search(self.ignored, text)):
            self.failure = text
            self.note("fail", text)

    def finish(self) -> None:
        """End the simulation; called by one of its threads, which it ends too."""
        if not self.over:
            self.over = True
            self.controller.release()
            self.current.baton.acquire()
        raise SimExit

    def stacks(self) -> str:
        """Where every thread is."""
        frames = sys._current_frames()
        lines = []
        for thread in self.threads:
            if thread.done or thread.dead:
                continue
            state = f"waits for {thread.what[0]}" if thread.parked else "can run"
            lines.append(f"-- {thread} {state}")
            frame = frames.get(_ident_of.get(id(thread.baton), 0))
            if frame is not None:
                stack = [f for f in traceback.extract_stack(frame) if "/tests/sim/kernel.py" not in f.filename]
                lines += [f"     {f.filename.rpartition('/skyward/')[2]}:{f.lineno} {f.name}" for f in stack[-9:]]
        return "\n".join(lines)

    # switches --------------------------------------------------------------------------------------------------

    def enter(self) -> Thread:
        """The thread that runs; raises `SimExit` if its process has ended."""
        me = self.current
        if me.dead:
            raise SimExit
        return me

    def point(self, *, takes_signals: bool = True) -> Thread:
        """A place where another thread may go on; returns the current one when it is its turn again."""
        me = self.current
        if me.dead:
            raise SimExit
        self.steps = step = self.steps + 1
        self.now += self.cost_s
        if self.timers and self.timers[0][0] <= self.now:
            self._fire()
        if step in self.at_step:
            self.at_step.pop(step)()
            if me.dead:
                raise SimExit
        if self.failure or step > self.limit_steps:
            self.fail(f"still busy after {step} operations, at {self.now - 1000:.3f} s")
            self._switch(me, None)
        runnable = self.runnable
        if len(runnable) == 1 and runnable[0] is me:
            pass
        elif (following := self._choose(me)) is not me:
            self._switch(me, following)
        if me.pending and takes_signals:
            self._deliver(me)
        return me

    def _choose(self, me: Thread | None) -> Thread | None:
        runnable = self.runnable
        if not runnable:
            return self._idle()
        if self.policy == "pct":
            if self.changes and me is not None and self.steps >= min(self.changes):
                self.changes.discard(min(self.changes))
                self.low -= 1.0
                me.priority = self.low
            return max(runnable, key=_priority)
        if self.policy == "sticky" and me is not None and self.rng.random() < self.stay and me in runnable:
            return me
        return runnable[int(self.rng.random() * len(runnable))]

    def _idle(self) -> Thread | None:
        """Nobody can run: let time pass until somebody can; None ends the run."""
        while not self.runnable:
            self.on_idle()
            if self.failure:
                return None
            if not self.timers:
                self.fail("deadlock: nobody can run, and nothing is due")
                return None
            self.now = max(self.now, self.timers[0][0])
            if self.now - 1000 > self.limit_s:
                self.fail(f"not over after {self.limit_s:g} s")
                return None
            self._fire()
        return self._choose(None)

    def _switch(self, me: Thread, following: Thread | None) -> None:
        if following is None:
            self.failure += "\n" + self.stacks()
            self.finish()
            return
        self.switches += 1
        self.hash = (self.hash * 1000003 ^ following.serial ^ self.steps) & 0xFFFFFFFFFFFF
        if self.trace is not None:
            self.trace.append((round(self.now, 6), repr(following), following.what[0]))
        self.current = following
        following.baton.release()
        me.baton.acquire()
        if me.dead:
            raise SimExit

    def _deliver(self, me: Thread) -> None:
        while me.pending:
            me.pending.pop(0)()

    def park(self, what: str, about: Any = None, until: float = FOREVER) -> bool:
        """Wait until somebody makes this thread ready, or until a moment; False if that has come.

        It may return early, as after a signal, so that callers look again.
        """
        me = self.current
        if me.dead:
            raise SimExit
        if until <= self.now:
            return False
        me.what, me.parked, me.timed_out = (what, about), True, False
        if me in self.runnable:
            self.runnable.remove(me)
        if until != FOREVER:
            me.ticket += 1
            self.push(until, me, me.ticket)
        following = self._choose(None)
        if following is not me:
            self._switch(me, following)
        me.ticket += 1
        if me.pending:
            self._deliver(me)
        return not me.timed_out

    def ready(self, thread: Thread) -> None:
        """Let a thread that waits look again."""
        if thread.parked and not thread.dead:
            thread.parked = False
            if not thread.process.stopped:
                self.runnable.append(thread)

    def signal(self, thread: Thread, handler: Callable[[], None], *, wakes: bool) -> None:
        """Have something run in a thread, between two of its operations; a wait is interrupted if it `wakes`."""
        if not thread.dead:
            if handler not in thread.pending:  # one that has not been taken yet is not doubled
                thread.pending.append(handler)
            if wakes:
                self.ready(thread)

    # time ------------------------------------------------------------------------------------------------------

    def push(self, when: float, what: Any, ticket: int = 0) -> None:
        self.sequence += 1
        heapq.heappush(self.timers, (when, self.sequence, what, ticket))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Have the world do something later; not in any thread."""
        self.push(self.now + delay_s, action)

    def _fire(self) -> None:
        while self.timers and self.timers[0][0] <= self.now:
            _, _, what, ticket = heapq.heappop(self.timers)
            if isinstance(what, Thread):
                if what.ticket == ticket and what.parked and not what.dead:
                    what.timed_out = True
                    self.ready(what)
            else:
                what()

    def sleep(self, delay_s: float) -> None:
        """Let the current thread sleep."""
        until = self.now + delay_s
        self.point()
        while self.now < until:
            self.park("sleep", None, until)

    def note(self, *event: Any) -> None:
        """Remember an event, in a run that is told."""
        if self.trace is not None:
            self.trace.append((round(self.now, 6), "*", *event))

    # the end of a thread ---------------------------------------------------------------------------------------

    def ended(self, me: Thread) -> None:
        me.done = True
        if self.over:
            self.controller.release()
            return
        if me in self.runnable:
            self.runnable.remove(me)
        for joiner in me.joiners:
            self.ready(joiner)
        following = None if self.failure else self._choose(None)
        if following is None:
            if not self.failure:
                self.fail("deadlock")
            self.failure += "\n" + self.stacks()
            self.over = True
            self.controller.release()
            return
        self.switches += 1
        self.hash = (self.hash * 1000003 ^ following.serial ^ self.steps) & 0xFFFFFFFFFFFF
        self.current = following
        following.baton.release()


def _priority(thread: Thread) -> float:
    return thread.priority


def _nothing() -> None:
    pass


def _note_crash(thread: Thread, error: BaseException) -> None:
    text = "".join(traceback.format_exception(error))
    K.fail(f"{thread} ended with an exception:\n{text}")


# threads of this interpreter, used again by the next simulation ------------------------------------------------

_ident_of: dict[int, int] = {}  # from the identity of a baton to the interpreter's thread that runs for it
_spare: list[_Carrier] = []


class _Carrier:
    """A thread of this interpreter that runs one simulated thread after the other."""

    def __init__(self) -> None:
        self.job: tuple[Kernel, Thread] | None = None
        self.go = _thread.allocate_lock()
        self.go.acquire()
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        while True:
            self.go.acquire()
            assert self.job is not None
            kernel, thread = self.job
            _ident_of[id(thread.baton)] = _thread.get_ident()
            thread.baton.acquire()
            if not thread.dead:
                contextvars.Context().run(_call, kernel, thread)
            del _ident_of[id(thread.baton)]
            self.job = None
            _spare.append(self)
            kernel.ended(thread)
            del kernel, thread


def _call(kernel: Kernel, thread: Thread) -> None:
    try:
        thread.target()
    except SimExit:
        pass
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        kernel.fail(f"{thread} ended with an exception:\n{text}")


def _dispatch(kernel: Kernel, thread: Thread) -> None:
    carrier = _spare.pop() if _spare else _Carrier()
    carrier.job = kernel, thread
    carrier.go.release()


K: Any = None  # the simulation that runs now, a Kernel
