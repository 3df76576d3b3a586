"""The properties of a base image that decide what is built on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python of a base.

    Attributes:
        path: where it is called, such as "/app/.venv/bin/python".
        version: its minor version, such as "3.11"; "" where its files do not tell.
        environment: directory of the virtual environment that it is of; "" for none.
    """

    path: str
    version: str
    environment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFacts:
    """What a base image has.

    Attributes:
        user: the user that it names; "" for none.
        home: the value of its variable HOME; "" for none.
        entrypoint: what it runs containers' commands with.
        runs_commands: whether that runs the command it is given, as an init or a script with `exec "$@"` does.
        healthcheck: whether it has one.
        stop_signal: the signal that asks its containers to end; "" for the engine's own.
        shell: what its own steps ran with, where that is not /bin/sh.
        onbuild: instructions that it adds to builds.
        pythons: those that are found by name, the one that counts first.
        libc: "glibc 2.36", "musl", or "" for none that is known.
        system: name of its distribution; "" for none.
        apt: whether it has apt-get.
        cuda: version of CUDA; "" for none.
        missing: programs that steps of ours need, and it lacks.
    """

    user: str = ""
    home: str = ""
    entrypoint: Sequence[str] = ()
    runs_commands: bool = True
    healthcheck: bool = False
    stop_signal: str = ""
    shell: Sequence[str] = ()
    onbuild: Sequence[str] = ()
    pythons: Sequence[Interpreter] = ()
    libc: str = ""
    system: str = ""
    apt: bool = False
    cuda: str = ""
    missing: Sequence[str] = ()

    @classmethod
    def of(cls, document: dict[str, Any]) -> BaseFacts:
        """The value whose fields were kept as JSON, see `dataclasses.asdict`.

        Raises:
            TypeError: they are those of another version.
        """
        pythons = tuple(Interpreter(**each) for each in document.pop("pythons"))
        lists = {name: tuple(value) for name, value in document.items() if isinstance(value, list)}
        return cls(**{**document, **lists, "pythons": pythons})

    @property
    def user_in_the_end(self) -> str:
        """The user that it names for what is built on it: instructions that it adds to builds may name another."""
        named = [words[1] for words in map(str.split, self.onbuild) if words[0].upper() == "USER" and len(words) == 2]
        return named[-1] if named else self.user

    def lacks(self, python: str) -> bool:
        """Whether it has no Python of a minor version, as far as is known."""
        return all(each.version not in (python, "") for each in self.pythons)
