from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import cloudpickle
import pytest

from skyward.errors import PluginError
from skyward.model.image import Image, PipIndex
from skyward.model.spec import Accelerator, Cluster, ClusterSpec
from skyward.plugins import Plugin, around_client, node_setup, transform_all


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


def test_transforms_read_the_plan_before_any_machine_exists() -> None:
    """An accelerator in the spec chooses the index."""

    def choose(image: Image, cluster: Cluster) -> Image:
        chip = cluster.spec.accelerator
        return image.with_index(f"https://example.org/{'cuda' if chip and chip.cuda else 'cpu'}", "torch")

    plugin = Plugin.create("torch").with_image_transform(choose)
    for accelerator, kind in ((None, "cpu"), (Accelerator("A100"), "cuda"), (Accelerator("Trainium"), "cpu")):
        image = transform_all(Image(), [plugin], Cluster(spec=ClusterSpec(accelerator=accelerator)))
        assert [index.url for index in image.pip_indexes] == [f"https://example.org/{kind}"]


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


def test_the_same_plugins_make_the_same_image(cluster: Cluster) -> None:
    """Plugins do not defeat the image cache: equal input is an equal value."""
    first, second = (transform_all(Image(pip=["x"]), [adding("a", "b"), adding("c", "d")], cluster) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)


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


def test_a_transform_must_return_an_image(cluster: Cluster) -> None:
    """The usual slip is a missing return."""
    plugin: Plugin = Plugin.create("mute").with_image_transform(lambda *_: None)  # type: ignore[arg-type]
    with pytest.raises(
        PluginError, match=r"'mute': its transform hook must return the changed Image.*returned NoneType"
    ):
        transform_all(Image(), [plugin], cluster)


def test_a_failing_transform_names_its_plugin(cluster: Cluster) -> None:
    """Bad requirements included; the error itself is the cause."""
    with pytest.raises(PluginError, match="'bad': its transform hook failed: ConfigError") as caught:
        transform_all(Image(), [adding("bad", "not a requirement")], cluster)
    assert isinstance(caught.value.__cause__, ValueError)


def test_only_what_runs_on_nodes_is_sent(cluster: Cluster) -> None:
    """Client hooks, which may hold anything, stay; what is sent can be unpickled."""
    lock = threading.Lock()
    plugin = (
        Plugin.create("p")
        .with_image_transform(lambda image, _: (lock, image)[1])
        .with_around_client(lambda *_: lock)
        .with_decorator(lambda fn: fn)
        .with_bootstrap(lambda cluster: (f"echo {cluster.spec.nodes}", [["true"], print]))
    )
    setup = pickle.loads(cloudpickle.dumps(node_setup([plugin], cluster)))
    assert [step.op for step in setup.steps] == ["echo 2", "true", print]
    assert str(setup.steps[1]) == "Plugin 'p': bootstrap step 2 of 3, 'true',"
    assert repr(setup.plugins) == "(<plugin p: decorate>,)"


def test_one_op_alone_is_not_taken_letter_by_letter(cluster: Cluster) -> None:
    """A hook that returns a string means one command."""
    setup = node_setup([Plugin.create("p").with_bootstrap(lambda _: "echo hello")], cluster)
    assert [step.op for step in setup.steps] == ["echo hello"]


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


def test_client_contexts_stand_around_the_pool_in_order(cluster: Cluster) -> None:
    """Entered first to last with the pool and the plan, left last to first, also when the body raises."""
    told: list[Any] = []

    def watching(name: str) -> Plugin:
        @contextmanager
        def around(pool: object, plan: Cluster) -> Iterator[None]:
            told.append((name, pool, plan))
            yield
            told.append(name)

        return Plugin.create(name).with_around_client(around)

    with pytest.raises(KeyError), around_client([watching("a"), watching("b")], "the pool", cluster):
        told.append("body")
        raise KeyError
    assert told == [("a", "the pool", cluster), ("b", "the pool", cluster), "body", "b", "a"]
