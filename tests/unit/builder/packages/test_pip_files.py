"""Files as pip-tools, Poetry and uv write them, locked with the real uv from folders of small wheels."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from skyward.builder.packages.lock import Request, lock_requirements
from skyward.builder.packages.requirements import resolve_files
from skyward.builder.site.index_server import FolderServer
from skyward.errors import ConfigError, ImageError
from skyward.image import Lock
from skyward.model.image import Image
from tests.unit.builder.wheels import make_wheel


def _lock(image: Image, root: Path) -> Lock:
    resolved = resolve_files(image, root, python="3.11", platform="linux/amd64")
    provided = tuple(each.name for each in resolved.packages)
    return lock_requirements(
        Request(image=resolved.image, python="3.11", platform="linux/amd64", provided=provided, rules=resolved.rules)
    )


def _pins(image: Image, root: Path) -> list[str]:
    return [package.pin for package in _lock(image, root).packages]


def _hash(path: Path) -> str:
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def test_hashes_are_enforced(wheels: Path) -> None:
    """A package is one of the files whose hashes are given, or an error that names it and the line."""
    one = make_wheel(wheels, "native", "1.0", tag="cp311-cp311-manylinux_2_17_x86_64")
    other = make_wheel(wheels, "native", "1.0")
    leaf = make_wheel(wheels, "leaf", "1.0")
    file = wheels.parent / "requirements.txt"
    text = f"--require-hashes\nleaf==1.0 ; python_version >= '3.8' \\\n    --hash={_hash(leaf)}\n    # via top\n"
    text += f"native==1.0 --hash={_hash(one)} --hash=sha256:{'0' * 64}\n"
    file.write_text(text)
    packages = _lock(Image(pip=["-r requirements.txt"]), wheels.parent).packages
    assert [package.hashes for package in packages] == [(_hash(leaf),), (_hash(one),)]
    assert _hash(other) != _hash(one)
    file.write_text(text.replace(_hash(leaf), "sha256:" + "a" * 64))
    with pytest.raises(ConfigError, match=r"requirements.txt, line 2 gives for leaf==1.0 are of no file"):
        _lock(Image(requirements=["requirements.txt"]), wheels.parent)
    file.write_text(text.replace(f" \\\n    --hash={_hash(leaf)}", ""))
    with pytest.raises(ConfigError, match=r"line 1 wants the hashes of all .*none are given for leaf==1.0"):
        _lock(Image(requirements=["requirements.txt"]), wheels.parent)


def test_one_package_in_two_versions(wheels: Path) -> None:
    """As exports have it, with a marker each: the hashes of the one that is for these nodes."""
    for version in ("1.0", "2.0"):
        make_wheel(wheels, "leaf", version)
    text = "".join(
        f'leaf=={version} ; python_version {sign} "3.12" --hash={_hash(wheels / f"leaf-{version}-py3-none-any.whl")}\n'
        for version, sign in (("1.0", "<"), ("2.0", ">="))
    )
    (wheels.parent / "requirements.txt").write_text(text)
    assert _pins(Image(requirements=["requirements.txt"]), wheels.parent) == ["leaf==1.0"]


def test_constraints(wheels: Path) -> None:
    """They hold for what is installed and install nothing; in files, nested, and of an image."""
    for version in ("1.0", "2.0", "3.0"):
        make_wheel(wheels, "leaf", version)
    make_wheel(wheels, "top", "1.0", "leaf")
    (wheels.parent / "c.txt").write_text("-r more.txt\nnothing==1\n")
    (wheels.parent / "more.txt").write_text("leaf<3\n")
    (wheels.parent / "r.txt").write_text("-c c.txt\ntop\n")
    expected = ["leaf==2.0", "top==1.0"]
    assert _pins(Image(requirements=["r.txt"]), wheels.parent) == expected
    assert _pins(Image(pip=["top", "-c c.txt"]), wheels.parent) == expected
    assert _pins(Image(pip=["top"], constraints=["c.txt"]), wheels.parent) == expected
    (wheels.parent / "more.txt").write_text("leaf>3\n")
    with pytest.raises((ConfigError, ImageError), match="leaf"):
        _pins(Image(requirements=["r.txt"]), wheels.parent)


def test_indexes_of_a_file(wheels: Path) -> None:
    """They are asked first, for that image; their addresses are no part of its lock's lines."""
    make_wheel(wheels, "leaf", "9.0")
    make_wheel(wheels.parent / "own", "leaf", "1.0")
    make_wheel(wheels, "top", "1.0", "leaf")
    with FolderServer() as server:
        own = server.url(wheels.parent / "own")
        (wheels.parent / "pip.conf").write_text(f"[global]\nindex-url = {server.url(wheels)}\n")
        (wheels.parent / "r.txt").write_text(f"--extra-index-url {own}\ntop\n")
        lock = _lock(Image(requirements=["r.txt"]), wheels.parent)
        assert [package.pin for package in lock.packages] == ["leaf==1.0", "top==1.0"]
        assert lock.sources.extra == (own,)
        (wheels.parent / "r.txt").write_text(f"--index-url https://{'.'.join(('pypi', 'org'))}/simple\ntop\n")
        assert _pins(Image(requirements=["r.txt"]), wheels.parent) == ["leaf==9.0", "top==1.0"]
    (wheels.parent / "pip.conf").write_text("[global]\nno-index = true\n")
    (wheels.parent / "r.txt").write_text("--find-links ./own\nleaf\n")
    assert _pins(Image(requirements=["r.txt"]), wheels.parent) == ["leaf==1.0"]


