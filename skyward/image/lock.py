"""`Lock`: the exact packages for an image's requirements, and their split into layers.

Large packages that change rarely come first: CUDA's libraries, frameworks, other large packages, medium packages. None
of these needs Debian packages, so they are below apt's layer. Packages that are built in the image may need its
headers, and are above it. Small packages, which most additions are, come last; if there are many, they form several
layers. The tier follows from the name, because many indexes do not report sizes, and from the size if it is reported;
otherwise compiled packages count as medium.

A package without a wheel is built in the image. It is kept apart, with the exact packages that its build requires.

`skyward.builder.packages.lock` makes it from the requirements in uv's format (`requirements_file`); here it is a value.
It contains no address except those that the image itself names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from skyward.model.image import Image, local_path, requirement_name

Tier = Literal["cuda", "framework", "large", "medium", "source", "light"]
TIERS: tuple[Tier, ...] = ("cuda", "framework", "large", "medium", "source", "light")
BELOW_APT: tuple[Tier, ...] = ("cuda", "framework", "large", "medium")

LARGE_BYTES = 50 * 10**6
MEDIUM_BYTES = 10**6
# If small or medium packages exceed this size, they are split by a hash of their names, so that one more leaves the
# other parts unchanged. The largest of seven parts of small packages is some 3 % of an image without large ones; beside
# large ones, four parts have as small a share. In total there are at most ten layers of packages.
_SPLIT_BYTES: Mapping[Tier, int] = {"medium": 50 * 10**6, "light": 3 * 10**6}
_MEDIUM_PARTS, _LIGHT_PARTS, _LIGHT_PARTS_BESIDE_LARGE = 2, 7, 4
_ASSUMED_BYTES = 170_000  # for a package of unknown size: the mean of the 55 small ones of a web application
# Up to some gigabytes, shared by releases of frameworks; also, nodes download layers in parallel, but each serially.
_CUDA = re.compile(r"nvidia-.+|cuda-.+")
# Frameworks and their dependencies: hundreds of megabytes that change together and rarely.
_FRAMEWORK = re.compile(
    r"torch|torchvision|torchaudio|torchcodec|pytorch-triton.*|triton.*|tensorrt.*|flashinfer-.+"
    r"|jaxlib|jax-(cuda|rocm)\d+-.+|libtpu.*|tensorflow|tensorflow-(cpu|gpu|intel|rocm|cpu-aws)|tf-nightly.*|cupy.*"
    r"|paddlepaddle.*|mxnet.*|xformers|flash-attn.*|vllm|sglang-kernel|(cudf|cuml|cugraph|rmm|libcudf|libcuml"
    r"|libcugraph|pylibraft|libraft)-.+"
)
# Similar in size, but added and removed individually.
_LARGE = re.compile(r"bitsandbytes|onnxruntime.*|pyspark|open3d|opencv-.+|xgboost|catboost|mkl|pyarrow|ray")
# Other medium packages, whose file tags do not show that.
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
        name: normalised name.
        pin: the exact requirement: `name==version`, or `name @ URL` if the image names it by URL.
        hashes: `sha256:...` of the files that may be installed, sorted; empty only for a commit of a repository.
        index: URL of its only index, if the image scopes it; "" for any.
        build: build requirements of a package without a wheel; None if it has one.
        size: bytes of the largest of these files, if the index reports it; affects only the layer.
        compiled: whether all its wheels are for one kind of machine; affects only the layer.
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
        """Its line in a requirements file."""
        return " ".join([self.pin, *(f"--hash={each}" for each in self.hashes)])

    @property
    def is_source(self) -> bool:
        """Whether it has to be built."""
        return self.build is not None

    @property
    def install(self) -> Install:
        """The requirements file of its layer that lists it: uv reads each with separate settings."""
        if self.build is None:
            return Install(index=self.index)
        return Install(self.name, self.index, tuple((each.index, each.name) for each in self.build if each.index))

    @property
    def tier(self) -> Tier:
        """The tier of layers it belongs to."""
        return "source" if self.is_source else tier_of(self.name, self.size, self.compiled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Package sources from requirements files, in addition to this site's own indexes.

    Attributes:
        default: replaces the site's default index; "" to keep that.
        extra: further indexes, asked before it in this order.
        find_links: folders or pages that list files.
    """

    default: str = ""
    extra: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class Install:
    """The input of one install command: all wheels of an index, or a package that is built. Wheels sort first.

    Attributes:
        package: the package to build; "" for wheels.
        index: URL of the only index to ask; "" for any.
        build: index and name of build requirements from indexes that the image scopes.
    """

    package: str = ""
    index: str = ""
    build: tuple[tuple[str, str], ...] = ()

    @property
    def file(self) -> str:
        """The name of its requirements file, which does not depend on other entries of the image."""
        if self.package:
            return f"{self.package}.source.txt"
        return f"index-{index_id(self.index)}.txt" if self.index else "locked.txt"

    @property
    def is_scoped(self) -> bool:
        """Whether its wheels come from one index; those of a built package are in a file."""
        return bool(self.index and not self.package)


@dataclass(frozen=True, slots=True)
class Group:
    """Packages that are installed in one layer.

    Attributes:
        tier: their tier.
        name: the name of the tier, with a number if it is split.
        packages: sorted by name; empty if not locked yet.
    """

    tier: Tier
    name: str
    packages: tuple[Package, ...] = ()

    @property
    def installs(self) -> tuple[Install, ...]:
        """The install commands for them, in order."""
        return tuple(sorted({package.install for package in self.packages}))


