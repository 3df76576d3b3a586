"""What the pool imports of `threading`, `time` and `concurrent.futures` in a simulation, as far as it uses them."""

from __future__ import annotations

import threading as real
import time as real_time
from collections.abc import Callable, Iterable
from typing import Any, Self

from tests.sim import kernel
from tests.sim.threads import (
    BoundedSemaphore,
    Condition,
    Event,
    Lock,
    RLock,
    Semaphore,
    SimpleQueue,
    Thread,
    Timer,
    local,
)


class Threading:
    """The module `threading`; `excepthook` is that of each simulated process."""

    Lock, RLock, Condition, Event, Thread, Timer = Lock, RLock, Condition, Event, Thread, Timer
    Semaphore, BoundedSemaphore, local = Semaphore, BoundedSemaphore, local
    TIMEOUT_MAX = real.TIMEOUT_MAX
    ExceptHookArgs = real.ExceptHookArgs
    __file__ = real.__file__
    __name__ = "threading"

    @property
    def excepthook(self) -> Any:
        return kernel.K.current.process.excepthook

    @excepthook.setter
    def excepthook(self, hook: Any) -> None:
        kernel.K.enter().process.excepthook = hook

    @staticmethod
    def get_ident() -> int:
        return 0 if kernel.K is None else kernel.K.current.serial

    get_native_id = get_ident

    @staticmethod
    def current_thread() -> Any:
        me = kernel.K.current
        if me.handle is None:
            me.handle = Thread(name=me.name)
            me.handle._thread = me
        return me.handle

    @staticmethod
    def main_thread() -> Any:
        return _Main()

    @staticmethod
    def enumerate() -> list[Any]:
        return [t.handle for t in kernel.K.current.process.threads if t.handle is not None and not t.done]

    @staticmethod
    def active_count() -> int:
        return sum(not t.done for t in kernel.K.current.process.threads)


class _Main:
    """The main thread of this process, which no simulated thread is: Ctrl-C is not simulated."""

    ident = native_id = -1
    name = "MainThread"

    def is_alive(self) -> bool:
        return True


class Time:
    """The module `time`."""

    strftime, localtime, gmtime = real_time.strftime, real_time.localtime, real_time.gmtime
    __name__ = "time"

    @staticmethod
    def monotonic() -> float:
        return float(kernel.K.now) if kernel.K is not None else 0.0

    perf_counter = monotonic
    process_time = thread_time = monotonic

    @staticmethod
    def monotonic_ns() -> int:
        return int(kernel.K.now * 1e9)

    perf_counter_ns = monotonic_ns

    @staticmethod
    def time() -> float:
        return 1.7e9 + float(kernel.K.now)

    @staticmethod
    def time_ns() -> int:
        return int((1.7e9 + kernel.K.now) * 1e9)

    @staticmethod
    def sleep(seconds: float) -> None:
        kernel.K.sleep(seconds)


class ThreadPoolExecutor:
    """As `concurrent.futures.ThreadPoolExecutor`, with a thread per job up to its limit."""

    def __init__(self, max_workers: int | None = None, thread_name_prefix: str = "", **_others: Any) -> None:
        self._limit, self._prefix = max_workers or 8, thread_name_prefix
        self._jobs: SimpleQueue = SimpleQueue()
        self._threads: list[Thread] = []
        self._closed = False
        self._idle = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        from skyward.system.futures import Future

        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Any = Future()
        self._jobs.put((future, fn, args, kwargs))
        if self._idle <= self._jobs.qsize() and len(self._threads) < self._limit:
            thread = Thread(target=self._run, name=f"{self._prefix}_{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def map(self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None) -> Any:
        futures = [self.submit(fn, *args) for args in zip(*iterables, strict=False)]
        return iter([future.result(timeout) for future in futures])

    def _run(self) -> None:
        while True:
            self._idle += 1
            job = self._jobs.get()
            self._idle -= 1
            if job is None:
                return
            future, fn, args, kwargs = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = fn(*args, **kwargs)
            except kernel.SimExit:
                raise
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, fn, args, kwargs, job

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._closed = True
        while cancel_futures and not self._jobs.empty():
            self._jobs.get()[0].cancel()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