def test_repositories_and_paths(tmp_path: Path) -> None:
    """What pip names with `-e`, `#egg=` and `file:` is what an image names in one way."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/pyproject.toml").write_text('[project]\nname = "lib"\nversion = "1"\n')
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/r.txt").write_text(
        "-e git+https://a.example/x.git@main#egg=x[y]&subdirectory=z\n"
        "git+ssh://git@a.example/w.git#egg=w\n"
        "-e ../lib\n"
        f"lib @ file://{tmp_path}/lib\n"
    )
    resolved = resolve_files(Image(pip=["-r sub/r.txt"]), tmp_path)
    assert tuple(entry.replace(" @", "@") for entry in resolved.image.pip) == (
        "./lib",
        "w@ git+ssh://git@a.example/w.git",
        "x[y]@ git+https://a.example/x.git@main#subdirectory=z",
    )
    assert [each.name for each in resolved.packages] == ["lib"]
    image = Image(pip=["-e ./lib", "-e git+https://a.example/x.git#egg=x"])
    assert tuple(entry.replace(" @", "@") for entry in image.pip) == ("./lib", "x@ git+https://a.example/x.git")


def test_hashes_of_local_files(wheels: Path) -> None:
    """They are compared where the file is read; so are those that a lock has."""
    wheel = make_wheel(wheels.parent / "dist", "leaf", "1.0")
    line = f"./dist/{wheel.name} --hash="
    (wheels.parent / "r.txt").write_text(line + _hash(wheel))
    assert _pins(Image(requirements=["r.txt"]), wheels.parent) == []
    (wheels.parent / "r.txt").write_text(f"{line}sha256:{'0' * 64}")
    with pytest.raises(ConfigError, match=r"hashes that r.txt, line 1 gives for ./dist/leaf.* are not those of"):
        _pins(Image(requirements=["r.txt"]), wheels.parent)
    entry = f'name = "leaf"\narchive = {{ path = "dist/{wheel.name}", hashes = {{ sha256 = "{"0" * 64}" }} }}\n'
    (wheels.parent / "pylock.toml").write_text(f'lock-version = "1.0"\n[[packages]]\n{entry}')
    with pytest.raises(ConfigError, match=r"pylock.toml has another leaf: the SHA-256 of .* is not 0000"):
        _pins(Image(requirements=["pylock.toml"]), wheels.parent)
