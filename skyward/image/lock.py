"""`Lock`: the exact packages that an image's requirements came to, and how their install is split into layers.

What is large and changes rarely comes first: CUDA's libraries, frameworks, other large packages, packages of some size.
None of these needs Debian packages, and so they stand below apt's layer. Packages that are built in the image may need
its headers, and stand above it. Small packages, which most additions are, come last; where there are many of them they
are several layers. Names decide, because many indexes do not tell sizes; so does the size where one is told; where none
is, compiled code is taken to be of some size.

A package without a wheel is built in the image. It stands apart, with the exact packages that its build takes.

Made by `skyward.builder.packages.lock`, from the requirements in the form that uv reads (`requirements_file`); a value
here. It holds no address but those the image itself names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from skyward.model.image import Image, local_path, requirement_name

Tier = Literal["cuda", "framework", "large", "medium", "source", "light"]
TIERS: tuple[Tier, ...] = ("cuda", "framework", "large", "medium", "source", "light")
BELOW_APT: tuple[Tier, ...] = ("cuda", "framework", "large", "medium")

LARGE_BYTES = 50 * 10**6
MEDIUM_BYTES = 10**6
# Where small packages, or those of some size, come to more than this, they are split by a hash of their names, so that
# one more leaves the other parts as they are. The largest of seven parts of small packages is some 3 % of an image that
# has no large ones; beside large ones four are as small a share. Together there are at most ten layers of packages.
_SPLIT_BYTES: Mapping[Tier, int] = {"medium": 50 * 10**6, "light": 3 * 10**6}
_MEDIUM_PARTS, _LIGHT_PARTS, _LIGHT_PARTS_BESIDE_LARGE = 2, 7, 4
_ASSUMED_BYTES = 170_000  # of a package of unknown size: the mean of the 55 small ones of a web application
# Up to some gigabytes, which releases of frameworks share; also, nodes fetch two layers at once and one in turn.
_CUDA = re.compile(r"nvidia-.+|cuda-.+")
# Frameworks and what they bring: hundreds of megabytes that change together and rarely.
_FRAMEWORK = re.compile(
    r"torch|torchvision|torchaudio|torchcodec|pytorch-triton.*|triton.*|tensorrt.*|flashinfer-.+"
    r"|jaxlib|jax-(cuda|rocm)\d+-.+|libtpu.*|tensorflow|tensorflow-(cpu|gpu|intel|rocm|cpu-aws)|tf-nightly.*|cupy.*"
    r"|paddlepaddle.*|mxnet.*|xformers|flash-attn.*|vllm|sglang-kernel|(cudf|cuml|cugraph|rmm|libcudf|libcuml"
    r"|libcugraph|pylibraft|libraft)-.+"
)
# Of their size, and added or taken away by themselves.
_LARGE = re.compile(r"bitsandbytes|onnxruntime.*|pyspark|open3d|opencv-.+|xgboost|catboost|mkl|pyarrow|ray")
# Others that are known to be of some size, though no tag of a file tells.
_MEDIUM = re.compile(
    r"numpy|scipy|scikit-.+|pandas|polars.*|duckdb|matplotlib|pillow|numba|llvmlite|h5py|statsmodels|lightgbm|sympy"
    r"|networkx|jax|keras.*|transformers|tokenizers|datasets|accelerate|diffusers|deepspeed|sentence-transformers|grpcio"
    r"|aiohttp|lxml|cryptography|plotly|bokeh|setuptools|botocore"
)
PROJECT = "skyward-image-requirements"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One package of a lock.

    Attributes:
        name: in normal form.
        pin: the exact requirement: `name==version`, or `name @ URL` for what the image names by its URL.
        hashes: `sha256:...` of the files that may be installed, sorted; empty only for a commit of a repository.
        index: URL of the one index it comes from, where the image scopes it; "" for any.
        build: what a package that has no wheel is built with; None for one that has.
        size: bytes of the largest of these files, where the index tells; decides nothing but the layer.
        compiled: whether all its wheels are for one kind of machine; decides nothing but the layer.
    """

    name: str
    pin: str
    hashes: tuple[str, ...] = ()
    index: str = ""
    build: tuple[Package, ...] | None = None
    size: int | None = field(default=None, compare=False)
    compiled: bool = field(default=False, compare=False)

    @property
    def line(self) -> str:
        """As it stands in a requirements file."""
        return " ".join([self.pin, *(f"--hash={each}" for each in self.hashes)])

    @property
    def is_source(self) -> bool:
        """Whether it has to be built."""
        return self.build is not None

    @property
    def install(self) -> Install:
        """Which of the requirements files of its layer it stands in: uv reads each with settings of its own."""
        if self.build is None:
            return Install(index=self.index)
        return Install(self.name, self.index, tuple((each.index, each.name) for each in self.build if each.index))

    @property
    def tier(self) -> Tier:
        """The layer it belongs to."""
        return "source" if self.is_source else tier_of(self.name, self.size, self.compiled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where packages are looked for beside this site's own indexes, as files of requirements say.

    Attributes:
        default: index in place of the site's default one; "" for that.
        extra: further indexes, asked before it in this order.
        find_links: folders or pages that list files.
    """

    default: str = ""
    extra: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class Install:
    """What one install command takes: all wheels of an index, or a package that is built. Wheels sort first.

    Attributes:
        package: the one that is built; "" for wheels.
        index: URL of the one index to ask; "" for any.
        build: index and name of what the build takes from indexes that the image scopes.
    """

    package: str = ""
    index: str = ""
    build: tuple[tuple[str, str], ...] = ()

    @property
    def file(self) -> str:
        """The name of its requirements file. It depends on nothing else the image names."""
        if self.package:
            return f"{self.package}.source.txt"
        return f"index-{index_id(self.index)}.txt" if self.index else "locked.txt"

    @property
    def is_scoped(self) -> bool:
        """Whether its wheels come from one index; a package that is built has its indexes in `pages_file`."""
        return bool(self.index and not self.package)

    @property
    def pages(self) -> str:
        """Index and name of what a package and its build take from indexes that the image scopes, one in a line."""
        own = [(self.index, self.package)] if self.index and self.package else []
        return "".join(f"{index} {name}\n" for index, name in sorted({*own, *self.build}))


@dataclass(frozen=True, slots=True)
class Group:
    """Packages that are installed in one layer.

    Attributes:
        tier: theirs.
        name: the tier's; with a number where the tier is split.
        packages: in the order of their names; none where they are not locked yet.
    """

    tier: Tier
    name: str
    packages: tuple[Package, ...] = ()

    @property
    def installs(self) -> tuple[Install, ...]:
        """What is run for them, in this order."""
        return tuple(sorted({package.install for package in self.packages}))


@dataclass(frozen=True, slots=True)
class Lock:
    """Packages in the order of their names.

    Attributes:
        packages: what is installed.
        sources: where to look for them beside the site's indexes; that decides no content, as each has its hashes.
        projects: what local projects are built with, by their names.
        target: the platform in uv's words, glibc included: what it is installed for, as it was locked for.
    """

    packages: tuple[Package, ...] = ()
    sources: Sources = field(default=Sources(), compare=False)
    projects: tuple[tuple[str, tuple[Package, ...]], ...] = ()
    target: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "packages", tuple(sorted(self.packages, key=lambda package: package.name)))

    @property
    def groups(self) -> tuple[Group, ...]:
        """The packages as they are split into layers, the lowest first."""
        tiers: dict[Tier, list[Package]] = {tier: [] for tier in TIERS}
        for package in self.packages:
            tiers[package.tier].append(package)
        has_large = bool(tiers["cuda"] or tiers["framework"] or tiers["large"])
        parts = {"medium": _MEDIUM_PARTS, "light": _LIGHT_PARTS_BESIDE_LARGE if has_large else _LIGHT_PARTS}
        groups = [group for tier in TIERS for group in _split(tier, tuple(tiers[tier]), parts.get(tier, 1))]
        return tuple(group for group in groups if group.packages)


def _split(tier: Tier, packages: tuple[Package, ...], parts: int) -> list[Group]:
    """The packages of a tier in as many groups, or in one where they are few."""
    size = sum(_ASSUMED_BYTES if package.size is None else package.size for package in packages)
    if parts == 1 or size <= _SPLIT_BYTES[tier]:
        return [Group(tier, tier, packages)]
    return [
        Group(tier, f"{tier}-{part}", tuple(package for package in packages if _hash(package.name) % parts == part))
        for part in range(parts)
    ]


def tier_of(name: str, size: int | None = None, compiled: bool = False) -> Tier:
    """The layer of a package: by its name alone where nothing else is known of it."""
    if _CUDA.fullmatch(name):
        return "cuda"
    if _FRAMEWORK.fullmatch(name):
        return "framework"
    if _LARGE.fullmatch(name) or (size or 0) >= LARGE_BYTES:
        return "large"
    is_some = compiled if size is None else size >= MEDIUM_BYTES
    return "medium" if is_some or _MEDIUM.fullmatch(name) else "light"


def unlocked_installs(image: Image) -> dict[Tier, tuple[Install, ...]]:
    """The installs of each tier by what the image names, as if all that comes as a dependency were small."""
    scoped = scopes(image)
    found: dict[Tier, set[Install]] = {"light": {Install()}} if image.pip else {}
    for entry in image.pip:
        name = requirement_name(entry)
        if "@ git+" in entry:
            found.setdefault("source", set()).add(Install(name))
        elif local_path(entry) is None:
            found.setdefault(tier_of(name), set()).add(Install(index=scoped.get(name, "")))
    return {tier: tuple(sorted(found[tier])) for tier in TIERS if tier in found}


def scopes(image: Image) -> dict[str, str]:
    """The index each scoped package comes from."""
    return {name: index.url for index in image.pip_indexes for name in index.packages}


def tier_files(lock: Lock) -> tuple[tuple[str, str], ...]:
    """The requirements files of these layers, by path in the build context: one for each source, and for its build."""
    files: dict[str, list[str]] = {}
    for group in lock.groups:
        for package in group.packages:
            folder, install = f"requirements/{group.name}", package.install
            files.setdefault(f"{folder}/{install.file}", []).append(package.line)
            if package.build is not None:
                files |= _build_files(folder, install, package.build)
    for name, build in lock.projects:
        taken = Install(name, build=tuple((each.index, each.name) for each in build if each.index))
        files |= _build_files("requirements", taken, build)
    return tuple((path, "".join(f"{line}\n" for line in lines)) for path, lines in sorted(files.items()))


def _build_files(folder: str, install: Install, build: tuple[Package, ...]) -> dict[str, list[str]]:
    found = {f"{folder}/{build_file(install.package)}": [each.line for each in build]}
    return found | ({f"{folder}/{pages_file(install.package)}": install.pages.splitlines()} if install.pages else {})


def build_file(name: str) -> str:
    """The name of the file with what a package is built with."""
    return f"{name}.build.txt"


def pages_file(name: str) -> str:
    """The name of the file with the indexes that a build asks for single packages."""
    return f"{name}.pages.txt"


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])


def index_id(url: str) -> str:
    """What an index is called in names of files and variables."""
    return hashlib.sha256(url.encode()).hexdigest()[:8]


def requirements_file(
    image: Image,
    *,
    python: str,
    mirrors: Mapping[str, str] | None = None,
    known: Mapping[str, str] | None = None,
) -> str:
    """A `pyproject.toml` that lists the image's requirements.

    An index is `explicit`: uv takes from it the packages whose source it is, and those from nowhere else. uv heeds
    sources for direct requirements only, so a scoped package that the image does not list has an extra of its own,
    asked for when the resolution turns out to need it.

    Args:
        image: what to install; its local packages have their needs beside them and are left out.
        python: minor version it is for.
        mirrors: other addresses to use for indexes, by the URL in the image.
        known: what takes the place of a requirement: a file for a package of which all is known.
    """
    import tomli_w  # where nothing is to be locked, it is not loaded

    names = {index.url: f"scoped-{number}" for number, index in enumerate(image.pip_indexes, start=1)}
    project: dict[str, Any] = {
        "name": PROJECT,
        "version": "0",
        "requires-python": f">={python}",
        "dependencies": [(known or {}).get(entry, entry) for entry in image.pip if local_path(entry) is None],
    }
    if extras := unlisted(image):
        project["optional-dependencies"] = {name: [name] for name in extras}
    indexes = [{"name": name, "url": (mirrors or {}).get(url, url), "explicit": True} for url, name in names.items()]
    elsewhere = {requirement_name(entry) for entry in known or {}}
    sources = {name: {"index": names[url]} for name, url in scopes(image).items() if name not in elsewhere}
    return tomli_w.dumps({"project": project, "tool": {"uv": {"index": indexes, "sources": sources}}})


def unlisted(image: Image) -> tuple[str, ...]:
    """Scoped packages that the image does not list itself; they may still come as somebody's dependency."""
    listed = {requirement_name(entry) for entry in image.pip}
    return tuple(sorted(name for index in image.pip_indexes for name in index.packages if name not in listed))
