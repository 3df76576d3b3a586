"""The hooks of a pool's plugins, in the order in which they are called: first on the client, then on the nodes.

The client changes the image (`transform_all`), sends all workers one `NodeSetup`, and enters contexts around the open
pool (`around_client`). Each worker calls the `NodeSetup` with its place: the first one of a node bootstraps it, all
enter their contexts. The runner does not know plugins: it calls an object that returns another with `decorate` and
`close`. Standard library only at import, as nodes import this module.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from skyward.errors import PluginError
from skyward.model.instance import RUN_DIR_VAR, InstanceInfo
from skyward.model.secrets import Secrets
from skyward.plugins.base import HOOKS, WORKER_HOOKS, Plugin, check_pickles
from skyward.runtime.environment import carry
from skyward.wire.exceptions import Stopping

if TYPE_CHECKING:
    from skyward.model.image import Image
    from skyward.model.spec import Cluster

_LISTS = ("apt", "pip", "requirements", "groups", "run", "secrets", "includes")
_STAYS: dict[str, Any] = {hook: None for hook in HOOKS if hook not in WORKER_HOOKS} | {
    "secrets": Secrets(),
    "pool_secrets": None,
}
_SHOWN_LINES = 20  # of a failed command's output
_SHOWN_CHARACTERS = 80  # of the command itself
_DONE = "done"


@contextmanager
def _named(plugin: str, hook: str, when: str = "") -> Iterator[None]:
    """Name plugin and hook in errors of third-party code, which may be a command's main().

    Raises:
        PluginError: it failed.
    """
    try:
        yield
    except Stopping:
        raise
    except (Exception, SystemExit) as error:
        text = f"Plugin {plugin!r}: its {hook} hook failed{when}: {type(error).__name__}: {error}"
        raise PluginError(text) from error


def transform_all(image: Image, plugins: Sequence[Plugin], cluster: Cluster) -> Image:
    """Return the image with the additions of all plugins, in their order; `Image.origins` records the plugin of each.

    Raises:
        PluginError: a transform failed, returned something else, or removed existing entries.
    """
    for plugin in plugins:
        if plugin.transform is not None:
            image = _transform(image, plugin, cluster)
    return image


def _transform(image: Image, plugin: Plugin, cluster: Cluster) -> Image:
    from skyward.image.plan import with_origin  # imports the compiler, which nodes do not need
    from skyward.model.image import Image

    assert plugin.transform is not None
    with _named(plugin.name, "transform"):
        after = plugin.transform(image, cluster)
    if not isinstance(after, Image):
        raise PluginError(
            f"Plugin {plugin.name!r}: its transform hook must return the changed Image, as in "
            f"`return image.pip_install(...)`; it returned {type(after).__name__}."
        )
    now = _entries(after)
    if gone := [entry for entry in _entries(image) if entry not in now]:
        raise PluginError(
            f"Plugin {plugin.name!r}: its transform hook took {', '.join(gone)} out of the image. A plugin adds to "
            "what is there: build on the image it is given, as `image.pip_install(...)` does."
        )
    return with_origin(image, after, f"plugin {plugin.name}")


def _entries(image: Image) -> list[str]:
    """Return the entries that a plugin must not remove."""
    entries = [f"{field}={entry!r}" for field in _LISTS for entry in getattr(image, field)]
    return entries + [f"{package!r} from {index.url}" for index in image.pip_indexes for package in index.packages]


def node_setup(plugins: Sequence[Plugin], cluster: Cluster, *, several_processes: bool = False) -> NodeSetup:
    """Return the set-up that is sent to every worker of the pool: the bootstrap steps and the hooks that run there.

    Raises:
        PluginError: a bootstrap hook failed, or one of its ops is invalid or cannot be pickled.
    """
    steps = [step for plugin in plugins for step in _steps(plugin, cluster)]
    kept = tuple(replace(plugin, **_STAYS) for plugin in plugins)
    return NodeSetup(tuple(steps), kept, several_processes)


def _steps(plugin: Plugin, cluster: Cluster) -> list[Step]:
    if plugin.bootstrap is None:
        return []
    with _named(plugin.name, "bootstrap"):
        found = list(_flat(plugin.bootstrap(cluster)))
    for op in found:
        if not isinstance(op, str) and not callable(op):
            raise PluginError(
                f"Plugin {plugin.name!r}: its bootstrap hook must return shell commands and functions; found a "
                f"{type(op).__name__}."
            )
        check_pickles(op, plugin.name, "bootstrap")
    return [Step(plugin.name, number, len(found), op) for number, op in enumerate(found, 1)]


def _flat(op: Any) -> Iterator[Any]:
    if isinstance(op, list | tuple):
        for inner in op:
            yield from _flat(inner)
    else:
        yield op


@dataclass(frozen=True, slots=True)
class NodeSetup:
    """The client's message to a worker about a pool's plugins.

    Attributes:
        steps: the bootstrap of the node.
        plugins: the plugins, with only the hooks that run in workers.
        several_processes: whether a node has more than one worker process, as `around_process` requires.
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
            fcntl.flock(record, fcntl.LOCK_UN)  # a process started by a step may share the open file


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


