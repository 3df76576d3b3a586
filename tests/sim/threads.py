"""`threading`, `time` and `queue` for simulated threads: what of them the product uses, with their meaning."""

from __future__ import annotations

import threading as real
import time as real_time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from queue import Empty, Full
from typing import Any, Self

from tests.sim import kernel
from tests.sim.kernel import FOREVER


def _until(timeout: float | None) -> float:
    return FOREVER if timeout is None or timeout < 0 else float(kernel.K.now) + timeout


class Lock:
    """Outside of a simulation, as when modules are imported, it is free."""

    def __init__(self) -> None:
        self.holder: Any = None
        self._locked = False
        self._of: Any = None
        self._waiters: list[kernel.Thread] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        k = kernel.K
        if k is None or k.over:
            if k is not None:
                k.enter()
            return True
        me = k.point()
        if self._of is not k:  # of a module: a simulation before this one may have left it locked
            self._of, self._locked = k, False
            self._waiters = []
        if self._locked:
            if not blocking:
                return False
            until = FOREVER if timeout < 0 else k.now + timeout
            self._waiters.append(me)
            try:
                while self._locked:
                    if not k.park("lock", self, until):
                        return False
            finally:
                self._waiters.remove(me)
        self._locked, self.holder = True, me
        return True

    def release(self) -> None:
        k = kernel.K
        if k is None:
            return
        early = k.rng.random() < 0.5  # somebody may come in vain just before, or just after
        if early:
            k.point(takes_signals=False)  # as the interpreter, which lets none in before the lock is free
        k.enter()
        if not self._locked:
            raise RuntimeError("release unlocked lock")
        self._locked, self.holder = False, None
        for waiter in self._waiters:
            k.ready(waiter)
        if not early:
            k.point()

    def locked(self) -> bool:
        return self._locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self._locked

    def _release_save(self) -> int:
        self._locked, self.holder = False, None
        for waiter in self._waiters:
            kernel.K.ready(waiter)
        return 1

    def _acquire_restore(self, _depth: int) -> None:
        self.acquire()


class RLock(Lock):
    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        k = kernel.K
        if k is not None and self._of is k and self._locked and self.holder is k.current:
            k.enter()
            self._depth += 1
            return True
        if not super().acquire(blocking, timeout):
            return False
        self._depth = 1
        return True

    def release(self) -> None:
        if kernel.K is None:
            return
        kernel.K.enter()
        self._depth -= 1
        if self._depth == 0:
            super().release()

    def _is_owned(self) -> bool:
        return self._locked and self.holder is kernel.K.current

    def _release_save(self) -> int:
        depth, self._depth = self._depth, 0
        super()._release_save()
        return depth

    def _acquire_restore(self, depth: int) -> None:
        super().acquire()
        self._depth = depth


class Condition:
    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or RLock()
        self.acquire, self.release = self._lock.acquire, self._lock.release
        self._waiters: list[list[Any]] = []

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        k = kernel.K
        me = k.enter()
        if not self._lock._is_owned():
            raise RuntimeError("cannot wait on un-acquired lock")
        until = _until(timeout)
        waiter = [False, me]
        self._waiters.append(waiter)
        depth = self._lock._release_save()
        try:
            while not waiter[0]:
                if not k.park("condition", self, until):
                    break
        finally:
            if not waiter[0]:
                self._waiters.remove(waiter)
            self._lock._acquire_restore(depth)
        return bool(waiter[0])

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = _until(timeout)
        result = predicate()
        while not result:
            if until == FOREVER:
                self.wait()
            else:
                left = until - kernel.K.now
                if left <= 0:
                    break
                self.wait(left)
            result = predicate()
        return result

    def notify(self, n: int = 1) -> None:
        kernel.K.enter()
        if not self._lock._is_owned():
            raise RuntimeError("cannot notify on un-acquired lock")
        for waiter in self._waiters[:n]:
            waiter[0] = True
            kernel.K.ready(waiter[1])
        del self._waiters[:n]

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


class Event:
    def __init__(self) -> None:
        self._set = False
        self._waiters: list[kernel.Thread] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        k = kernel.K
        k.enter()
        self._set = True
        for waiter in self._waiters:
            k.ready(waiter)
        k.point()

    def clear(self) -> None:
        kernel.K.point()
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        k = kernel.K
        me = k.point()
        if self._set:
            return True
        until = _until(timeout)
        self._waiters.append(me)
        try:
            while not self._set:
                if not k.park("event", self, until):
                    break
        finally:
            self._waiters.remove(me)
        return self._set


