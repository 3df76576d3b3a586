"""Locking with the real uv against folders of small wheels on this machine; nothing asks the network."""

from __future__ import annotations

import hashlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from skyward.builder.packages.lock import Request, find_uv, lock_requirements
from skyward.builder.site.index_server import FolderServer
from skyward.errors import ConfigError, ImageError
from skyward.image import Lock, with_origin
from skyward.model.image import Image, PipIndex
from tests.unit.builder.wheels import make_wheel

CPU = "https://download.pytorch.org/whl/cpu"


def _lock(*pip: str, image: Image | None = None, upgrade: bool = False, platform: str = "linux/amd64") -> Lock:
    request = Request(image=image or Image(pip=pip), python="3.11", platform=platform)
    return lock_requirements(request, upgrade=upgrade)


def _pins(lock: Lock) -> list[str]:
    return [package.pin for package in lock.packages]


def _files(folder: Path) -> str:
    return "".join(path.read_text() for path in (folder / "cache/skyward/locks").glob("*.json"))


def test_every_package_by_hash(wheels: Path) -> None:
    """The lock has what is asked for and what that needs, each with the hash of its file."""
    leaf = make_wheel(wheels, "leaf", "1.0")
    make_wheel(wheels, "top", "2.0", "leaf>=1")
    lock = _lock("top")
    assert _pins(lock) == ["leaf==1.0", "top==2.0"]
    assert lock.packages[0].hashes == ("sha256:" + hashlib.sha256(leaf.read_bytes()).hexdigest(),)


def test_for_the_nodes_not_for_this_machine(wheels: Path) -> None:
    """Platform and Python of the nodes choose the files, and decide markers."""
    make_wheel(wheels, "native", "1.0", tag="cp311-cp311-manylinux_2_17_x86_64")
    make_wheel(wheels, "native", "1.0", tag="cp311-cp311-manylinux_2_17_aarch64")
    make_wheel(wheels, "native", "1.0", tag="cp312-cp312-manylinux_2_17_x86_64")
    make_wheel(wheels, "armored", "1.0")
    image = Image(pip=["native", "armored; platform_machine == 'aarch64'", "nowhere; python_version >= '3.12'"])
    one, other = _lock(image=image), _lock(image=image, platform="linux/arm64")
    assert (_pins(one), _pins(other)) == (["native==1.0"], ["armored==1.0", "native==1.0"])
    assert len(one.packages[0].hashes) == 1
    assert set(one.packages[0].hashes).isdisjoint(other.packages[1].hashes)


