from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from skyward.errors import PluginError
from skyward.model.instance import InstanceInfo
from skyward.model.spec import Cluster
from skyward.plugins import Plugin, node_setup

Told = list[Any]


def telling(told: Told, name: str, *, enter: type[BaseException] | None = None, leave: Any = None) -> Any:
    """A hook whose context tells when it is entered and left, and may fail at either."""

    @contextmanager
    def around(info: InstanceInfo) -> Iterator[None]:
        if enter:
            raise enter(f"{name} cannot start")
        told.append(f"+{name} on {info.node}")
        yield
        told.append(f"-{name}")
        if leave:
            raise leave(f"{name} cannot stop")

    return around


def test_worker_hooks_are_entered_in_order_and_left_in_reverse(cluster: Cluster, place: InstanceInfo) -> None:
    """All around_app hooks, then all around_process hooks; each once, however often the session is closed."""
    told: Told = []
    plugins = [
        Plugin.create(name)
        .with_around_app(telling(told, f"{name}.app"))
        .with_around_process(telling(told, f"{name}.proc"))
        for name in "ab"
    ]
    session = node_setup(plugins, cluster, several_processes=True)(place)
    entered = ["+a.app on 1", "+b.app on 1", "+a.proc on 1", "+b.proc on 1"]
    assert told == entered
    session.close()
    session.close()
    assert told == [*entered, "-b.proc", "-a.proc", "-b.app", "-a.app"]


def test_around_process_is_for_nodes_with_several_processes(cluster: Cluster, place: InstanceInfo) -> None:
    """With one worker per node only around_app is entered."""
    told: Told = []
    plugin = Plugin.create("p").with_around_app(telling(told, "app")).with_around_process(telling(told, "process"))
    node_setup([plugin], cluster)(place).close()
    assert told == ["+app on 1", "-app"]


