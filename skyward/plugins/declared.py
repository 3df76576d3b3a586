"""Plugins that a file or script declares by name: made, and applied to the image that is declared with them."""

from __future__ import annotations

import inspect
from difflib import get_close_matches

from skyward.builder.sources.declared import Declared, PluginUse
from skyward.errors import ConfigError, UnknownNameError
from skyward.model.image import Image
from skyward.model.spec import Cluster, ClusterSpec
from skyward.plugins.base import Plugin, check
from skyward.plugins.client import transform_all
from skyward.plugins.registry import load


def declared_image(declared: Declared, *, platform: str, python: str) -> Image:
    """The image that a pool of this declaration would use: with what its plugins add.

    Args:
        declared: from a TOML file or a script.
        platform: of the nodes, such as "linux/amd64".
        python: minor version of the client, such as "3.11"; used unless the image names one.

    Raises:
        UnknownNameError: there is no plugin of that name.
        ConfigError: a plugin's parameters are wrong; the message names file and key.
        PluginError: a plugin cannot be loaded, or its transform failed.
    """
    plugins = [_made(use) for use in declared.plugins]
    if declared.has_volumes:
        from skyward.plugins._volumes import mounting

        plugins = [mounting(()), *plugins]
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
        make = load(use.name)
    except UnknownNameError as error:
        raise UnknownNameError(f"{use.where}: {error}") from None
    signature = inspect.signature(make)
    try:
        signature.bind(*use.args, **use.kwargs)
    except TypeError as error:
        names = [name for name, each in signature.parameters.items() if each.kind is not each.VAR_KEYWORD]
        close = [match for given in use.kwargs for match in get_close_matches(given, names, n=1) if given not in names]
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise ConfigError(
            f"{use.where}: the plugin {use.name!r} does not take these parameters: {error}.{hint} "
            f"It takes: {', '.join(names) or 'none'}."
        ) from None
    try:
        return make(*use.args, **use.kwargs)
    except ConfigError as error:
        raise type(error)(f"{use.where}: {error}") from error
