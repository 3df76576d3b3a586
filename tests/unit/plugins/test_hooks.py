from __future__ import annotations

import os
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
from skyward.model.image import Image, PipIndex
from skyward.model.instance import InstanceInfo
from skyward.model.spec import Cluster
from skyward.plugins import Plugin, node_setup, transform_all


def adding(name: str, *requirements: str) -> Plugin:
    return Plugin.create(name).with_image_transform(lambda image, _: image.pip_install(*requirements))


def test_transforms_run_in_order_each_on_what_the_last_one_made(cluster: Cluster) -> None:
    """The second plugin sees the first one's packages; plugins without the hook are passed over."""
    seen: list[Any] = []

    def look(image: Image, _: Cluster) -> Image:
        seen.append(image.pip)
        return image.pip_install("b")

    plugins = [adding("first", "a"), Plugin.create("none"), Plugin.create("second").with_image_transform(look)]
    assert transform_all(Image(pip=["user"]), plugins, cluster).pip == ("a", "b", "user")
    assert seen == [("a", "user")]


def test_what_a_plugin_added_bears_its_name(cluster: Cluster) -> None:
    """Origins hold only what plugins added, never the user's entries, and leave equality alone."""

    def transform(image: Image, _: Cluster) -> Image:
        more = image.pip_install("torch", "numpy").apt_install("git").with_index("https://example.org/whl", "torch")
        return more.with_env(THREADS="2").run_commands("true")

    user = Image(pip=["numpy"], env={"KEEP": "1"})
    image = transform_all(user, [Plugin.create("torch").with_image_transform(transform), adding("jax", "jax")], cluster)
    assert dict(image.origins) == {
        "pip:torch": "plugin torch",
        "apt:git": "plugin torch",
        "pip_indexes:https://example.org/whl": "plugin torch",
        "env:THREADS": "plugin torch",
        "run:true": "plugin torch",
        "pip:jax": "plugin jax",
    }
    assert image == replace(image, origins=())


@pytest.mark.parametrize(
    ("transform", "gone"),
    [
        (lambda image, _: replace(image, pip=["torch"]), "pip='numpy'"),
        (lambda image, _: replace(image, pip_indexes=()), "'x' from https://example.org/a"),
        (lambda *_: Image(), "apt='git', pip='numpy', 'x' from"),
    ],
    ids=["packages", "indexes", "a new image"],
)
def test_a_plugin_may_take_nothing_away(cluster: Cluster, transform: Callable[..., Any], gone: str) -> None:
    """Plugin and lost entries are named, with the remedy."""
    user = Image(pip=["numpy"], apt=["git"], pip_indexes=[PipIndex("https://example.org/a", ["x"])])
    with pytest.raises(PluginError, match=f"'thief': its transform hook took {gone}.*adds to what is there"):
        transform_all(user, [Plugin.create("thief").with_image_transform(transform)], cluster)


@pytest.mark.parametrize(
    ("bootstrap", "reason"),
    [
        (lambda _: (None,), "must return shell commands and functions; found a NoneType"),
        (lambda _: 1 / 0, "failed: ZeroDivisionError"),
        (lambda _: (threading.Lock().acquire,), "cannot be pickled"),
    ],
    ids=["no op", "raises", "unpicklable"],
)
def test_bad_bootstraps_are_found_on_the_client(cluster: Cluster, bootstrap: Any, reason: str) -> None:
    """Before any node is started."""
    with pytest.raises(PluginError, match=f"'p': its bootstrap hook.*{reason}"):
        node_setup([Plugin.create("p").with_bootstrap(bootstrap)], cluster)


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


@pytest.mark.parametrize("last", [ValueError, SystemExit])
def test_every_hook_is_left_whatever_the_others_do(
    cluster: Cluster, place: InstanceInfo, last: type[BaseException]
) -> None:
    """The last failure is raised."""
    told: Told = []
    plugins = [
        Plugin.create(n).with_around_app(telling(told, n, leave=e))
        for n, e in zip("abc", (OSError, None, last), strict=True)
    ]
    session = node_setup(plugins, cluster)(place)
    with pytest.raises(PluginError, match=r"'a': its .* when it was left: OSError"):
        session.close()
    assert told[3:] == ["-c", "-b", "-a"]


def booting(*ops: Any, name: str = "boot") -> Plugin:
    return Plugin.create(name).with_bootstrap(lambda _: ops)


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