def test_concurrent_closing_leaves_each_context_once(cluster: Cluster, place: InstanceInfo) -> None:
    """A shutdown and a lost client may end a session at the same time."""
    told: Told = []
    session = node_setup([Plugin.create(n).with_around_app(telling(told, n)) for n in "abc"], cluster)(place)
    told.clear()
    together = threading.Barrier(8)

    def close() -> None:
        together.wait()
        session.close()

    threads = [threading.Thread(target=close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == ["-c", "-b", "-a"]


@pytest.mark.parametrize("error", [OSError, SystemExit])
def test_a_hook_that_fails_to_enter_undoes_those_before_it(
    cluster: Cluster, place: InstanceInfo, error: type[BaseException]
) -> None:
    """Plugin and hook are named, the hook's own error is the cause, nothing stays entered. So for one that exits."""
    told: Told = []
    plugins = [
        Plugin.create("fine").with_around_app(telling(told, "fine")),
        Plugin.create("broken").with_around_app(telling(told, "broken", enter=error)),
        Plugin.create("later").with_around_app(telling(told, "later")),
    ]
    with pytest.raises(
        PluginError, match=f"'broken': its around_app hook failed when it was entered: {error.__name__}"
    ) as caught:
        node_setup(plugins, cluster)(place)
    assert isinstance(caught.value.__cause__, error)
    assert told == ["+fine on 1", "-fine"]


def test_an_interrupt_while_entering_undoes_and_stays_an_interrupt(cluster: Cluster, place: InstanceInfo) -> None:
    """Cancelling a pool's start leaves no process group behind."""
    told: Told = []
    plugins = [
        Plugin.create("fine").with_around_app(telling(told, "fine", leave=ValueError)),
        Plugin.create("slow").with_around_app(telling(told, "slow", enter=KeyboardInterrupt)),
    ]
    with pytest.raises(KeyboardInterrupt) as caught:
        node_setup(plugins, cluster)(place)
    assert told == ["+fine on 1", "-fine"]
    assert "'fine': its around_app hook failed when it was left" in caught.value.__notes__[0]


@pytest.mark.parametrize("last", [ValueError, SystemExit])
def test_every_hook_is_left_whatever_the_others_do(
    cluster: Cluster, place: InstanceInfo, last: type[BaseException]
) -> None:
    """The first failure is raised, the others are noted on it."""
    told: Told = []
    plugins = [
        Plugin.create(n).with_around_app(telling(told, n, leave=e))
        for n, e in zip("abc", (OSError, None, last), strict=True)
    ]
    session = node_setup(plugins, cluster)(place)
    with pytest.raises(PluginError, match=f"'c': its .* when it was left: {last.__name__}") as caught:
        session.close()
    assert told[3:] == ["-c", "-b", "-a"]
    assert "'a': its around_app hook failed when it was left: OSError" in caught.value.__notes__[0]


def test_a_generator_without_contextmanager_is_explained(cluster: Cluster, place: InstanceInfo) -> None:
    """The usual slip is the missing decorator."""

    def around(_: InstanceInfo) -> Any:
        yield

    with pytest.raises(PluginError, match=r"'slip'.*is @contextlib\.contextmanager missing"):
        node_setup([Plugin.create("slip").with_around_app(around)], cluster)(place)


def wrapping(name: str) -> Plugin:
    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: f"{name}({fn(*args)})"

    return Plugin.create(name).with_decorator(decorate)


def test_the_first_plugin_decorates_outermost(cluster: Cluster, place: InstanceInfo) -> None:
    """Plugins without the hook are passed over."""
    session = node_setup([wrapping("first"), Plugin.create("none"), wrapping("second")], cluster)(place)
    assert session.decorate(lambda x: f"body {x}")(3) == "first(second(body 3))"


@pytest.mark.parametrize(
    ("decorate", "reason"),
    [
        (lambda _: None, "must return a function; it returned NoneType"),
        (lambda fn: fn.missing, "failed: AttributeError"),
        (lambda _: sys.exit(3), "failed: SystemExit: 3"),
    ],
    ids=["no return", "raises", "exits"],
)
def test_a_bad_decorate_hook_names_its_plugin(
    cluster: Cluster, place: InstanceInfo, decorate: Any, reason: str
) -> None:
    """An error of the called function itself passes through untouched; this is the hook's own."""
    session = node_setup([Plugin.create("bad").with_decorator(decorate)], cluster)(place)
    with pytest.raises(PluginError, match=f"'bad': its decorate hook {reason}"):
        session.decorate(print)


def booting(*ops: Any, name: str = "boot") -> Plugin:
    return Plugin.create(name).with_bootstrap(lambda _: ops)


def test_bootstraps_run_in_order_before_the_hooks(cluster: Cluster, place: InstanceInfo, run_dir: Path) -> None:
    """All plugins' steps in list order, commands and functions alike; then the workers' contexts."""
    trace = run_dir / "trace"

    def note(text: str) -> None:
        with trace.open("a") as file:
            file.write(text)

    @contextmanager
    def around(_: InstanceInfo) -> Iterator[None]:
        note("app ")
        yield

    first = booting(f"printf 'one ' >> {trace}", lambda: note("two ")).with_around_app(around)
    second = booting([f"printf 'three ' >> {trace}"], name="second")
    node_setup([first, second], cluster)(place)
    assert trace.read_text() == "one two three app "


WORKER = """
import pickle, sys
from skyward.model.instance import InstanceInfo
setup = pickle.load(sys.stdin.buffer)
try:
    setup(InstanceInfo(node=0, total_nodes=1, head_addr="", head_port=1, worker=int(sys.argv[1]), workers_per_node=3))
    print("ready")
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "fails"])
def test_a_node_with_several_workers_is_bootstrapped_once(cluster: Cluster, run_dir: Path, fails: bool) -> None:
    """Three processes set up at once: one runs the steps, all wait for the end and share the outcome."""
    trace = run_dir / "trace"
    setup = cloudpickle.dumps(node_setup([booting(f"echo ran >> {trace}", "exit 7" if fails else "true")], cluster))
    script = run_dir / "worker.py"
    script.write_text(WORKER)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    workers = [
        subprocess.Popen(
            [sys.executable, script, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        for n in range(3)
    ]
    for worker in workers:
        assert worker.stdin
        worker.stdin.write(setup)
        worker.stdin.close()
    said = []
    for worker in workers:
        with worker:
            assert worker.stdout
            said.append(worker.stdout.read().decode().splitlines()[0])
    assert trace.read_text() == "ran\n"
    assert (
        said
        == [
            "Plugin 'boot': bootstrap step 2 of 2, 'exit 7', ended with status 7. Its last output:"
            if fails
            else "ready"
        ]
        * 3
    )


def test_a_worker_started_again_does_not_bootstrap_again(cluster: Cluster, place: InstanceInfo, run_dir: Path) -> None:
    """The node has been bootstrapped; only the process is new."""
    trace = run_dir / "trace"
    setup = node_setup([booting(f"echo ran >> {trace}")], cluster)
    setup(place).close()
    setup(place)
    assert trace.read_text() == "ran\n"


def test_a_failing_command_shows_step_status_and_last_output(
    cluster: Cluster, place: InstanceInfo, run_dir: Path
) -> None:
    """The command stops at its first failing line; the message ends with what it printed last."""
    text = "\n  seq 30\n  echo broken >&2\n  false\n  echo never"
    with pytest.raises(PluginError) as caught:
        node_setup([booting("true", text)], cluster)(place)
    first, *lines = str(caught.value).splitlines()
    assert first == "Plugin 'boot': bootstrap step 2 of 2, 'seq 30', ended with status 1. Its last output:"
    assert lines == [*map(str, range(12, 31)), "broken"]


def test_a_command_ended_by_a_signal_says_which(cluster: Cluster, place: InstanceInfo, run_dir: Path) -> None:
    """Silent ends are told apart from failures."""
    with pytest.raises(PluginError, match=rf"ended with signal {int(signal.SIGTERM)}\..*\n\(it printed nothing\)"):
        node_setup([booting("kill -TERM $$")], cluster)(place)


@pytest.mark.parametrize("error", [OSError("disk full"), SystemExit(3)], ids=["error", "exit"])
def test_a_failing_function_names_its_step(
    cluster: Cluster, place: InstanceInfo, run_dir: Path, error: BaseException
) -> None:
    """A function that ends the process, as command-line tools do, fails the step and not the worker."""

    def log_in() -> None:
        raise error

    with pytest.raises(
        PluginError, match=rf"bootstrap step 1 of 1, log_in\(\), failed: {type(error).__name__}"
    ) as caught:
        node_setup([booting(log_in)], cluster)(place)
    assert caught.value.__cause__ is error


def test_an_interrupted_bootstrap_is_run_again(cluster: Cluster, place: InstanceInfo, run_dir: Path) -> None:
    """An interrupt is no outcome: the next worker starts over."""
    calls: list[int] = []

    def once_interrupted() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt

    setup = replace(node_setup([booting("true")], cluster))
    setup = replace(setup, steps=(replace(setup.steps[0], op=once_interrupted),))
    with pytest.raises(KeyboardInterrupt):
        setup(place)
    setup(place)
    assert len(calls) == 2
