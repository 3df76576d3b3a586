"""`Image`: what a node's environment is made of, as a value. It validates and orders; compiling is `skyward.image`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from skyward.errors import ConfigError

_REFERENCE = re.compile(
    r"(?:(?:[a-zA-Z0-9.-]+|\[[0-9a-fA-F:]+\])(?::\d+)?/)?"  # registry
    r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)*"
    r"(?::\w[\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
_APT = re.compile(r"[a-z0-9][a-z0-9+.-]+(?::[a-z0-9]+)?(?:=[A-Za-z0-9.+:~-]+|/[A-Za-z0-9.-]+)?", re.ASCII)
_MINOR = re.compile(r"3\.\d{1,2}", re.ASCII)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PLATFORM = re.compile(r"linux/[a-z0-9]+(?:/v\d+)?", re.ASCII)
_PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
DEFAULT_EXCLUDES = ("*.egg-info", "*.pyc", ".git", ".venv", "__pycache__", "node_modules")


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
        names = _texts("pip_indexes.packages", self.packages)
        for name in names:
            _require(_PACKAGE.fullmatch(name), "pip_indexes.packages", name, "a package name without version")
        _require(names, "pip_indexes.packages", self.packages, "at least one package: an index is scoped")
        _check_url("pip_indexes.url", self.url)
        object.__setattr__(self, "url", self.url.rstrip("/"))
        object.__setattr__(self, "packages", tuple(sorted({package_name(name) for name in names})))


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The environment of a pool's nodes. A frozen value: `dataclasses.replace` and the methods give new ones.

    Lists may be given; they are kept as tuples, in one order where order means nothing, so that equal content is an
    equal value.

    Attributes:
        base: image to start from, a reference such as "python:3.12-slim" or one with a digest. None: what
            SKYWARD_BASE names, else the official slim image of the Python version.
        python: minor version such as "3.12"; "auto" is the client's. Functions travel as bytecode, so it must be
            the client's in the end.
        apt: Debian packages, `name` or `name=version`.
        pip: requirements (PEP 508), such as "torch==2.13.0".
        pip_indexes: further package indexes, each for the packages it names.
        env: environment of the running nodes. No build step sees it.
        run: shell commands, run in the given order after all packages are installed.
        includes: local modules and packages (paths) sent to the nodes when the pool starts; not part of the image.
        excludes: patterns of names left out of `includes`.
        platform: such as "linux/arm64"; None for that of the nodes.
        origins: who added an entry, if not the user: pairs of "field:entry" and a name. Never part of equality.

    Raises:
        ConfigError: a value is wrong; the message names the field and the value.
    """

    base: str | None = None
    python: str = "auto"
    apt: Sequence[str] = ()
    pip: Sequence[str] = ()
    pip_indexes: Sequence[PipIndex] = ()
    env: Mapping[str, str] = field(default_factory=Env)
    run: Sequence[str] = ()
    includes: Sequence[str] = ()
    excludes: Sequence[str] = DEFAULT_EXCLUDES
    platform: str | None = None
    origins: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.base is not None:
            _check_base(self.base)
        if self.python != "auto":
            _require(_matches(_MINOR, self.python), "python", self.python, "'auto' or a minor version such as '3.12'")
        if self.platform is not None:
            _require(_matches(_PLATFORM, self.platform), "platform", self.platform, "such as 'linux/amd64'")
        values: dict[str, Any] = {
            "apt": tuple(sorted({_checked_apt(name) for name in _texts("apt", self.apt)})),
            "pip": tuple(sorted({_requirement(text) for text in _texts("pip", self.pip)})) if self.pip else (),
            "pip_indexes": _merged(self.pip_indexes),
            "env": _checked_env(self.env),
            "run": _texts("run", self.run),
            "includes": tuple(sorted(set(_texts("includes", self.includes)))),
            "excludes": tuple(sorted(set(_texts("excludes", self.excludes)))),
        }
        for command in values["run"]:
            _require(command.strip() and _is_text(command), "run", command, "a shell command")
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def pip_install(self, *requirements: str) -> Image:
        """Add Python requirements."""
        return replace(self, pip=(*self.pip, *requirements))

    def apt_install(self, *packages: str) -> Image:
        """Add Debian packages."""
        return replace(self, apt=(*self.apt, *packages))

    def run_commands(self, *commands: str) -> Image:
        """Add shell commands after those that are there."""
        return replace(self, run=(*self.run, *commands))

    def with_env(self, variables: Mapping[str, str] | None = None, /, **more: str) -> Image:
        """Add environment variables; a variable that is there is replaced."""
        return replace(self, env={**self.env, **(variables or {}), **more})

    def with_index(self, url: str, *packages: str) -> Image:
        """Take these packages from that index, and only from it."""
        return replace(self, pip_indexes=(*self.pip_indexes, PipIndex(url, packages)))


