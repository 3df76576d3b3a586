"""Packages are locked for the C library that the base has. The real uv on folders of small wheels."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward.builder.packages.lock import Request, lock_requirements, target_of
from skyward.errors import ConfigError, ImageError
from skyward.image import Lock
from skyward.model.image import Image
from tests.unit.builder.wheels import make_sdist, make_wheel

SYSTEM = '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n'


def _request(*pip: str, libc: str = "", platform: str = "linux/amd64") -> Request:
    return Request(image=Image(pip=pip), python="3.11", platform=platform, libc=libc)


def _lock(*pip: str, libc: str) -> Lock:
    return lock_requirements(_request(*pip, libc=libc))


@pytest.mark.parametrize(
    ("libc", "platform", "target"),
    [
        ("glibc 2.36", "linux/amd64", "x86_64-manylinux_2_36"),
        ("glibc 2.30", "linux/amd64", "x86_64-manylinux_2_28"),
        ("glibc 2.28", "linux/arm64", "aarch64-manylinux_2_28"),
        ("glibc 2.17", "linux/amd64", "x86_64-manylinux_2_17"),
        ("glibc 2.43", "linux/amd64", "x86_64-manylinux_2_40"),
        ("", "linux/amd64", "x86_64-manylinux_2_28"),
        ("glibc 2.36", "linux/riscv64", "riscv64-unknown-linux"),
    ],
)
def test_what_uv_resolves_for(libc: str, platform: str, target: str) -> None:
    """The newest of uv's platforms that the base has the library for."""
    assert target_of(_request(libc=libc, platform=platform)) == target


def test_an_old_library() -> None:
    """There are no packages for it."""
    with pytest.raises(ConfigError, match=r"The base has glibc 2\.12, and packages are made for glibc 2\.17 and newer"):
        target_of(_request(libc="glibc 2.12"))


def test_a_package_for_newer_libraries(wheels: Path) -> None:
    """Its wheel is locked where the base is new enough; else its source, if it has one, with what builds it."""
    make_wheel(wheels, "modern", "1.0", tag="cp311-cp311-manylinux_2_31_x86_64")
    make_sdist(wheels, "modern", "1.0", {"pyproject.toml": SYSTEM})
    new, old = _lock("modern", libc="glibc 2.36"), _lock("modern", libc="glibc 2.28")
    assert [package.is_source for package in (*new.packages, *old.packages)] == [False, True]
    assert new.packages[0].hashes != old.packages[0].hashes
    assert (new.target, old.target) == ("x86_64-manylinux_2_36", "x86_64-manylinux_2_28")


def test_every_file_that_the_library_allows(wheels: Path) -> None:
    """The node may take any of the wheels that were locked, and has been told to take no other."""
    make_wheel(wheels, "both", "1.0", tag="cp311-cp311-manylinux_2_28_x86_64")
    make_wheel(wheels, "both", "1.0", tag="cp311-cp311-manylinux_2_34_x86_64")
    new, old = _lock("both", libc="glibc 2.36"), _lock("both", libc="glibc 2.31")
    assert (len(new.packages[0].hashes), len(old.packages[0].hashes)) == (2, 1)


def test_no_file_that_the_library_allows(wheels: Path) -> None:
    """The error says which library the base has, which one is needed, and who asked."""
    make_wheel(wheels, "modern", "1.0", tag="cp311-cp311-manylinux_2_31_x86_64")
    make_wheel(wheels, "modern", "2.0", tag="cp311-cp311-manylinux_2_34_x86_64")
    make_wheel(wheels, "top", "1.0", "modern==1.0")
    with pytest.raises(
        ImageError,
        match=r"'modern' has no wheel for linux/amd64, Python 3.11 and glibc 2.28, .* Its wheels need glibc 2",
    ):
        _lock("modern", libc="glibc 2.28")
    with pytest.raises(ImageError, match=r"a dependency of top\. Its wheels need glibc 2\.31"):
        _lock("top", libc="glibc 2.28")


def test_another_base_keeps_the_versions(wheels: Path) -> None:
    """A base with a newer library is locked for anew, with the versions there were."""
    make_wheel(wheels, "leaf", "1.0")
    _lock("leaf", libc="glibc 2.36")
    make_wheel(wheels, "leaf", "2.0")
    assert [package.pin for package in _lock("leaf", libc="glibc 2.41").packages] == ["leaf==1.0"]