@dataclass(frozen=True, slots=True)
class Step:
    """One op of a plugin's bootstrap: a shell command or a function without parameters."""

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
        except (Exception, SystemExit) as error:  # third-party code, which may be a command's main()
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
        collective: whether one of them forms a group of the pool's ranks.
    """

    def __init__(self, plugins: tuple[Plugin, ...], place: InstanceInfo, *, several_processes: bool = False) -> None:
        """Enter all `around_app` hooks, then, if a node has several processes, all `around_process` hooks.

        Raises:
            PluginError: one failed; those before it have been exited.
        """
        self._plugins = plugins
        self.collective = any(plugin.collective for plugin in plugins)
        self._entered = _enter(_worker_hooks(plugins, place, several_processes=several_processes))

    def decorate(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function wrapped in all `decorate` hooks, the first plugin's outermost.

        Raises:
            PluginError: a hook failed or returned something other than a function.
        """
        for plugin in reversed(self._plugins):
            if plugin.decorate is None:
                continue
            with _named(plugin.name, "decorate"):
                decorated = plugin.decorate(fn)
            if not callable(decorated):
                raise PluginError(
                    f"Plugin {plugin.name!r}: its decorate hook must return a function; it returned "
                    f"{type(decorated).__name__}."
                )
            fn = carry(fn, decorated)
        return fn

    def close(self) -> None:
        """Exit the hooks in reverse order; a second call does nothing.

        Raises:
            PluginError: one or more failed; all have been exited.
        """
        self._entered.close()


def _worker_hooks(
    plugins: tuple[Plugin, ...], place: InstanceInfo, *, several_processes: bool
) -> Iterator[AbstractContextManager[None]]:
    for plugin in plugins:
        if plugin.around_app is not None:
            yield _hook(plugin.name, "around_app", partial(plugin.around_app, place))
    if several_processes:
        for plugin in plugins:
            if plugin.around_process is not None:
                yield _hook(plugin.name, "around_process", partial(plugin.around_process, place))


@contextmanager
def _hook(plugin: str, name: str, make: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Enter the context of a hook; exit it without an exception, even if one ended the pool: it cannot swallow it."""
    with _named(plugin, name, " when it was entered"):
        context: object = make()
        if not isinstance(context, AbstractContextManager):
            kind = type(context).__name__
            raise TypeError(f"it gave a {kind}, no context manager (is @contextlib.contextmanager missing?)")
        context.__enter__()
    try:
        yield
    finally:
        with _named(plugin, name, " when it was left"):
            context.__exit__(None, None, None)


def _enter(hooks: Iterable[AbstractContextManager[None]]) -> ExitStack:
    """Enter the hooks in order; return what exits them in reverse, each exactly once even if others fail.

    Raises:
        PluginError: one failed; those before it have been exited.
    """
    entered = ExitStack()
    try:
        for hook in hooks:
            entered.enter_context(hook)
    except BaseException as error:
        try:
            entered.close()
        except PluginError as failure:
            error.add_note(f"Then, while the plugins entered before it were left: {failure}")
        raise
    return entered


@contextmanager
def around_client(plugins: Sequence[Plugin], pool: object, cluster: Cluster) -> Iterator[None]:
    """Enter the plugins' contexts around an open pool, in their order; exit them in reverse.

    Raises:
        PluginError: one failed; those entered have been exited.
    """
    entered = _enter(
        _hook(plugin.name, "around_client", partial(plugin.around_client, pool, cluster))
        for plugin in plugins
        if plugin.around_client is not None
    )
    try:
        yield
    finally:
        entered.close()
