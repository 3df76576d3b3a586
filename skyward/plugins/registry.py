"""Plugins by name: the built-in ones, and those that installed packages offer as `skyward.plugins` entry points.

Nothing is imported until it is asked for by name.
"""

from __future__ import annotations

import logging
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

from skyward.errors import PluginError, UnknownNameError
from skyward.plugins.base import Plugin

GROUP = "skyward.plugins"
# name -> where the function that makes the plugin is. Its module must not bear the plugin's name in this package:
# importing a submodule binds it as an attribute, which would hide the function.
BUILT_IN: Mapping[str, str] = {
    "huggingface": "skyward.plugins._huggingface:huggingface",
    "jax": "skyward.plugins._jax:jax",
    "joblib": "skyward.plugins._joblib:joblib",
    "keras": "skyward.plugins._keras:keras",
    "sklearn": "skyward.plugins._joblib:sklearn",
    "tensorflow": "skyward.plugins._tensorflow:tensorflow",
    "torch": "skyward.plugins._torch:torch",
}

_log = logging.getLogger(__name__)
_reported: set[EntryPoint] = set()


def names() -> list[str]:
    """The names of all plugins that can be had, sorted. A broken offer is logged once and left out."""
    return sorted(name for name, offers in _offers().items() if any(_usable(offer) for offer in offers))


def load(name: str) -> Callable[..., Plugin]:
    """The function that makes the plugin of that name.

    Raises:
        UnknownNameError: there is none; the message offers names that come close.
        PluginError: several packages offer it, or the one that does cannot be imported.
    """
    offers = _offers().get(name, [])
    if not offers:
        raise UnknownNameError(_unknown(name))
    if len(offers) > 1:
        raise PluginError(
            f"The plugin name {name!r} is taken more than once: by {' and by '.join(map(_source, offers))}. "
            "Uninstall one of them."
        )
    offer = offers[0]
    try:
        factory = offer.load()
    except Exception as error:  # whatever importing a third party's module raises
        raise PluginError(
            f"The plugin {name!r} of {_source(offer)} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not callable(factory):
        raise PluginError(
            f"The plugin {name!r} of {_source(offer)} must be a function that returns a Plugin; found "
            f"{type(factory).__name__}."
        )
    made: Callable[..., Plugin] = factory
    return made


def _offers() -> dict[str, list[EntryPoint]]:
    offers: dict[str, list[EntryPoint]] = defaultdict(list)
    for name, value in BUILT_IN.items():
        offers[name].append(EntryPoint(name, value, GROUP))
    for offer in entry_points(group=GROUP):
        offers[offer.name].append(offer)
    return offers


def _usable(offer: EntryPoint) -> bool:
    """Whether an offer may hold what it says, as far as can be told without importing it."""
    if offer.name in vars(sys.modules["skyward.plugins"]):
        reason = f"sky.plugins.{offer.name} is part of skyward itself"
    elif not offer.name.isidentifier() or offer.name.startswith("_"):
        reason = f"{offer.name!r} cannot be written as sky.plugins.{offer.name}"
    elif not EntryPoint.pattern.fullmatch(offer.value):
        reason = f"{offer.value!r} is not of the form module:function"
    elif not _importable(offer.module.partition(".")[0]):
        reason = f"there is no module {offer.module.partition('.')[0]!r}"
    else:
        return True
    if offer not in _reported:
        _reported.add(offer)
        _log.warning("Plugin %r of %s is left out: %s.", offer.name, _source(offer), reason)
    return False


def _importable(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # a module in sys.modules without a spec
        return package in sys.modules


def _source(offer: EntryPoint) -> str:
    package = f"the package {offer.dist.name} {offer.dist.version}" if offer.dist else "skyward"
    return f"{package} ({offer.value})"


def _unknown(name: str) -> str:
    known = names()
    close = get_close_matches(name, known, n=3)
    hint = f"Did you mean {' or '.join(map(repr, close))}? " if close else ""
    listed = f"Known plugins: {', '.join(known)}." if known else "No plugin is installed."
    return f"There is no plugin {name!r}. {hint}{listed}"