@dataclass(frozen=True, slots=True)
class Lock:
    """Packages sorted by name.

    Attributes:
        packages: the installed packages.
        sources: their additional sources; these do not affect the content, as each package has its hashes.
        projects: build requirements of local projects, by name.
        target: the platform in uv's terms, including glibc, for which it was locked and is installed.
    """

    packages: tuple[Package, ...] = ()
    sources: Sources = field(default=Sources(), compare=False)
    projects: tuple[tuple[str, tuple[Package, ...]], ...] = ()
    target: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "packages", tuple(sorted(self.packages, key=lambda package: package.name)))

    @property
    def groups(self) -> tuple[Group, ...]:
        """The packages split into layers, the lowest first."""
        tiers: dict[Tier, list[Package]] = {tier: [] for tier in TIERS}
        for package in self.packages:
            tiers[package.tier].append(package)
        has_large = bool(tiers["cuda"] or tiers["framework"] or tiers["large"])
        parts = {"medium": _MEDIUM_PARTS, "light": _LIGHT_PARTS_BESIDE_LARGE if has_large else _LIGHT_PARTS}
        groups = [group for tier in TIERS for group in _split(tier, tuple(tiers[tier]), parts.get(tier, 1))]
        return tuple(group for group in groups if group.packages)


def _split(tier: Tier, packages: tuple[Package, ...], parts: int) -> list[Group]:
    """Split the packages of a tier into groups; few packages stay in one."""
    size = sum(_ASSUMED_BYTES if package.size is None else package.size for package in packages)
    if parts == 1 or size <= _SPLIT_BYTES[tier]:
        return [Group(tier, tier, packages)]
    return [
        Group(tier, f"{tier}-{part}", tuple(package for package in packages if _hash(package.name) % parts == part))
        for part in range(parts)
    ]


def tier_of(name: str, size: int | None = None, compiled: bool = False) -> Tier:
    """Return the tier of a package; by its name alone if nothing else is known."""
    if _CUDA.fullmatch(name):
        return "cuda"
    if _FRAMEWORK.fullmatch(name):
        return "framework"
    if _LARGE.fullmatch(name) or (size or 0) >= LARGE_BYTES:
        return "large"
    is_some = compiled if size is None else size >= MEDIUM_BYTES
    return "medium" if is_some or _MEDIUM.fullmatch(name) else "light"


def unlocked_installs(image: Image) -> dict[Tier, tuple[Install, ...]]:
    """Return the installs of each tier for the packages that the image names; their dependencies count as small."""
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
    """Return the index of each scoped package."""
    return {name: index.url for index in image.pip_indexes for name in index.packages}


def tier_files(lock: Lock) -> tuple[tuple[str, str], ...]:
    """Return the requirements files of these layers by path in the build context: one per source, and one per build."""
    files: dict[str, list[str]] = {}
    for group in lock.groups:
        for package in group.packages:
            folder, install = f"requirements/{group.name}", package.install
            files.setdefault(f"{folder}/{install.file}", []).append(package.line)
            if package.build is not None:
                files |= _build_files(folder, install, package.build)
    for name, build in lock.projects:
        taken = Install(name, build=tuple((each.index, each.name) for each in build if each.index))
        files |= _build_files("requirements/local", taken, build)
    return tuple((path, "".join(f"{line}\n" for line in lines)) for path, lines in sorted(files.items()))


def _build_files(folder: str, install: Install, build: tuple[Package, ...]) -> dict[str, list[str]]:
    """Return the files of a build: its requirements, and what it takes from scoped indexes; see `uv_build`."""
    own = {(install.index, install.package)} if install.index and install.package else set()
    files = {f"{folder}/{install.package}.build.txt": [each.line for each in build]}
    if pages := [f"{index} {name}" for index, name in sorted(own | {*install.build})]:
        files[f"{folder}/{install.package}.pages.txt"] = pages
    return files


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])


def index_id(url: str) -> str:
    """Return the name of an index for files and variables."""
    return hashlib.sha256(url.encode()).hexdigest()[:8]


def requirements_file(
    image: Image, pip: Sequence[str], *, python: str, places: Mapping[str, Mapping[str, str]] | None = None
) -> str:
    """Return a `pyproject.toml` that lists requirements of an image.

    Indexes are `explicit`: uv takes from each only the packages that have it as their source, and these only from
    there. uv applies sources only to direct requirements, so a scoped package that the image does not list has its own
    extra, which is requested if the resolution turns out to need it.

    Args:
        image: the image, with its indexes.
        pip: the requirements.
        python: minor version it is for.
        places: where uv finds indexes at this site, by the URL in the image.
    """
    import tomli_w  # not loaded if nothing is locked

    names = {index.url: f"scoped-{number}" for number, index in enumerate(image.pip_indexes, start=1)}
    project: dict[str, Any] = {
        "name": PROJECT,
        "version": "0",
        "requires-python": f">={python}",
        "dependencies": list(pip),
    }
    if extras := unlisted(image, pip):
        project["optional-dependencies"] = {name: [name] for name in extras}
    indexes = [{"name": name, "explicit": True, **(places or {}).get(url, {"url": url})} for url, name in names.items()]
    sources = {name: {"index": names[url]} for name, url in scopes(image).items()}
    return tomli_w.dumps({"project": project, "tool": {"uv": {"index": indexes, "sources": sources}}})


def unlisted(image: Image, pip: Iterable[str]) -> tuple[str, ...]:
    """Return scoped packages that the requirements do not list themselves; they may still be needed as dependencies."""
    listed = {requirement_name(entry) for entry in pip}
    return tuple(sorted(name for index in image.pip_indexes for name in index.packages if name not in listed))
