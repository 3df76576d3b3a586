"""`threading`, `time` and `queue` for simulated threads: what of them the product uses, with their meaning."""

from __future__ import annotations

import threading as real
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from queue import Empty, Full
from typing import Any

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
        if k is None or (k.current.dead and not self.maxsize):  # a finalizer, when all has ended: nobody will take it
            self._items.append(item)
            return
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
