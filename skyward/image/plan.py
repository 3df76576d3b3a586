"""`BaseFacts`, what the compiler knows of a base, and `Plan`, its result: layers, Dockerfile, the image's identity.

Entries of an image have an origin, which errors name: the user's own field, or the plugin that added one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from skyward.image.lock import Lock
from skyward.model.image import Image


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One instruction of the Dockerfile.

    Attributes:
        stage: the build stage it belongs to.
        step: its number among the stage's steps, as BuildKit counts them; None for instructions that run nothing.
        name: what it does, in a few words for people.
        text: the instruction as it stands in the Dockerfile.
        origin: who asked for it: a field of the user's image, a plugin, skyward itself. Never part of the identity.
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
        folder: where they go in the context.
        digest: SHA-256 (hex) over their paths, modes and contents.
        target: what of `local/` to install, where they are a package; "" for code.
        is_project: whether they are the project that the image is for, which has a layer of its own.
        entry: what the image calls them, where they are a package.
        files: path below `folder`, and where each file is on this machine. Never part of the identity.
    """

    folder: str
    digest: str
    target: str = ""
    is_project: bool = False
    entry: str = field(default="", compare=False)
    files: tuple[tuple[str, str], ...] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseBuild:
    """A base that is built first, from a Dockerfile of the user's.

    Attributes:
        dockerfile: where it is on this machine.
        target: its stage to build; None for the last.
        platform: it is built for.
        digest: SHA-256 (hex) over the Dockerfile, the stage, the platform and the files.
        tag: the name of the image it becomes.
        files: what it may copy: path in the context, and where each file is on this machine.
        parent: the image that it is built from in the end; "" where that is unknown.
        user: the user that its text names; "" for none, or for one that only the image it starts from names.
    """

    dockerfile: str = field(compare=False)
    target: str | None
    platform: str
    digest: str
    tag: str
    files: tuple[tuple[str, str], ...] = field(compare=False, repr=False)
    parent: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything a build needs, and the name of what comes out.

    Attributes:
        image: the description this was compiled from, plugins applied.
        python: minor version of Python in the image.
        platform: OCI platform such as "linux/amd64".
        base: reference that stands in FROM.
        dockerfile: the text.
        layers: the instructions with who asked for them.
        files: small text files of the build context, by path.
        copied: files of this machine that go into the build context.
        build_args: build arguments the text needs, by name.
        lock: the packages that its requirements came to; None while they are not locked.
        base_build: how its base is made, if from a Dockerfile.
        given: what its base has; None while that is not known.
        inputs: everything that decides the image's content, by name, each as canonical JSON.
        identity: SHA-256 (hex) over the inputs; origins are not in it.
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
    base_build: BaseBuild | None = None
    given: BaseFacts | None = field(default=None, repr=False)
    inputs: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    identity: str
    tag: str
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False, hash=False)

    @property
    def user(self) -> str:
        """The user that the image names; "" for none. Of a base that is to be built, what its Dockerfile tells."""
        if self.given is not None:
            return self.given.user_in_the_end
        return self.base_build.user if self.base_build else ""


def with_origin(before: Image, after: Image, name: str) -> Image:
    """`after`, with every entry that `before` does not have attributed to `name`, such as "plugin torch"."""
    known = {**dict(after.origins), **dict(before.origins)}
    old = set(_entries(before))
    known.update({key: name for key in _entries(after) if key not in old})
    return replace(after, origins=tuple(sorted(known.items())))


def origin_of(image: Image, field: str, entry: str) -> str:
    """Who asked for one entry of a field, in words for an error."""
    return dict(image.origins).get(f"{field}:{entry}") or f"your {field}=[{entry!r}]"


def origins_of(image: Image, field: str, entries: tuple[str, ...]) -> str:
    """Who asked for these entries of a field: the user's in one list, each plugin's in one."""
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
