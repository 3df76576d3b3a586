"""Extensions by name: the built-in ones, and those that installed packages provide as entry points of a group.

Each is imported only when it is requested by name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from skyward.errors import SkywardError, UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class Extensions:
    """The extensions of one kind.

    Attributes:
        kind: noun for them in messages: "plugin".
        result: return type of calling one: "Plugin".
        group: the entry points' group, which is also the package whose attributes they are: "skyward.plugins".
        built_in: locations of those that are part of skyward, by name.
        error: raised for one that cannot be loaded.
    """

    kind: str
    result: str
    group: str
    built_in: Mapping[str, str]
    error: type[SkywardError]

    def names(self) -> list[str]:
        """Return the names of all extensions, sorted."""
        return sorted(self._offers())

    def load(self, name: str) -> Callable[..., Any]:
        """Return the function or class of that name.

        Raises:
            UnknownNameError: there is none; the message suggests similar names.
            SkywardError: several packages provide it, or its package cannot be imported.
        """
        offers = self._offers().get(name, [])
        if not offers:
            raise UnknownNameError(self._unknown(name))
        if len(offers) > 1:
            raise self.error(
                f"The {self.kind} name {name!r} is taken more than once: by {' and by '.join(map(_source, offers))}. "
                "Uninstall one of them."
            )
        try:
            factory = offers[0].load()
            if not callable(factory):
                raise TypeError(f"it must be a function that returns a {self.result}")
        except Exception as error:  # importing third-party modules may raise anything
            title = f"The {self.kind} {name!r} of {_source(offers[0])}"
            raise self.error(f"{title} cannot be loaded: {type(error).__name__}: {error}") from error
        made: Callable[..., Any] = factory
        return made

    def _offers(self) -> dict[str, list[EntryPoint]]:
        offers: dict[str, list[EntryPoint]] = defaultdict(list)
        for name, value in self.built_in.items():
            offers[name].append(EntryPoint(name, value, self.group))
        for offer in entry_points(group=self.group):
            offers[offer.name].append(offer)
        return offers

    def _unknown(self, name: str) -> str:
        known = self.names()
        close = get_close_matches(name, known, n=3)
        hint = f"Did you mean {' or '.join(map(repr, close))}? " if close else ""
        listed = f"Known {self.kind}s: {', '.join(known)}." if known else f"No {self.kind} is installed."
        return f"There is no {self.kind} {name!r}. {hint}{listed}"


def _source(offer: EntryPoint) -> str:
    package = f"the package {offer.dist.name} {offer.dist.version}" if offer.dist else "skyward"
    return f"{package} ({offer.value})"
