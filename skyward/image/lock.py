"""`Lock`: the exact packages that an image's requirements came to, and how their install is split into two layers.

Made by `skyward.build.lock`; a value here. It holds no address but those the image itself names.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Literal

from skyward.model.image import Image, local_path, requirement_name

Tier = Literal["heavy", "light"]

COMMITS = "commits"
HEAVY_BYTES = 50 * 10**6
# Frameworks and what they bring: hundreds of megabytes that change together and rarely. They make a layer of their own
# so that no other requirement reinstalls them. The list is needed because many indexes do not tell sizes; where one
# does, a wheel from HEAVY_BYTES on belongs to them too.
_HEAVY = re.compile(
    r"torch|torchvision|torchaudio|triton|nvidia-.+|cuda-.+|jaxlib|jax-cuda\d+-.+|libtpu.*|tensorflow|tensorflow-(cpu|gpu|intel"
    r"|cpu-aws)|tf-nightly.*|cupy.*|paddlepaddle.*|mxnet.*|xformers|flash-attn|vllm|bitsandbytes|deepspeed|onnxruntime.*"
    r"|cudf-.+|cuml-.+|libcudf-.+|libcuml-.+|rmm-.+|pyspark|open3d|pyarrow|ray"
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
    """

    name: str
    pin: str
    hashes: tuple[str, ...] = ()
    index: str = ""
    size: int | None = field(default=None, compare=False)

    @property
    def line(self) -> str:
        """As it stands in a requirements file."""
        return " ".join([self.pin, *(f"--hash={each}" for each in self.hashes)])

    @property
    def source(self) -> str:
        """Which of the requirements files of its layer it stands in: uv reads each with settings of its own."""
        return self.index if self.hashes else COMMITS

    @property
    def is_heavy(self) -> bool:
        """Whether it belongs to the layer of what is large and changes rarely."""
        return is_heavy(self.name) or (self.size or 0) >= HEAVY_BYTES


@dataclass(frozen=True, slots=True)
class Lock:
    """Packages in the order of their names."""

    packages: tuple[Package, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "packages", tuple(sorted(self.packages, key=lambda package: package.name)))

    def of(self, tier: Tier) -> tuple[Package, ...]:
        """The packages of one layer."""
        return tuple(package for package in self.packages if package.is_heavy == (tier == "heavy"))


def is_heavy(name: str) -> bool:
    """Whether a package is known by its name to be large."""
    return bool(_HEAVY.fullmatch(name))


def tier_sources(image: Image, lock: Lock | None, tier: Tier) -> tuple[str, ...]:
    """Where the packages of a layer come from: URLs of scoped indexes, COMMITS, "" for the rest. Empty: no packages.

    Without a lock it is told by what the image names, which differs from the lock's answer only where a large package
    comes as a dependency of something else.
    """
    if lock is not None:
        return tuple(sorted({package.source for package in lock.of(tier)}))
    scoped = scopes(image)
    wanted = {""} if tier == "light" else set()
    for entry in image.pip:
        name = requirement_name(entry)
        if local_path(entry) is None and is_heavy(name) == (tier == "heavy"):
            wanted.add(COMMITS if "@ git+" in entry else scoped.get(name, ""))
    return tuple(sorted(wanted))


def scopes(image: Image) -> dict[str, str]:
    """The index each scoped package comes from."""
    return {name: index.url for index in image.pip_indexes for name in index.packages}


def tier_files(lock: Lock) -> tuple[tuple[str, str], ...]:
    """The requirements files of both layers, by path in the build context: one for each source."""
    files: dict[str, list[str]] = {}
    for package in lock.packages:
        tier = "heavy" if package.is_heavy else "light"
        files.setdefault(f"requirements/{tier}/{source_file(package.source)}", []).append(package.line)
    return tuple((path, "\n".join(lines) + "\n") for path, lines in sorted(files.items()))


def source_file(source: str) -> str:
    """The name of the requirements file for a source. It depends on nothing else the image names."""
    return {"": "locked.txt", COMMITS: "commits.txt"}.get(source) or f"index-{index_id(source)}.txt"


def index_id(url: str) -> str:
    """What an index is called in names of files and variables."""
    return hashlib.sha256(url.encode()).hexdigest()[:8]
