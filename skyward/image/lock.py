"""`Lock`: the exact packages that an image's requirements came to, and how their install is split into layers.

What is large and changes rarely comes first: CUDA's libraries, frameworks, other large packages, what is of some size,
and then the small packages, which most additions are: one more of them remakes a layer of a few megabytes, and data or
a model as a package leaves the framework alone. Names decide, because many indexes do not tell sizes; so does the size
where one is told; where none is, compiled code is taken to be of some size.

Made by `skyward.build.lock`; a value here. It holds no address but those the image itself names.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Literal

from skyward.model.image import Image, local_path, requirement_name

Tier = Literal["cuda", "framework", "large", "medium", "light"]
TIERS: tuple[Tier, ...] = ("cuda", "framework", "large", "medium", "light")

COMMITS = "commits"
LARGE_BYTES = 50 * 10**6
MEDIUM_BYTES = 10**6
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One package of a lock.

    Attributes:
        name: in normal form.
        pin: the exact requirement: `name==version`, or `name @ URL` for what the image names by its URL.
        hashes: `sha256:...` of the files that may be installed, sorted; empty only for a commit of a repository.
        index: URL of the one index it comes from, where the image scopes it; "" for any.
        size: bytes of the largest of these files, where the index tells; decides nothing but the layer.
        compiled: whether all its wheels are for one kind of machine; decides nothing but the layer.
    """

    name: str
    pin: str
    hashes: tuple[str, ...] = ()
    index: str = ""
    size: int | None = field(default=None, compare=False)
    compiled: bool = field(default=False, compare=False)

    @property
    def line(self) -> str:
        """As it stands in a requirements file."""
        return " ".join([self.pin, *(f"--hash={each}" for each in self.hashes)])

    @property
    def source(self) -> str:
        """Which of the requirements files of its layer it stands in: uv reads each with settings of its own."""
        return self.index if self.hashes else COMMITS

    @property
    def tier(self) -> Tier:
        """The layer it belongs to."""
        return tier_of(self.name, self.size, self.compiled)


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


@dataclass(frozen=True, slots=True)
class Lock:
    """Packages in the order of their names, and where to look for them beside the site's indexes.

    Sources decide no content, as each package has its hashes.
    """

    packages: tuple[Package, ...] = ()
    sources: Sources = field(default=Sources(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "packages", tuple(sorted(self.packages, key=lambda package: package.name)))

    def of(self, tier: Tier) -> tuple[Package, ...]:
        """The packages of one layer."""
        return tuple(package for package in self.packages if package.tier == tier)


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


def tier_sources(image: Image, lock: Lock | None, tier: Tier) -> tuple[str, ...]:
    """Where the packages of a layer come from: URLs of scoped indexes, COMMITS, "" for the rest. Empty: no packages.

    Without a lock it is told by what the image names, as if all that comes as a dependency were small.
    """
    if lock is not None:
        return tuple(sorted({package.source for package in lock.of(tier)}))
    scoped = scopes(image)
    wanted = {""} if tier == "light" else set()
    for entry in image.pip:
        name = requirement_name(entry)
        if local_path(entry) is None and tier_of(name) == tier:
            wanted.add(COMMITS if "@ git+" in entry else scoped.get(name, ""))
    return tuple(sorted(wanted))


def scopes(image: Image) -> dict[str, str]:
    """The index each scoped package comes from."""
    return {name: index.url for index in image.pip_indexes for name in index.packages}


def tier_files(lock: Lock) -> tuple[tuple[str, str], ...]:
    """The requirements files of these layers, by path in the build context: one for each source."""
    files: dict[str, list[str]] = {}
    for package in lock.packages:
        files.setdefault(f"requirements/{package.tier}/{source_file(package.source)}", []).append(package.line)
    return tuple((path, "\n".join(lines) + "\n") for path, lines in sorted(files.items()))


def source_file(source: str) -> str:
    """The name of the requirements file for a source. It depends on nothing else the image names."""
    return {"": "locked.txt", COMMITS: "commits.txt"}.get(source) or f"index-{index_id(source)}.txt"


def index_id(url: str) -> str:
    """What an index is called in names of files and variables."""
    return hashlib.sha256(url.encode()).hexdigest()[:8]
