"""The nodes' half of plugins: bootstrap a node once, and set up each of its worker processes.

A pool sends one `NodeSetup` to all its workers at once; each worker calls it with its place. The runner does not know
plugins: it calls an object that returns another with `decorate` and `close`. `Entered` holds the contexts of hooks, on
the client, too.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from skyward.errors import PluginError
from skyward.model.instance import InstanceInfo
from skyward.model.protocol import RUN_DIR_VAR
from skyward.plugins.base import Plugin, hook_failed
from skyward.runtime.environment import carry
from skyward.wire.exceptions import Stopping

_SHOWN_LINES = 20  # of a failed command's output
_SHOWN_CHARACTERS = 80  # of the command itself
_DONE = "done"


class Hook(NamedTuple):
    """A hook that gives a context manager, with the words an error needs."""

    plugin: str
    name: str
    make: Callable[[], AbstractContextManager[Any]]


class Entered:
    """Contexts of several hooks: entered in order, left in reverse, each left exactly once whatever the others do."""

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


@dataclass(frozen=True, slots=True)
class Step:
    """One op of a plugin's bootstrap: a shell text or a function without parameters."""

    plugin: str
    number: int
    total: int
    op: str | Callable[[], object]

    def __str__(self) -> str:
        if isinstance(self.op, str):
            line = next((line.strip() for line in self.op.splitlines() if line.strip()), "")
            what = repr(line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "...")
        else:
            what = f"{getattr(self.op, '__name__', type(self.op).__name__)}()"
        return f"Plugin {self.plugin!r}: bootstrap step {self.number} of {self.total}, {what},"

    def run(self) -> None:
        """Run it to its end.

        Raises:
            PluginError: a command's exit status was not 0, or a function raised.
        """
        if isinstance(self.op, str):
            self._run_shell(self.op)
            return
        try:
            self.op()
        except (Exception, SystemExit) as error:  # a third party's code, which may be a command's main()
            raise PluginError(f"{self} failed: {type(error).__name__}: {error}") from error

    def _run_shell(self, text: str) -> None:
        done = subprocess.run(
            ["/bin/sh", "-ec", text],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        if done.returncode != 0:
            how = f"status {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
            last = "\n".join(done.stdout.splitlines()[-_SHOWN_LINES:]) or "(it printed nothing)"
            raise PluginError(f"{self} ended with {how}. Its last output:\n{last}")


class Session:
    """The plugins of a pool, set up in one worker process.

    Attributes:
        collective: whether one of them makes a group of the pool's ranks.
    """

    def __init__(self, plugins: tuple[Plugin, ...], place: InstanceInfo, *, several_processes: bool = False) -> None:
        """Enter all `around_app` hooks, then, where a node has several processes, all `around_process` hooks.

        Raises:
            PluginError: one failed; those before it have been left.
        """
        self._plugins = plugins
        self.collective = any(plugin.collective for plugin in plugins)
        self._entered = Entered(_worker_hooks(plugins, place, several_processes=several_processes))

    def decorate(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The function inside all `decorate` hooks, the first plugin's outermost.

        Raises:
            PluginError: a hook failed or returned no function.
        """
        for plugin in reversed(self._plugins):
            if plugin.decorate is None:
                continue
            try:
                decorated = plugin.decorate(fn)
            except (Exception, SystemExit) as error:  # a third party's code
                raise hook_failed(plugin.name, "decorate", error) from error
            if not callable(decorated):
                raise PluginError(
                    f"Plugin {plugin.name!r}: its decorate hook must return a function; it returned "
                    f"{type(decorated).__name__}."
                )
            fn = carry(fn, decorated)
        return fn

    def close(self) -> None:
        """Leave the hooks in reverse order; a second call does nothing.

        Raises:
            PluginError: one or more failed; all have been left.
        """
        self._entered.close()


def _worker_hooks(plugins: tuple[Plugin, ...], place: InstanceInfo, *, several_processes: bool) -> Iterator[Hook]:
    for plugin in plugins:
        if plugin.around_app is not None:
            yield Hook(plugin.name, "around_app", partial(plugin.around_app, place))
    if several_processes:
        for plugin in plugins:
            if plugin.around_process is not None:
                yield Hook(plugin.name, "around_process", partial(plugin.around_process, place))


@dataclass(frozen=True, slots=True)
class NodeSetup:
    """What the client sends a worker of a pool's plugins.

    Attributes:
        steps: the bootstrap of the node.
        plugins: the plugins, with only the hooks that run in workers.
        several_processes: whether a node has more than one worker process, as `around_process` wants it.
    """

    steps: tuple[Step, ...]
    plugins: tuple[Plugin, ...]
    several_processes: bool = False

    def __call__(self, place: InstanceInfo) -> Session:
        """Bootstrap the node unless that has been done, then enter the hooks in this process.

        Raises:
            PluginError: a bootstrap step or a hook failed.
        """
        if self.steps:
            _once_per_node(self.steps, Path(os.environ[RUN_DIR_VAR]))
        return Session(self.plugins, place, several_processes=self.several_processes)


def _once_per_node(steps: tuple[Step, ...], run_dir: Path) -> None:
    """Run the steps in the node's first worker; the others wait for it, and fail if it has failed."""
    with (run_dir / "bootstrap").open("a+", encoding="utf-8") as record:
        fcntl.flock(record, fcntl.LOCK_EX)
        try:
            record.seek(0)
            if outcome := record.read():
                if outcome != _DONE:
                    raise PluginError(outcome)
                return
            _run_all(steps, record)
        finally:
            fcntl.flock(record, fcntl.LOCK_UN)  # a process that a step left behind may share the open file


def _run_all(steps: tuple[Step, ...], record: TextIO) -> None:
    outcome = ""  # stays empty after an interrupt: the next worker starts over
    try:
        for step in steps:
            step.run()
        outcome = _DONE
    except PluginError as error:
        outcome = str(error)
        raise
    finally:
        record.write(outcome)
        record.flush()
