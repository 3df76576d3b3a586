"""`Secrets`: variables that nodes receive at run time, only over the authenticated connection.

Their representation, errors and comparisons show names, never values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from skyward.errors import ConfigError


def check_variable(name: object, what: str) -> None:
    """Raise ConfigError unless `name` is an environment variable that users may set; `what` starts the message."""
    if not _is_name(name):
        raise ConfigError(f"{what}: {name!r} is not a name of an environment variable.")
    assert isinstance(name, str)
    if name == "COMPUTE_POOL" or name.startswith("SKYWARD_"):
        raise ConfigError(f"{what}: {name} is set by the pool itself; choose another name.")


@dataclass(frozen=True, slots=True, repr=False)
class Secrets:
    """Secret variables: names to be read from the client's environment, and names with their values.

    Attributes:
        entries: names with values; None if the value is to be read.
    """

    entries: tuple[tuple[str, str | None], ...] = field(default=())

    @classmethod
    def of(cls, given: object, what: str = "secrets") -> Secrets:
        """Return the secrets in a list of names, or a mapping from names to values; errors start with `what`.

        Raises:
            ConfigError: it is neither, a name is invalid, or a value is not text.
        """
        if isinstance(given, Secrets):
            return given
        if isinstance(given, Mapping):
            pairs: list[tuple[object, object]] = list(given.items())
        elif isinstance(given, Sequence) and not isinstance(given, str | bytes):
            pairs = [(name, None) for name in given]
        else:
            kind = "a string" if isinstance(given, str | bytes) else type(given).__name__
            raise ConfigError(
                f"{what} takes a list of names of environment variables, such as ['WANDB_API_KEY'], or a mapping from "
                f"names to values; found {kind}."
            )
        entries = []
        for position, (name, value) in enumerate(pairs):
            if not _is_name(name):  # it may be the secret itself, put in the wrong place
                raise ConfigError(f"{what}: entry {position} is not a name of an environment variable.")
            check_variable(name, what)
            if isinstance(given, Mapping) and (not isinstance(value, str) or "\0" in value):
                raise ConfigError(
                    f"{what}: the value of {name} must be text without NUL; found {type(value).__name__}."
                )
            entries.append((str(name), None if value is None else str(value)))
        return cls(tuple(dict(entries).items()))

    def read(self, environment: Mapping[str, str], what: str = "secrets") -> dict[str, str]:
        """Return the values, reading missing ones from `environment`.

        Raises:
            ConfigError: a variable is unset there, or empty; the message names it, after `what`.
        """
        values = {name: environment.get(name, "") if value is None else value for name, value in self.entries}
        missing = [name for name, value in self.entries if value is None and not values[name]]
        if missing:
            names = ", ".join(missing)
            raise ConfigError(
                f"{what}: {names} {'is' if len(missing) == 1 else 'are'} not set in this program's environment, from "
                "which the nodes should get it. Export it, or give a mapping from names to values."
            )
        return values

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the variables."""
        return tuple(name for name, _ in self.entries)

    def __bool__(self) -> bool:
        return bool(self.entries)

    def __repr__(self) -> str:
        return f"<secrets {', '.join(self.names) or 'none'}>"


def _is_name(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None


def merged(sources: Iterable[tuple[str, Secrets]], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the merged values of several sources' secrets; each source comes with its description for errors.

    Raises:
        ConfigError: one is not set, or two sources set a name to different values.
    """
    values: dict[str, str] = {}
    owner: dict[str, str] = {}
    for what, secrets in sources:
        for name, value in secrets.read(environment, what).items():
            if values.setdefault(name, value) != value:
                raise ConfigError(f"{owner[name]} and {what} give different values for the secret {name}; keep one.")
            owner.setdefault(name, what)
    return values
