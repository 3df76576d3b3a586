"""Contexts of several hooks: entered in order, left in reverse, each left exactly once whatever the others do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from skyward.plugins.base import hook_failed
from skyward.wire.exceptions import Stopping


class Hook(NamedTuple):
    """A hook that gives a context manager, with the words an error needs."""

    plugin: str
    name: str
    make: Callable[[], AbstractContextManager[Any]]


class Entered:
    """Contexts that are open until `close`."""

    def __init__(self, hooks: Iterable[Hook]) -> None:
        """Enter the hooks in order.

        Raises:
            PluginError: one failed; those before it have been left.
        """
        self._lock = threading.Lock()
        self._open: list[tuple[Hook, AbstractContextManager[Any]]] = []
        try:
            for hook in hooks:
                self._enter(hook)
        except BaseException as error:
            for failure in self._leave():
                error.add_note(f"Then, while the plugins entered before it were left: {failure}")
            raise

    def _enter(self, hook: Hook) -> None:
        try:
            context: object = hook.make()
            if not isinstance(context, AbstractContextManager):
                kind = type(context).__name__
                raise TypeError(f"it gave a {kind}, no context manager (is @contextlib.contextmanager missing?)")
            context.__enter__()
        except Stopping:
            raise
        except (Exception, SystemExit) as error:  # a third party's code, which may be a command's main()
            raise hook_failed(hook.plugin, hook.name, error, " when it was entered") from error
        self._open.append((hook, context))

    def close(self) -> None:
        """Leave all contexts in reverse order; a second call does nothing.

        A context is left without an exception, whatever ended the pool: it cannot swallow one.

        Raises:
            PluginError: one or more failed; all have been left.
        """
        failures = self._leave()
        if not failures:
            return
        first, *others = failures
        for failure in others:
            first.add_note(f"And: {failure}")
        raise first

    def _leave(self) -> list[BaseException]:
        with self._lock:
            contexts, self._open = self._open, []
        failures: list[BaseException] = []
        for hook, context in reversed(contexts):
            try:
                context.__exit__(None, None, None)
            except (Stopping, KeyboardInterrupt) as error:  # the others are left all the same, then it is raised
                failures.insert(0, error)
            except BaseException as error:  # a third party's code
                failures.append(hook_failed(hook.plugin, hook.name, error, " when it was left"))
        return failures
