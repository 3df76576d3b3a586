"""Plugins by name: the built-in ones, and those that installed packages provide as `skyward.plugins` entry points.

Files also declare plugins by name; they are created here, and applied to the image declared with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from skyward.errors import ConfigError, PluginError
from skyward.model.extensions import Extensions
from skyward.model.parameters import checked
from skyward.plugins.base import Plugin, check

if TYPE_CHECKING:
    from skyward.builder.sources.declared import Declared, PluginUse
    from skyward.model.image import Image

# name -> location of the function that creates the plugin. Its module must not have the plugin's name in this package:
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
    """Return the names of all usable plugins, sorted."""
    return PLUGINS.names()


def load(name: str) -> Callable[..., Plugin]:
    """Return the function that creates the plugin of that name.

    Raises:
        UnknownNameError: there is none; the message suggests similar names.
        PluginError: several packages provide it, or its package cannot be imported.
    """
    make: Callable[..., Plugin] = checked(PLUGINS.load(name), f"sky.plugins.{name}")
    return make


def declared_image(declared: Declared, *, platform: str, python: str) -> Image:
    """Return the image that a pool of this declaration would use, including what its plugins add.

    Args:
        declared: by a TOML file or a program.
        platform: of the nodes, such as "linux/amd64".
        python: minor version of the client, such as "3.11"; used unless the image names one.

    Raises:
        UnknownNameError: there is no plugin of that name.
        ConfigError: a plugin's parameters are wrong; the message names file and key.
        PluginError: a plugin cannot be loaded, or its transform failed.
    """
    from skyward.model.spec import Cluster, ClusterSpec
    from skyward.plugins.hooks import transform_all

    if declared.images:
        found = declared.images.get(platform, f"its plugins are not known for {platform}.")
        if isinstance(found, str):
            raise PluginError(f"{declared.where}: {found}")
        return replace(found, platform=declared.image.platform or found.platform)
    plugins = [_made(use) for use in declared.plugins]
    check(plugins)
    spec = ClusterSpec(
        nodes=declared.nodes,
        accelerator=declared.accelerator,
        platform=platform,
        python=python if declared.image.python == "auto" else declared.image.python,
    )
    return transform_all(declared.image, plugins, Cluster(spec=spec))


def _made(use: PluginUse) -> Plugin:
    try:
        return load(use.name)(**use.kwargs)
    except ConfigError as error:
        raise type(error)(f"{use.where}: {error}") from error
    except TypeError as error:  # a required parameter is missing
        raise ConfigError(f"{use.where}: {error}.") from error
