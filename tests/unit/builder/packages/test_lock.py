"""Locking with the real uv against folders of small wheels on this machine; nothing asks the network."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from skyward.builder.packages.lock import Request, lock_requirements
from skyward.errors import ConfigError, ImageError
from skyward.image import Lock, with_origin
from skyward.model.image import Image, PipIndex
from tests.unit.builder.wheels import make_index, make_sdist, make_wheel

CPU = "https://download.pytorch.org/whl/cpu"
SYSTEM = '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n'


def _lock(
    *pip: str, image: Image | None = None, upgrade: bool = False, platform: str = "linux/amd64", libc: str = ""
) -> Lock:
    request = Request(image=image or Image(pip=pip), python="3.11", platform=platform, libc=libc)
    return lock_requirements(request, upgrade=upgrade)


def _pins(lock: Lock) -> list[str]:
    return [package.pin for package in lock.packages]


def _files(folder: Path) -> list[Path]:
    return list((folder / "cache/skyward/locks").glob("*.json"))


def test_every_package_by_hash(wheels: Path) -> None:
    """The lock has what is required and what that needs, each with the hash of its file."""
    leaf = make_wheel(wheels, "leaf", "1.0")
    make_wheel(wheels, "top", "2.0", "leaf>=1")
    lock = _lock("top")
    assert _pins(lock) == ["leaf==1.0", "top==2.0"]
    assert lock.packages[0].hashes == ("sha256:" + hashlib.sha256(leaf.read_bytes()).hexdigest(),)
    assert lock.packages[0].size == leaf.stat().st_size
    assert str(wheels.parent) not in repr(lock)


def test_for_the_nodes_not_for_this_machine(wheels: Path) -> None:
    """Platform and Python of the nodes choose the files, and decide markers."""
    for tag in ("cp311-cp311-manylinux_2_17_x86_64", "cp311-cp311-manylinux_2_17_aarch64", "cp312-cp312-win_amd64"):
        make_wheel(wheels, "native", "1.0", tag=tag)
    make_wheel(wheels, "armored", "1.0")
    image = Image(pip=["native", "armored; platform_machine == 'aarch64'", "nowhere; python_version >= '3.12'"])
    one, other = _lock(image=image), _lock(image=image, platform="linux/arm64")
    assert (_pins(one), _pins(other)) == (["native==1.0"], ["armored==1.0", "native==1.0"])
    assert len(one.packages[0].hashes) == 1
    assert set(one.packages[0].hashes).isdisjoint(other.packages[1].hashes)


def test_kept_until_an_upgrade(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same request has the same lock, without uv and its sources; a damaged file is made again."""
    make_wheel(wheels, "leaf", "1.0")
    first = _lock("leaf")
    (file,) = _files(wheels.parent)
    file.write_text(file.read_text()[:40])
    assert _lock("leaf") == first
    make_wheel(wheels, "leaf", "1.1")
    with monkeypatch.context() as without:
        without.setattr("skyward.builder.packages.resolver.find_uv", lambda: "/nowhere/uv")
        assert _lock("leaf") == first
    assert _pins(_lock("leaf", upgrade=True)) == ["leaf==1.1"]
    assert _pins(_lock("leaf")) == ["leaf==1.1"]


def test_one_more_requirement_moves_no_other(wheels: Path) -> None:
    """A description that was extended or cut, and one on another base, keep the versions; an unrelated one does not."""
    make_wheel(wheels, "big", "1.0")
    make_wheel(wheels, "small", "1.0")
    _lock("big", libc="glibc 2.36")
    make_wheel(wheels, "big", "2.0")
    assert _pins(_lock("big", "small", libc="glibc 2.41")) == ["big==1.0", "small==1.0"]
    assert _pins(_lock("small")) == ["small==1.0"]
    assert _pins(_lock("big>=2", "small")) == ["big==2.0", "small==1.0"]


def test_a_package_stays_in_its_layer(wheels: Path) -> None:
    """Its size once known is kept while it is the same package: to move it would install it again."""
    make_wheel(wheels, "big", "1.0")
    make_wheel(wheels, "small", "1.0")
    assert [package.tier for package in _lock("big").packages] == ["light"]
    (file,) = _files(wheels.parent)
    file.write_text(file.read_text().replace('"size": ', '"size": 60000', 1))
    assert [package.tier for package in _lock("big", "small").packages] == ["large", "light"]


