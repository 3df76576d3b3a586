"""`Image`: what a node's environment is made of, as a value. It validates and orders; compiling is `skyward.image`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from skyward.errors import ConfigError
from skyward.model import image_fields as fields
from skyward.model.ignore import normal_patterns
from skyward.model.image_fields import local_path as local_path
from skyward.model.image_fields import package_name as package_name
from skyward.model.image_fields import requirement_name as requirement_name
from skyward.model.parameters import suggesting

if TYPE_CHECKING:
    from skyward.builder.sources.infer import Inferred

DEFAULT_EXCLUDES = (
    "**/*.egg-info",
    "**/*.pyc",
    "**/.git",
    "**/.venv",
    "**/__pycache__",
    "**/node_modules",
)


class Env(Mapping[str, str]):
    """Environment variables as a hashable mapping, sorted by name."""

    __slots__ = ("_pairs",)

    def __init__(self, variables: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        self._pairs = tuple(sorted(dict(variables).items()))

    def __getitem__(self, name: str) -> str:
        for key, value in self._pairs:
            if key == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __hash__(self) -> int:
        return hash(self._pairs)

    def __repr__(self) -> str:
        return repr(dict(self._pairs))


@suggesting("sky.PipIndex")
@dataclass(frozen=True, slots=True)
class PipIndex:
    """A package index that serves the named packages, and nothing else.

    Attributes:
        url: the index (PEP 503), without user name or password: credentials belong to the site's own settings.
        packages: names of the packages that come from here, and only from here.

    Raises:
        ConfigError: the URL is not http(s) or holds credentials, or a name is no package name.
    """

    url: str
    packages: Sequence[str]

    def __post_init__(self) -> None:
        names = fields.texts("pip_indexes.packages", self.packages)
        packages = tuple(sorted({fields.package("pip_indexes.packages", name) for name in names}))
        fields.require(packages, "pip_indexes.packages", self.packages, "at least one package: an index is scoped")
        object.__setattr__(self, "url", fields.url("pip_indexes.url", self.url).rstrip("/"))
        object.__setattr__(self, "packages", packages)


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """A Dockerfile whose image an `Image` starts from. Paths are relative to the working directory.

    Attributes:
        path: of the Dockerfile.
        context: directory whose files it may copy.
        target: the stage to start from; None for its last.

    Raises:
        ConfigError: a path or the stage is wrong.
    """

    path: str
    context: str = "."
    target: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", fields.path("base", self.path))
        object.__setattr__(self, "context", fields.path("base.context", self.context))
        object.__setattr__(self, "target", fields.stage("base.target", self.target))

    def __str__(self) -> str:
        return self.path + (f" (stage {self.target})" if self.target else "")


@dataclass(frozen=True, slots=True)
class Project:
    """A Python project whose lock an image installs. Paths are relative to the working directory.

    Attributes:
        path: directory of its `pyproject.toml`.
        groups: dependency groups to install with it; none by default, also not those that uv takes by default.
        extras: optional dependencies to install with it.
        package: the workspace member to install; None for the project of that directory.

    Raises:
        ConfigError: a path or name is wrong.
    """

    path: str = "."
    groups: Sequence[str] = ()
    extras: Sequence[str] = ()
    package: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", fields.path("project", self.path))
        object.__setattr__(self, "groups", _each(fields.group, "project.groups", self.groups))
        object.__setattr__(self, "extras", _each(fields.extra, "project.extras", self.extras))
        if self.package is not None:
            fields.require(isinstance(self.package, str), "project.package", self.package, "a package name")
            object.__setattr__(self, "package", fields.package("project.package", self.package))


@suggesting("sky.Image")
@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The environment of a pool's nodes. A frozen value: `dataclasses.replace` and the methods give new ones.

    Lists may be given; they are kept as tuples, in one order where order means nothing, so that equal content is an
    equal value. Paths are relative to the working directory, in a TOML file to that of the file.

    Attributes:
        base: image to start from: a reference such as "python:3.12-slim" or one with a digest, or the path of a
            Dockerfile. None: what SKYWARD_BASE names, else the official slim image of the Python version.
        python: minor version such as "3.12"; "auto" is the client's. Functions travel as bytecode, so it must be
            the client's in the end.
        apt: Debian packages, `name` or `name=version`.
        pip: requirements (PEP 508) such as "torch==2.13.0", and paths of local wheels and projects such as
            "./dist/lib-1.0-py3-none-any.whl" or "./lib". As in a file of requirements, "-r FILE" adds to
            `requirements`, "-c FILE" to `constraints`, and "-e " may stand before a path or a repository.
        requirements: files of requirements to install; a `pyproject.toml` stands for its `project.dependencies`, a
            `pylock.toml` for the packages that it locks.
        constraints: files of constraints: versions that packages must have if they are installed.
        groups: dependency groups, else optional dependencies, of the nearest `pyproject.toml` to install.
        project: a project to install as its `uv.lock`, or else `pylock.toml`, has it; see `from_project`.
        pip_indexes: further package indexes, each for the packages it names.
        exclude_newer: take no package that was published later: a date (its end, in UTC) or a time with its zone.
            Kept as a time in UTC.
        build_env: environment of the build steps that install packages and run commands; nodes do not see it.
        env: environment of the running nodes. No build step sees it.
        run: shell commands, run in the given order after all packages are installed.
        secrets: names of secrets that build steps may read; their values are found when the image is built.
        includes: local modules and packages (paths) sent to the nodes when the pool starts.
        excludes: patterns of what to leave out of `includes`, as a .dockerignore file has them.
        bake: put `includes` into the image's last layer, instead of sending them.
        platform: such as "linux/arm64"; None for that of the nodes.
        lock: file with the exact packages and base, written by `skyward lock`; an image that no longer fits it is
            refused. None: packages are locked on this machine. In a TOML file, NAME.lock beside it if it is there.
        verify: file with the public key (PEM) that must have signed the image in the pool's registry, see
            `skyward build --sign`; None for no check. Never part of the image's identity.
        origins: who added an entry, if not the user: pairs of "field:entry" and a name. Never part of equality.

    Raises:
        ConfigError: a value is wrong; the message names the field and the value.
    """

    base: str | Dockerfile | None = None
    python: str = "auto"
    apt: Sequence[str] = ()
    pip: Sequence[str] = ()
    requirements: Sequence[str] = ()
    constraints: Sequence[str] = ()
    groups: Sequence[str] = ()
    project: Project | None = None
    pip_indexes: Sequence[PipIndex] = ()
    exclude_newer: str | None = None
    build_env: Mapping[str, str] = field(default_factory=Env)
    env: Mapping[str, str] = field(default_factory=Env)
    run: Sequence[str] = ()
    secrets: Sequence[str] = ()
    includes: Sequence[str] = ()
    excludes: Sequence[str] = DEFAULT_EXCLUDES
    bake: bool = False
    platform: str | None = None
    lock: str | None = None
    verify: str | None = None
    origins: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        pip, requirements, constraints = fields.requirement_words(fields.texts("pip", self.pip))
        project = self.project
        fields.require(project is None or isinstance(project, Project), "project", project, "a Project")
        values: dict[str, Any] = {
            "base": _base(self.base),
            "python": fields.python(self.python),
            "apt": _each(fields.apt, "apt", self.apt),
            "pip": _each(fields.requirement, "pip", pip),
            "requirements": _paths(
                "requirements", (*fields.path_texts("requirements", self.requirements), *requirements)
            ),
            "constraints": _paths("constraints", (*fields.path_texts("constraints", self.constraints), *constraints)),
            "groups": _each(fields.group, "groups", self.groups),
            "pip_indexes": _merged(self.pip_indexes),
            "exclude_newer": fields.exclude_newer(self.exclude_newer),
            "build_env": Env(fields.env("build_env", self.build_env)),
            "env": Env(fields.env("env", self.env)),
            "run": tuple(fields.command(text) for text in fields.texts("run", self.run)),
            "secrets": _each(fields.secret, "secrets", self.secrets),
            "includes": _paths("includes", self.includes),
            "excludes": normal_patterns(fields.texts("excludes", self.excludes)),
            "bake": fields.bake(self.bake),
            "platform": fields.platform(self.platform),
            "lock": None if self.lock is None else fields.path("lock", self.lock),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_dockerfile(cls, path: str, context: str = ".", target: str | None = None) -> Image:
        """An image that starts from what a Dockerfile makes.

        Args:
            path: of the Dockerfile.
            context: directory whose files it may copy.
            target: the stage to start from; None for its last.

        Raises:
            ConfigError: a path or the stage is wrong.
        """
        return cls(base=Dockerfile(path, context, target))

    @classmethod
    def from_registry(cls, reference: str) -> Image:
        """An image that starts from one in a registry, by tag or by digest.

        Raises:
            ConfigError: it is no reference.
        """
        return cls(base=fields.reference(reference))

    @staticmethod
    def infer(code: object) -> Inferred:
        """The packages that this interpreter has for what code imports, as a proposal: print it, write down what fits.

        The code is read, neither imported nor run; local modules are followed. The standard library, skyward, and what
        the packages themselves need are left out. `infer(train).diff(image)` compares it with an image.

        Args:
            code: a function, a class, a module, or the path of a script or notebook.

        Raises:
            ConfigError: it is none of these, or its source cannot be read.
        """
        # reading files is an effect, which has no place in this package; so the name is all that is known of it here
        found: Inferred = import_module("skyward.builder.sources.infer").infer(code)
        return found

    @classmethod
    def from_project(
        cls, path: str = ".", *, groups: Sequence[str] = (), extras: Sequence[str] = (), package: str | None = None
    ) -> Image:
        """An image with a Python project: its packages exactly as its lock has them, the project itself last.

        The lock is `uv.lock`, of the project or its workspace, else `pylock.toml` (PEP 751). It must be as new as
        the project's `pyproject.toml`; nothing is resolved again.

        Args:
            path: directory of the project's `pyproject.toml`.
            groups: dependency groups to install with it; none by default, also not those that uv takes by default.
            extras: optional dependencies to install with it.
            package: the workspace member to install; None for the project of that directory.

        Raises:
            ConfigError: a path or name is wrong.
        """
        return cls(project=Project(path, groups, extras, package))

    def pip_install(self, *requirements: str) -> Image:
        """Add Python requirements, or paths of local wheels and projects."""
        return replace(self, pip=(*self.pip, *requirements))

    def apt_install(self, *packages: str) -> Image:
        """Add Debian packages."""
        return replace(self, apt=(*self.apt, *packages))

    def run_commands(self, *commands: str) -> Image:
        """Add shell commands after those that are there."""
        return replace(self, run=(*self.run, *commands))

    def with_requirements(self, *files: str) -> Image:
        """Add files of requirements."""
        return replace(self, requirements=(*self.requirements, *files))

    def with_groups(self, *names: str) -> Image:
        """Add dependency groups of the nearest `pyproject.toml`."""
        return replace(self, groups=(*self.groups, *names))

    def with_index(self, url: str, *packages: str) -> Image:
        """Take these packages from that index, and only from it."""
        return replace(self, pip_indexes=(*self.pip_indexes, PipIndex(url, packages)))

    def with_env(self, variables: Mapping[str, str] | None = None, /, **more: str) -> Image:
        """Add environment variables; a variable that is there is replaced."""
        return replace(self, env={**self.env, **(variables or {}), **more})

    def with_build_env(self, variables: Mapping[str, str] | None = None, /, **more: str) -> Image:
        """Add environment variables of build steps; a variable that is there is replaced."""
        return replace(self, build_env={**self.build_env, **(variables or {}), **more})

    def with_secrets(self, *names: str) -> Image:
        """Add secrets that build steps may read."""
        return replace(self, secrets=(*self.secrets, *names))

    def with_includes(self, *paths: str | os.PathLike[str]) -> Image:
        """Add local modules and packages that are sent to the nodes."""
        return replace(self, includes=(*self.includes, *(os.fspath(path) for path in paths)))

    def with_excludes(self, *patterns: str) -> Image:
        """Add patterns of what to leave out of `includes`, after those that are there."""
        return replace(self, excludes=(*self.excludes, *patterns))

    def with_bake(self, bake: bool = True) -> Image:
        """Put `includes` into the image, or do not."""
        return replace(self, bake=bake)


def _base(base: Any) -> str | Dockerfile | None:
    if base is None or isinstance(base, Dockerfile):
        return base
    if isinstance(base, str) and fields.is_dockerfile(base):
        return Dockerfile(base)
    return fields.reference(base)


def _each(check: Any, name: str, values: Any) -> tuple[str, ...]:
    """Each value checked, in the order of the alphabet, once."""
    return tuple(sorted({check(text) for text in fields.texts(name, values)}))


def _paths(name: str, values: Any) -> tuple[str, ...]:
    return tuple(sorted({fields.path(name, text) for text in fields.path_texts(name, values)}))


def _merged(indexes: Any) -> tuple[PipIndex, ...]:
    """One index per URL, in order of their URLs; a package claimed by two of them is refused."""
    listed = isinstance(indexes, (list, tuple, set, frozenset))
    right = listed and all(isinstance(index, PipIndex) for index in indexes)
    fields.require(right, "pip_indexes", indexes, "a list of PipIndex")
    owner: dict[str, str] = {}
    for index in indexes:
        for package in index.packages:
            if owner.setdefault(package, index.url) != index.url:
                raise ConfigError(
                    f"Image: pip_indexes takes {package!r} from two indexes, {owner[package]} and {index.url}. "
                    "A package has one source; name it in one of them."
                )
    urls = sorted(set(owner.values()))
    return tuple(PipIndex(url, tuple(name for name, from_url in owner.items() if from_url == url)) for url in urls)
