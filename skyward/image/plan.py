"""`BaseFacts`, the compiler's knowledge of a base, and `Plan`, its result: layers, Dockerfile, the image's identity.

Entries of an image have an origin, which errors name: the user's own field, or the plugin that added the entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from skyward.image.lock import Lock
from skyward.model.image import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFacts:
    """The contents of a base image.

    Attributes:
        user: its user; "" if it names none.
        home: the value of its variable HOME; "" if not set.
        runs_commands: whether its entry point runs the command it receives, as an init or a script with `exec "$@"`
            does.
        healthcheck: whether it has a health check.
        stop_signal: the signal that asks its containers to end; "" for the engine's default.
        shell: the shell of its own steps, unless that is /bin/sh.
        onbuild: instructions that it adds to builds.
        pythons: minor version and path of the Pythons that are found by name, the preferred one first.
        libc: "glibc 2.36", "musl", or "" if unknown.
        system: name of its distribution; "" if unknown.
        apt: whether it has apt-get.
        missing: programs that skyward's steps need, and it lacks.
    """

    user: str = ""
    home: str = ""
    runs_commands: bool = True
    healthcheck: bool = False
    stop_signal: str = ""
    shell: Sequence[str] = ()
    onbuild: Sequence[str] = ()
    pythons: Sequence[tuple[str, str]] = ()
    libc: str = ""
    system: str = ""
    apt: bool = False
    missing: Sequence[str] = ()

    @classmethod
    def of(cls, document: dict[str, Any]) -> BaseFacts:
        """Create the value from fields stored as JSON; see `dataclasses.asdict`.

        Raises:
            TypeError: the fields are those of another version.
        """
        pythons = tuple((version, path) for version, path in document.pop("pythons"))
        lists = {name: tuple(value) for name, value in document.items() if isinstance(value, list)}
        return cls(**{**document, **lists, "pythons": pythons})

    @property
    def user_in_the_end(self) -> str:
        """The user for images built on it, which its added instructions may change."""
        named = [words[1] for words in map(str.split, self.onbuild) if words[0].upper() == "USER" and len(words) == 2]
        return named[-1] if named else self.user

    def lacks(self, python: str) -> bool:
        """Return whether it has no Python of a minor version."""
        return all(version != python for version, _ in self.pythons)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One instruction of the Dockerfile.

    Attributes:
        stage: the build stage it belongs to.
        step: its number among the stage's steps, as BuildKit counts them; None for instructions that run nothing.
        name: a short description for users.
        text: the instruction in the Dockerfile.
        origin: who requested it: a field of the user's image, a plugin, skyward itself. Never part of the identity.
    """

    stage: str
    step: int | None
    name: str
    text: str
    origin: str = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """Files of this machine that a build copies into its context.

    Attributes:
        folder: their folder in the context.
        digest: SHA-256 (hex) of their paths, modes and contents.
        target: the part of `local/` to install, for a package; "" for code.
        is_project: whether they are the project of the image, which has its own layer.
        entry: the image's entry for them, for a package.
        files: path below `folder`, and location of each file on this machine. Never part of the identity.
    """

    folder: str
    digest: str
    target: str = ""
    is_project: bool = False
    entry: str = field(default="", compare=False)
    files: tuple[tuple[str, str], ...] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The complete input of a build, and the name of its result.

    Attributes:
        image: the description this was compiled from, plugins applied.
        python: minor version of Python in the image.
        platform: OCI platform such as "linux/amd64".
        base: the reference in FROM.
        dockerfile: the text.
        layers: the instructions with their origins.
        files: small text files of the build context, by path.
        copied: files of this machine that go into the build context.
        build_args: build arguments the text needs, by name.
        lock: the locked packages; None while they are not locked.
        given: facts about its base; None if not yet known.
        inputs: everything that determines the image's content, by name, each as canonical JSON.
        identity: SHA-256 (hex) of the inputs, without origins.
        tag: the image's local name, `skyward:sky-<epoch>-<first 16 hex of the identity>`.
        labels: labels of the image, a read-only mapping.
    """

    image: Image
    python: str
    platform: str
    base: str
    dockerfile: str = field(repr=False)
    layers: tuple[Layer, ...] = field(repr=False)
    files: tuple[tuple[str, str], ...] = field(repr=False)
    copied: tuple[Copied, ...] = field(default=(), repr=False)
    build_args: tuple[tuple[str, str], ...] = field(repr=False)
    lock: Lock | None = field(default=None, repr=False)
    given: BaseFacts | None = field(default=None, repr=False)
    inputs: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    identity: str
    tag: str
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False, hash=False)

    @property
    def user(self) -> str:
        """The user of the image; "" if none is named."""
        return self.given.user_in_the_end if self.given else ""


def with_origin(before: Image, after: Image, name: str) -> Image:
    """Return `after`, attributing every entry that `before` lacks to `name`, such as "plugin torch"."""
    known = {**dict(after.origins), **dict(before.origins)}
    old = set(_entries(before))
    known.update({key: name for key in _entries(after) if key not in old})
    return replace(after, origins=tuple(sorted(known.items())))


def origin_of(image: Image, field: str, entry: str) -> str:
    """Describe who requested one entry of a field, for an error."""
    return dict(image.origins).get(f"{field}:{entry}") or f"your {field}=[{entry!r}]"


def origins_of(image: Image, field: str, entries: tuple[str, ...]) -> str:
    """Describe who requested these entries of a field: one list for the user, one per plugin."""
    added = dict(image.origins)
    groups: dict[str, list[str]] = {}
    for entry in entries:
        groups.setdefault(added.get(f"{field}:{entry}", ""), []).append(entry)
    return ", ".join(f"{name or 'your'} {field}={listed!r}" for name, listed in sorted(groups.items()))


def _entries(image: Image) -> list[str]:
    keys = [f"base:{image.base}"] if image.base else []
    keys += [f"apt:{entry}" for entry in image.apt]
    keys += [f"pip:{entry}" for entry in image.pip]
    keys += [f"run:{entry}" for entry in image.run]
    keys += [f"env:{entry}" for entry in image.env]
    return keys + [f"pip_indexes:{index.url}" for index in image.pip_indexes]
