"""Plugins by name: the built-in ones, and those that installed packages offer as `skyward.plugins` entry points."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from skyward.errors import PluginError
from skyward.model.extensions import Extensions
from skyward.model.parameters import checked
from skyward.plugins.base import Plugin

# name -> where the function that makes the plugin is. Its module must not bear the plugin's name in this package:
# importing a submodule binds it as an attribute, which would hide the function.
BUILT_IN: Mapping[str, str] = {
    "dask": "skyward.plugins._dask:dask",
    "huggingface": "skyward.plugins._huggingface:huggingface",
    "jax": "skyward.plugins._jax:jax",
    "joblib": "skyward.plugins._joblib:joblib",
    "keras": "skyward.plugins._keras:keras",
    "metrics": "skyward.plugins._metrics:metrics",
    "ray": "skyward.plugins._ray:ray",
    "sklearn": "skyward.plugins._joblib:sklearn",
    "tensorflow": "skyward.plugins._tensorflow:tensorflow",
    "torch": "skyward.plugins._torch:torch",
}
PLUGINS = Extensions(kind="plugin", result="Plugin", group="skyward.plugins", built_in=BUILT_IN, error=PluginError)


def names() -> list[str]:
    """The names of all plugins that can be had, sorted."""
    return PLUGINS.names()


def load(name: str) -> Callable[..., Plugin]:
    """The function that makes the plugin of that name.

    Raises:
        UnknownNameError: there is none; the message offers names that come close.
        PluginError: several packages offer it, or the one that does cannot be imported.
    """
    make: Callable[..., Plugin] = checked(PLUGINS.load(name), f"sky.plugins.{name}")
    return make