def test_kept_until_an_upgrade_is_asked_for(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same question has the same answer, without uv and without its sources, until an upgrade is asked for."""
    make_wheel(wheels, "leaf", "1.0")
    first = _lock("leaf")
    make_wheel(wheels, "leaf", "1.1")
    with monkeypatch.context() as without:
        without.setattr("skyward.builder.packages.resolver.find_uv", lambda: "/nowhere/uv")
        assert _lock("leaf") == first
    assert _pins(_lock("leaf", upgrade=True)) == ["leaf==1.1"]
    assert _pins(_lock("leaf")) == ["leaf==1.1"]


def test_one_more_requirement_moves_no_other(wheels: Path) -> None:
    """A description that was extended or cut keeps the versions it had; an unrelated one takes the newest."""
    make_wheel(wheels, "big", "1.0")
    make_wheel(wheels, "small", "1.0")
    _lock("big")
    make_wheel(wheels, "big", "2.0")
    assert _pins(_lock("big", "small")) == ["big==1.0", "small==1.0"]
    assert _pins(_lock("small")) == ["small==1.0"]
    assert _pins(_lock("big>=1", "small")) == ["big==2.0", "small==1.0"]
    assert _pins(_lock("big>=2", "small")) == ["big==2.0", "small==1.0"]


def test_a_package_stays_in_its_layer(wheels: Path) -> None:
    """What an index told of it once holds while it is the same package: to move it would install it again.

    The folder tells no sizes, so that one is written into the file that keeps the lock.
    """
    make_wheel(wheels, "big", "1.0")
    make_wheel(wheels, "native", "1.0", tag="cp311-cp311-manylinux_2_17_x86_64")
    make_wheel(wheels, "small", "1.0")
    assert [package.tier for package in _lock("big", "native").packages] == ["light", "medium"]
    (file,) = (wheels.parent / "cache/skyward/locks").glob("*.json")
    file.write_text(file.read_text().replace('"size": null', '"size": 60000000', 1))
    assert [package.tier for package in _lock("big", "native", "small").packages] == ["large", "medium", "light"]


def test_a_lock_that_was_half_written_is_made_again(wheels: Path) -> None:
    """What cannot be read counts as not there."""
    make_wheel(wheels, "leaf", "1.0")
    first = _lock("leaf")
    (file,) = (wheels.parent / "cache/skyward/locks").glob("*.json")
    file.write_text(file.read_text()[:40])
    assert _lock("leaf") == first


def test_a_scoped_package_has_one_source(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes from its index (here a folder) also where only another package asks for it; others never do.

    Neither the folder nor its address is in the lock or in the file that keeps it.
    """
    make_wheel(wheels, "torch", "9.0")
    make_wheel(wheels, "holder", "1.0", "torch")
    make_wheel(wheels.parent / "cpu", "torch", "1.0+cpu")
    make_wheel(wheels.parent / "cpu", "holder", "99.0")
    monkeypatch.setenv("SKYWARD_INDEXES", f'{{"{CPU}": "{wheels.parent / "cpu"}"}}')
    monkeypatch.setattr("skyward.builder.site.indexes._UV_SYSTEM", Path("/nowhere"))
    (wheels.parent / "pip.conf").write_text(f"[global]\nindex-url = {wheels}\n")  # an index, so that there are two
    image = Image(pip=["holder"], pip_indexes=[PipIndex(CPU, ["torch", "torchvision"])])
    lock = _lock(image=image)
    assert _pins(lock) == ["holder==1.0", "torch==1.0+cpu"]
    assert [package.index for package in lock.packages] == ["", CPU]
    assert str(wheels.parent) not in repr(lock) + _files(wheels.parent)
    assert "127.0.0.1" not in repr(lock) + _files(wheels.parent)


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
    with FolderServer() as server:
        public, private = (server.url(wheels.parent / name) for name in ("public", "private"))
        (wheels.parent / "pip.conf").write_text(f"[global]\nindex-url = {public}\nextra-index-url = {private}\n")
        assert _pins(_lock("internal", "common")) == ["common==1.0", "internal==1.0"]
        assert not caplog.records
        with pytest.raises(ImageError, match=r"first index that has a package.*Image\(pip_indexes"):
            _lock("internal>=2")
        monkeypatch.setenv("UV_INDEX_STRATEGY", "unsafe-best-match")
        assert _pins(_lock("internal", upgrade=True)) == ["internal==99.0"]
    (record,) = caplog.records
    assert "index-strategy=unsafe-best-match" in record.getMessage()


def test_what_local_files_provide_is_not_locked(wheels: Path) -> None:
    """Local packages are installed from their files; a lock holds what they need."""
    make_wheel(wheels, "leaf", "1.0")
    request = Request(image=Image(pip=["./lib", "leaf"]), python="3.11", platform="linux/amd64", provided=("lib",))
    assert _pins(lock_requirements(request)) == ["leaf==1.0"]


def test_nothing_to_lock_needs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image without requirements asks neither uv nor the disk."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert _lock() == Lock()
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_nowhere(wheels: Path) -> None:
    """The error names it, who asked for it, and what to check."""
    image = with_origin(Image(), Image(pip=["nowhere>=1"]), "plugin torch")
    with pytest.raises(ImageError, match="No package 'nowhere' that fits is to be had; asked for by plugin torch"):
        _lock(image=image)
    make_wheel(wheels, "leaf", "1.0")
    with pytest.raises(ImageError, match=r"No package 'leaf' .* asked for by your pip=\['leaf==3'\]"):
        _lock("leaf==3")


def test_a_dependency_that_is_nowhere(wheels: Path) -> None:
    """Where nobody listed it, the error gives all that may have asked, and uv's words, which say which did."""
    make_wheel(wheels, "top", "1.0", "nowhere")
    with pytest.raises(
        ImageError, match=r"No package 'nowhere' .*a dependency of top(.|\n)*versions of top depend on nowhere"
    ):
        _lock("top")


def test_requirements_that_contradict_each_other(wheels: Path) -> None:
    """Both sides are named with who asked for them, before anything is built."""
    make_wheel(wheels, "leaf", "1.0")
    make_wheel(wheels, "leaf", "2.0")
    make_wheel(wheels, "top", "1.0", "leaf>=2")
    image = with_origin(Image(pip=["leaf<2"]), Image(pip=["leaf<2", "top"]), "plugin big")
    with pytest.raises(ConfigError, match=r"contradict each other: your pip=\['leaf<2'\] and plugin big"):
        _lock(image=image)


def test_an_index_nobody_answers_for(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said to be unreachable, not blamed on the package; its password is not repeated."""
    (wheels.parent / "pip.conf").write_text("[global]\nindex-url = http://user:canary@127.0.0.1:9/simple\n")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(ImageError, match="could not be reached") as caught:
        _lock("leaf")
    assert "canary" not in str(caught.value)


def test_a_platform_without_packages(wheels: Path) -> None:
    """The platforms there are packages for are listed."""
    with pytest.raises(ConfigError, match=r"cannot be locked for 'linux/s390x'; .*linux/amd64"):
        _lock("leaf", platform="linux/s390x")


def test_newer_packages_are_not_seen(wheels: Path) -> None:
    """A date is passed on; a source that does not tell dates has nothing that old."""
    make_wheel(wheels, "leaf", "1.0")
    (wheels.parent / "pip.conf").write_text(f"[global]\nindex-url = {wheels}\n")
    assert _pins(_lock("leaf")) == ["leaf==1.0"]
    with pytest.raises(ImageError, match="leaf"):
        _lock(image=Image(pip=["leaf"], exclude_newer="2020-01-01"))


def test_what_the_image_names_by_url(wheels: Path) -> None:
    """A file that is named by its URL is locked by its hash, too."""
    wheel = make_wheel(wheels.parent / "far", "direct", "1.0")
    with FolderServer() as server:
        url = f"{server.url(wheel.parent)}/{wheel.name}"
        (package,) = _lock(f"direct @ {url}").packages
    assert package.pin == f"direct @ {url}"
    assert package.line.endswith(f" --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}")


def test_pools_that_open_at_once_look_for_uv_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first search of a process breaks a second one that runs beside it (sysconfig)."""
    import uv

    inside = threading.Lock()

    def find() -> str:
        assert inside.acquire(blocking=False), "two searches at once"
        time.sleep(0.01)
        inside.release()
        return "uv"

    monkeypatch.setattr(uv, "find_uv_bin", find)
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda _: find_uv(), range(16))) == {"uv"}


def test_an_extra_that_a_package_does_not_have(wheels: Path) -> None:
    """It is an error that names those it has; what packages ask of each other is theirs to mend."""
    make_wheel(wheels, "leaf", "1.0")
    make_wheel(wheels, "oddity", "2.0", extras=("one", "two"))
    make_wheel(wheels, "top", "1.0", "oddity[nosuch]")
    assert _pins(_lock("top")) == ["oddity==2.0", "top==1.0"]
    assert _pins(_lock("oddity[one]")) == ["oddity==2.0"]
    with pytest.raises(
        ConfigError, match=r"oddity==2.0 has no extra 'nosuch'; it has: one, two. .*pip=\['oddity\[nosuch\]'"
    ):
        _lock("oddity[nosuch]")
    with FolderServer() as server:
        (wheels.parent / "pip.conf").write_text(f"[global]\nindex-url = {server.url(wheels)}\n")
        with pytest.raises(ConfigError, match=r"has no extra 'nosuch'; it has: one, two"):
            _lock("oddity[nosuch]")