def test_a_scoped_package_has_one_source(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes from its index (here a folder) also where only another package requires it; others never do.

    Neither the folder nor its address is in the lock or in the file that keeps it.
    """
    make_wheel(wheels, "torch", "9.0")
    make_wheel(wheels, "holder", "1.0", "torch")
    make_wheel(wheels.parent / "cpu", "torch", "1.0+cpu")
    make_wheel(wheels.parent / "cpu", "holder", "99.0")
    monkeypatch.setenv("SKYWARD_INDEXES", f'{{"{CPU}": "{wheels.parent / "cpu"}"}}')
    monkeypatch.setattr("skyward.builder.site.indexes._UV_SYSTEM", Path("/nowhere"))
    (wheels.parent / "pip.conf").write_text(f"[global]\nindex-url = {wheels}\n")  # an index, so that there are two
    lock = _lock(image=Image(pip=["holder"], pip_indexes=[PipIndex(CPU, ["torch", "torchvision"])]))
    assert _pins(lock) == ["holder==1.0", "torch==1.0+cpu"]
    assert [package.index for package in lock.packages] == ["", CPU]
    assert str(wheels.parent) not in repr(lock) + "".join(file.read_text() for file in _files(wheels.parent))


def test_a_public_package_cannot_replace_a_private_one(
    wheels: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two indexes: the private one's 1.0 wins over 99.0 of the public one, unless uv's setting says otherwise.

    Packages that only the public one has still come from there, and what the private one has in another version only
    is an error that says why.
    """
    make_wheel(wheels.parent / "private", "internal", "1.0")
    make_wheel(wheels.parent / "public", "internal", "99.0")
    make_wheel(wheels.parent / "public", "common", "1.0")
    public, private = (make_index(wheels.parent / name) for name in ("public", "private"))
    (wheels.parent / "pip.conf").write_text(f"[global]\nindex-url = {public}\nextra-index-url = {private}\n")
    assert _pins(_lock("internal", "common")) == ["common==1.0", "internal==1.0"]
    assert not caplog.records
    with pytest.raises(ImageError, match=r"first index that has a package.*Image\(pip_indexes"):
        _lock("internal>=2")
    monkeypatch.setenv("UV_INDEX_STRATEGY", "unsafe-best-match")
    assert _pins(_lock("internal", upgrade=True)) == ["internal==99.0"]
    (record,) = caplog.records
    assert "index-strategy=unsafe-best-match" in record.getMessage()


def test_what_cannot_be_locked(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says who requires what uv names, and does not repeat a login."""
    make_wheel(wheels, "leaf", "1.0")
    make_wheel(wheels, "leaf", "2.0")
    make_wheel(wheels, "top", "1.0", "leaf>=2")
    plugin = with_origin(Image(pip=["leaf<2"]), Image(pip=["leaf<2", "top"]), "plugin big")
    for image, message in (
        (with_origin(Image(), Image(pip=["gone>=1"]), "plugin torch"), "plugin torch.*gone was not found"),
        (Image(pip=["leaf==3"]), r"your pip=\['leaf==3'\].*your image requires leaf==3"),
        (plugin, r"your pip=\['leaf<2'\], plugin big.*leaf>=2"),
    ):
        with pytest.raises(ImageError, match=f"(?s){message}"):
            _lock(image=image)
    with pytest.raises(ConfigError, match=r"cannot be locked for 'linux/s390x'; .*linux/amd64"):
        _lock("leaf", platform="linux/s390x")
    make_wheel(wheels.parent / "undated", "leaf", "1.0")
    (wheels.parent / "pip.conf").write_text(f"[global]\nindex-url = {make_index(wheels.parent / 'undated')}\n")
    with pytest.raises(ImageError, match="leaf"):
        _lock(image=Image(pip=["leaf"], exclude_newer="2020-01-01"))
    (wheels.parent / "pip.conf").write_text("[global]\nindex-url = http://user:canary@127.0.0.1:9/simple\n")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(ImageError, match="Failed to fetch") as caught:
        _lock("leaf")
    assert "canary" not in str(caught.value)


def test_packages_for_the_base_s_c_library(wheels: Path) -> None:
    """A wheel is locked where the base is new enough; else the source, or an error names the library that is needed."""
    with pytest.raises(ConfigError, match=r"The base has glibc 2\.12, and packages are made for glibc 2\.17"):
        _lock("modern", libc="glibc 2.12")
    for minor in (31, 34):
        make_wheel(wheels, "modern", "1.0", tag=f"cp311-cp311-manylinux_2_{minor}_x86_64")
    make_wheel(wheels, "top", "1.0", "modern==1.0")
    with pytest.raises(ImageError, match=r"(?s)modern==1\.0 has no wheels.*manylinux_2_31"):
        _lock("top", libc="glibc 2.28")
    make_sdist(wheels, "modern", "1.0", {"pyproject.toml": SYSTEM})
    found = [_lock("modern", libc=f"glibc 2.{minor}").packages[0] for minor in (28, 31, 36)]
    assert [(package.is_source, len(package.hashes)) for package in found] == [(True, 1), (False, 1), (False, 2)]
