"""`Image`: the contents of a node's environment, as a value. It validates and orders; `skyward.image` compiles it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from skyward.errors import ConfigError
from skyward.model import image_fields as fields
from skyward.model.ignore import normal_patterns
from skyward.model.image_fields import local_path as local_path
from skyward.model.image_fields import package_name as package_name
from skyward.model.image_fields import requirement_name as requirement_name
from skyward.model.parameters import suggesting

if TYPE_CHECKING:
    from skyward.model.infer import Inferred

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
        ConfigError: the URL is not http(s) or contains credentials, or a package name is invalid.
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
    """A Dockerfile whose image is the base of an `Image`. Paths are relative to the working directory.

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
    """A Python project whose locked packages an image installs. Paths are relative to the working directory.

    Attributes:
        path: directory of its `pyproject.toml`.
        groups: dependency groups to install with it; none by default, not even uv's default groups.
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
    """The environment of a pool's nodes. An immutable value: `dataclasses.replace` and the methods return new ones.

    Lists may be passed; they are stored as tuples, sorted if their order is insignificant, so that equal content makes
    equal values. Paths are relative to the working directory, in a TOML file to that of the file.

    Attributes:
        base: image to start from: a reference such as "python:3.12-slim" or one with a digest, or the path of a
            Dockerfile. None: the value of SKYWARD_BASE, else the official slim image of the Python version.
        python: minor version such as "3.12"; "auto" is the client's. Functions are sent as bytecode, so it must equal
            the client's.
        apt: Debian packages, `name` or `name=version`.
        pip: requirements (PEP 508) such as "torch==2.13.0", and paths of local wheels and projects such as
            "./dist/lib-1.0-py3-none-any.whl" or "./lib". As in a requirements file, "-r FILE" adds to `requirements`,
            "-c FILE" to `constraints`, and "-e " may precede a path or a repository.
        requirements: requirements files to install; a `pyproject.toml` stands for its `project.dependencies`, a
            `pylock.toml` for the packages that it locks.
        constraints: constraints files: versions that packages must have if they are installed.
        groups: dependency groups, else optional dependencies, of the nearest `pyproject.toml` to install.
        project: a project to install as locked by its `uv.lock`, or else `pylock.toml`; see `from_project`.
        pip_indexes: further package indexes, each for the packages it names.
        exclude_newer: exclude packages that were published later: a date (its end, in UTC) or a time with its zone.
            Stored as a time in UTC.
        build_env: environment of the build steps that install packages and run commands; nodes do not see it.
        env: environment of the running nodes. Build steps do not see it.
        run: shell commands, run in the given order after all packages are installed.
        secrets: names of secrets that build steps may read; their values are looked up when the image is built.
        includes: local modules and packages (paths) that are sent to the nodes when the pool starts.
        excludes: patterns of files to leave out of `includes`, in the format of .dockerignore.
        bake: put `includes` into the image's last layer, instead of sending them.
        platform: such as "linux/arm64"; None for that of the nodes.
        lock: file with the exact packages and base, written by `skyward lock`; an image that no longer matches it is
            refused. None: packages are locked on this machine. In a TOML file, NAME.lock beside it if that exists.
        origins: who added an entry, if not the user: pairs of "field:entry" and a name. Ignored in comparisons.

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
        """Return an image based on the result of a Dockerfile.

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
        """Return an image based on one in a registry, by tag or by digest.

        Raises:
            ConfigError: it is not a reference.
        """
        return cls(base=fields.reference(reference))

    @staticmethod
    def infer(code: object) -> Inferred:
        """Return the installed packages that code imports, as a proposal: print it, and copy what you need.

        The code is read, neither imported nor run; local modules are followed. The standard library, skyward, and
        dependencies of the packages are left out.

        Args:
            code: a function, a class, a module, or the path of a script or notebook.

        Raises:
            ConfigError: it is none of these, or its source cannot be read.
        """
        from skyward.model.infer import infer

        return infer(code)

    @classmethod
    def from_project(
        cls, path: str = ".", *, groups: Sequence[str] = (), extras: Sequence[str] = (), package: str | None = None
    ) -> Image:
        """Return an image with a Python project: its packages in the locked versions, the project itself last.

        The lock is `uv.lock`, of the project or its workspace, else `pylock.toml` (PEP 751). It must be up to date with
        the project's `pyproject.toml`; nothing is resolved again.

        Args:
            path: directory of the project's `pyproject.toml`.
            groups: dependency groups to install with it; none by default, not even uv's default groups.
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
        """Add shell commands after the existing ones."""
        return replace(self, run=(*self.run, *commands))

    def with_requirements(self, *files: str) -> Image:
        """Add requirements files."""
        return replace(self, requirements=(*self.requirements, *files))

    def with_groups(self, *names: str) -> Image:
        """Add dependency groups of the nearest `pyproject.toml`."""
        return replace(self, groups=(*self.groups, *names))

    def with_index(self, url: str, *packages: str) -> Image:
        """Install these packages from that index, and only from it."""
        return replace(self, pip_indexes=(*self.pip_indexes, PipIndex(url, packages)))

    def with_env(self, variables: Mapping[str, str] | None = None, /, **more: str) -> Image:
        """Add environment variables, replacing those of the same name."""
        return replace(self, env={**self.env, **(variables or {}), **more})

    def with_build_env(self, variables: Mapping[str, str] | None = None, /, **more: str) -> Image:
        """Add environment variables of build steps, replacing those of the same name."""
        return replace(self, build_env={**self.build_env, **(variables or {}), **more})

    def with_secrets(self, *names: str) -> Image:
        """Add secrets that build steps may read."""
        return replace(self, secrets=(*self.secrets, *names))

    def with_includes(self, *paths: str | os.PathLike[str]) -> Image:
        """Add local modules and packages that are sent to the nodes."""
        return replace(self, includes=(*self.includes, *(os.fspath(path) for path in paths)))

    def with_excludes(self, *patterns: str) -> Image:
        """Add patterns of files to leave out of `includes`, after the existing ones."""
        return replace(self, excludes=(*self.excludes, *patterns))

    def with_bake(self, bake: bool = True) -> Image:
        """Set whether `includes` are put into the image."""
        return replace(self, bake=bake)


def _base(base: Any) -> str | Dockerfile | None:
    if base is None or isinstance(base, Dockerfile):
        return base
    if isinstance(base, str) and fields.is_dockerfile(base):
        return Dockerfile(base)
    return fields.reference(base)


def _each(check: Any, name: str, values: Any) -> tuple[str, ...]:
    """Return the checked values, sorted, without duplicates."""
    return tuple(sorted({check(text) for text in fields.texts(name, values)}))


def _paths(name: str, values: Any) -> tuple[str, ...]:
    return tuple(sorted({fields.path(name, text) for text in fields.path_texts(name, values)}))


def _merged(indexes: Any) -> tuple[PipIndex, ...]:
    """Return one index per URL, sorted by URL; refuse a package that two of them claim."""
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