class Semaphore:
    def __init__(self, value: int = 1) -> None:
        self._value = value
        self._waiters: list[kernel.Thread] = []

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        k = kernel.K
        me = k.point()
        if not self._value:
            if not blocking:
                return False
            until = _until(timeout)
            self._waiters.append(me)
            try:
                while not self._value:
                    if not k.park("semaphore", self, until):
                        return False
            finally:
                self._waiters.remove(me)
        self._value -= 1
        return True

    def release(self, n: int = 1) -> None:
        k = kernel.K
        k.enter()
        self._value += n
        for waiter in self._waiters:
            k.ready(waiter)
        k.point()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


BoundedSemaphore = Semaphore


class SimpleQueue:
    """Of unlimited length, as `queue.SimpleQueue`."""

    def __init__(self, maxsize: int = 0) -> None:
        self.maxsize = maxsize
        self._items: deque[Any] = deque()
        self._waiters: list[kernel.Thread] = []

    def __class_getitem__(cls, _item: Any) -> type:
        return cls

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        k = kernel.K
        me = k.point()
        until = _until(timeout)
        if self.maxsize and len(self._items) >= self.maxsize:
            self._waiters.append(me)
            try:
                while len(self._items) >= self.maxsize:
                    if not block or not k.park("queue", self, until):
                        raise Full
            finally:
                self._waiters.remove(me)
        self._items.append(item)
        for waiter in self._waiters:
            k.ready(waiter)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        k = kernel.K
        me = k.point()
        if not self._items:
            if not block:
                raise Empty
            until = _until(timeout)
            self._waiters.append(me)
            try:
                while not self._items:
                    if not k.park("queue", self, until):
                        raise Empty
            finally:
                self._waiters.remove(me)
        item = self._items.popleft()
        if self.maxsize:
            for waiter in self._waiters:
                k.ready(waiter)
        return item

    def put_nowait(self, item: Any) -> None:
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items

    def full(self) -> bool:
        return bool(self.maxsize) and len(self._items) >= self.maxsize

    def qsize(self) -> int:
        return len(self._items)


Queue = SimpleQueue


class Thread:
    def __init__(
        self,
        group: None = None,  # noqa: ARG002 - as in the standard library
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target, self._args, self._kwargs = target, tuple(args), dict(kwargs or {})
        self.daemon = bool(daemon)
        self.name = name or ""
        self._thread: kernel.Thread | None = None

    def start(self) -> None:
        k = kernel.K
        me = k.enter()
        role = getattr(self._target, "__qualname__", "")
        self._thread = k.spawn(me.process, self.name, self._bootstrap, role)
        self._thread.handle = self
        k.point()

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def _bootstrap(self) -> None:
        try:
            self.run()
        except SystemExit:
            pass
        except Exception as error:
            k = kernel.K
            process = k.enter().process
            k.on_crash(k.current, error)
            if process.excepthook is not None:
                hook, process.excepthook = process.excepthook, None
                hook(real.ExceptHookArgs((type(error), None, None, self)))

    def join(self, timeout: float | None = None) -> None:
        k = kernel.K
        me = k.point()
        until = _until(timeout)
        thread = self._thread
        assert thread is not None
        thread.joiners.append(me)
        try:
            while not thread.done:
                if not k.park("join", thread, until):
                    break
        finally:
            thread.joiners.remove(me)

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.done

    @property
    def ident(self) -> int | None:
        return self._thread.serial if self._thread is not None else None

    native_id = ident


class Timer(Thread):
    def __init__(
        self, interval: float, function: Callable[..., Any], args: Iterable[Any] = (), kwargs: Any = None
    ) -> None:
        super().__init__(target=function, args=args, kwargs=kwargs)
        self._interval, self._finished = interval, Event()

    def cancel(self) -> None:
        self._finished.set()

    def run(self) -> None:
        if not self._finished.wait(self._interval):
            super().run()


class local:
    """Attributes of each simulated thread."""

    def __init__(self) -> None:
        self.__dict__["_of"] = {}

    def _mine(self) -> dict[str, Any]:
        mine: dict[str, Any] = self.__dict__["_of"].setdefault(id(kernel.K.current), {})
        return mine

    def __getattr__(self, name: str) -> Any:
        try:
            return self._mine()[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._mine()[name] = value


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