def package_name(text: str) -> str:
    """A package's name in its normal form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", text).lower()


def requirement_name(requirement: str) -> str:
    """The package a requirement asks for, in normal form."""
    found = _PACKAGE.match(requirement)
    return package_name(found.group().rstrip("-_.")) if found else ""


def _require(holds: object, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"Image: {name} must be {wanted}; found {value!r}.")


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and bool(pattern.fullmatch(value))


def _is_text(value: object) -> bool:
    """Whether a value can be written down in UTF-8 and passed to a process."""
    return isinstance(value, str) and not re.search("[\0\ud800-\udfff]", value)


def _texts(name: str, values: Any) -> tuple[str, ...]:
    """A caller's list of texts as a tuple; one text alone is refused, as it would be taken letter by letter."""
    listed = isinstance(values, (list, tuple, set, frozenset))
    _require(listed and all(isinstance(v, str) for v in values), name, values, "a list of texts")
    return tuple(values)


def _checked_apt(name: str) -> str:
    _require(_APT.fullmatch(name), "apt", name, "Debian package names, such as 'git' or 'git=1:2.39.5-0'")
    return name


def _check_base(base: str) -> None:
    wanted = "an image reference such as 'python:3.12-slim'"
    _require(not str(base).startswith((".", "/", "~")), "base", base, f"{wanted}, not a path")
    _require(_matches(_REFERENCE, base), "base", base, wanted)


def _requirement(text: str) -> str:
    """A requirement in its one normal spelling."""
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ModuleNotFoundError:  # a node, where a user's module may hold an Image at its top and nothing compiles it
        return text.strip()
    try:
        found = Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(f"Image: pip must be requirements such as 'numpy>=2'; found {text!r} ({reason}).") from None
    if found.url:
        _check_url("pip", found.url, schemes=("http", "https", "git+https", "git+ssh"))
    found.name = package_name(found.name)
    return str(found)


def _check_url(name: str, url: str, schemes: tuple[str, ...] = ("http", "https")) -> None:
    clean = str(url).isprintable() and not re.search(r"[\s\"'\\]", str(url))
    _require(clean, name, url, "a URL without spaces, quotes or control characters")
    parts = urlsplit(url)
    if parts.password or (parts.username and not parts.scheme.endswith("ssh")):
        shown = url.replace(parts.netloc, f"***@{parts.netloc.rpartition('@')[2]}")
        raise ConfigError(
            f"Image: {name} holds a user name or password: {shown!r}. Credentials would end up in the image; give the "
            "URL without them and put them into this machine's settings of pip or uv, or map it in SKYWARD_INDEXES."
        )
    kind = "://, ".join(schemes) + "://"
    _require(parts.scheme in schemes and parts.hostname, name, url, f"a URL that starts with {kind}")


def _merged(indexes: Any) -> tuple[PipIndex, ...]:
    """One index per URL, in order of their URLs; a package claimed by two of them is refused."""
    listed = isinstance(indexes, (list, tuple, set, frozenset))
    _require(listed and all(isinstance(i, PipIndex) for i in indexes), "pip_indexes", indexes, "a list of PipIndex")
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


def _checked_env(env: Any) -> Env:
    if isinstance(env, Env):
        return env
    _require(isinstance(env, Mapping), "env", env, "a mapping of names to texts")
    for name, value in env.items():
        _require(_matches(_ENV_NAME, name), "env", name, "names of letters, digits and '_'")
        _require(_is_text(value), f"env[{name!r}]", value, "a text without NUL characters")
    return Env(env)
