from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import skyward as sky
from skyward.errors import ConfigError, PluginError
from skyward.plugins import Plugin, check

BUILDERS: dict[str, Callable[[Plugin, Any], Plugin]] = {
    "transform": Plugin.with_image_transform,
    "bootstrap": Plugin.with_bootstrap,
    "decorate": Plugin.with_decorator,
    "around_app": Plugin.with_around_app,
    "around_process": Plugin.with_around_process,
    "around_client": Plugin.with_around_client,
}


def hook(*args: Any) -> Any:
    return args


@pytest.mark.parametrize("name", BUILDERS)
def test_builders_return_a_new_plugin_with_one_more_hook(name: str) -> None:
    """The value they are called on stays as it is."""
    bare = Plugin.create("mine")
    full = BUILDERS[name](bare, hook)
    assert getattr(full, name) is hook
    assert getattr(bare, name) is None
    assert full != bare
    assert hash(full) == hash(BUILDERS[name](Plugin.create("mine"), hook))


@pytest.mark.parametrize("name", BUILDERS)
def test_a_second_hook_of_one_kind_is_refused(name: str) -> None:
    """It would replace the first without a word."""
    with pytest.raises(ConfigError, match=f"'mine' has a {name} hook"):
        BUILDERS[name](BUILDERS[name](Plugin.create("mine"), hook), hook)


@pytest.mark.parametrize("name", ["", "  ", None])
def test_a_plugin_needs_a_name(name: Any) -> None:
    """Errors could not say whose they are."""
    with pytest.raises(ConfigError, match="needs a name"):
        Plugin.create(name)


def test_repr_shows_names_only() -> None:
    """A hook may be a partial, or anything else, that shows a token."""

    class Login:
        token = "hf_secret"

        def __repr__(self) -> str:
            return f"Login({self.token})"

        def __call__(self, *_: Any) -> Any:
            return ()

    plugin = Plugin.create("hub").with_bootstrap(Login()).with_around_app(Login())
    assert repr(plugin) == "<plugin hub: bootstrap, around_app>"
    assert repr(Plugin.create("empty")) == "<plugin empty: no hooks>"


@pytest.mark.parametrize("name", ["decorate", "around_app", "around_process"])
def test_check_refuses_hooks_that_cannot_travel(name: str) -> None:
    """Plugin and hook are named, and what could not be pickled."""
    lock = threading.Lock()
    plugin = BUILDERS[name](Plugin.create("locked"), lambda _: lock)
    with pytest.raises(PluginError, match=f"'locked': its {name} hook goes to the nodes.*lock") as caught:
        check([Plugin.create("fine"), plugin])
    assert isinstance(caught.value.__cause__, TypeError)


def test_check_refuses_two_of_one_name() -> None:
    """Messages could not tell them apart, and a framework must not be set up twice."""
    with pytest.raises(ConfigError, match=r"plugins\[0\] and plugins\[2\] are both named 'torch'"):
        check([Plugin.create("torch"), Plugin.create("jax"), Plugin.create("torch")])


def torch() -> Plugin:
    return Plugin.create("torch")


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        (torch, r"plugins\[0\] is a function; call it: torch\(\)"),
        ("torch", r"plugins\[0\] is the text 'torch'; write sky\.plugins\.torch\(\)"),
        (None, r"plugins\[0\] is a NoneType, not a plugin"),
    ],
    ids=["no parentheses", "a name", "nothing"],
)
def test_check_refuses_what_is_no_plugin(wrong: Any, remedy: str) -> None:
    """The message says what to write instead."""
    with pytest.raises(ConfigError, match=remedy):
        check([wrong])


def test_secrets_are_added_and_never_shown() -> None:
    """By name or with values; a later one of the same name replaces an earlier one."""
    plugin = Plugin.create("hub").with_secrets("HUB_USER", HUB_TOKEN="first").with_secrets(HUB_TOKEN="second")

    assert plugin.secrets.read({"HUB_USER": "me"}) == {"HUB_USER": "me", "HUB_TOKEN": "second"}
    assert repr(plugin) == "<plugin hub: no hooks, secret HUB_USER, secret HUB_TOKEN>"
    assert hash(plugin)


def test_two_servers_do_not_share_the_port_of_a_pool() -> None:
    with pytest.raises(ConfigError, match="'ray' and 'dask' cannot be in one pool: each has a server on the one port"):
        sky.ComputePool(sky.Local(), plugins=[sky.plugins.ray(), sky.plugins.dask()])


def test_a_server_comes_before_a_group_of_ranks() -> None:
    """The group of torch takes another port where the pool's is in use; a scheduler of Dask could not."""
    with pytest.raises(ConfigError, match="List the plugin 'dask' before 'torch'"):
        sky.ComputePool(sky.Local(), plugins=[sky.plugins.torch(), sky.plugins.dask()])
    sky.ComputePool(sky.Local(), plugins=[sky.plugins.dask(), sky.plugins.torch()])
