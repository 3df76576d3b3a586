"""Requirement files, dependency groups and local packages: what an image requires in the end, and who said so."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from skyward.builder.files.copied import package_files
from skyward.builder.packages.local import local_package, located
from skyward.builder.packages.lock import lock_requirements
from skyward.builder.packages.requirements import resolve_files
from skyward.errors import ConfigError, ImageError
from skyward.image import Lock
from skyward.model.image import Image, PipIndex, Project, local_path
from tests.unit.builder.wheels import make_wheel

Tree = Callable[[dict[str, str]], Path]
PROJECT = """
[project]
name = "My.Lib"
version = "1"
dependencies = ["rich>=13", "numpy"]
[project.optional-dependencies]
gpu = ["torch>=2"]
all = ["my-lib[gpu]", "tqdm"]
[dependency-groups]
"""


def requirement_lines(image: Image, root: Path) -> tuple[str, ...]:
    """What an image requires of package indexes."""
    return tuple(entry for entry in resolve_files(image, root).image.pip if local_path(entry) is None)


def _lock(image: Image, root: Path) -> Lock:
    return lock_requirements(resolve_files(image, root, python="3.11", platform="linux/amd64"))


def _pins(image: Image, root: Path) -> list[str]:
    return [package.pin for package in _lock(image, root).packages]


def _hash(path: Path) -> str:
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Writes files below an empty directory, which it returns."""

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path

    return write


def test_a_file_of_requirements(tree: Tree) -> None:
    """Comments, continuations, spaces and included files are read as pip does; every line has one spelling."""
    root = tree(
        {
            "requirements.txt": "\ufeff# all of it\nNumPy >=2,\\\n  <3  # why\n\n-r sub/more.txt\nx @ https://a.example/x.zip#egg\n",
            "sub/more.txt": "--requirement=last.txt\nscipy ; python_version<'3.12'\n",
            "sub/last.txt": "-rroot.txt\nsix",
            "sub/root.txt": "tqdm",
        }
    )
    image = Image(pip=["numpy"], requirements=["requirements.txt"])
    lines = requirement_lines(image, root)
    expected = ["numpy", "numpy<3,>=2", 'scipy; python_version < "3.12"', "six", "tqdm"]
    assert [line.replace("x @", "x@") for line in lines] == [*expected, "x@ https://a.example/x.zip#egg"]
    origins = dict(resolve_files(image, root).image.origins)
    assert origins["pip:numpy<3,>=2"] == "requirements.txt"
    assert origins["pip:six"] == "last.txt"
    assert "pip:numpy" not in origins


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("numpy\n-c pins.txt", r"pins.txt cannot be read"),
        ("--extra-index-url https://u:canary@a.example", r"index holds a user name or password"),
        ("-i ${INDEX}", r"requirements.txt: index must be a URL without variables"),
        ("-r https://u:canary@a.example/r.txt", r"-r https://\*\*\*@a.example/r.txt is not supported"),
        ("numpy --no-binary :all:", r"a requirement of an image has no options but --hash=sha256"),
        ("\nnum py", r"requirements.txt: pip must be requirements .*'num py'"),
        ("x @ https://u:canary@a.example/x", r"pip holds a user name or password"),
        ("-r poetry.lock", r"Run `poetry export -f requirements.txt -o requirements.txt` in"),
        ("-r requirements.txt", r"requirements.txt includes itself"),
    ],
)
def test_what_a_file_may_not_hold(tree: Tree, text: str, message: str) -> None:
    """Anything but requirements is refused with the file's name; logins are not repeated."""
    root = tree({"requirements.txt": text, "poetry.lock": ""})
    with pytest.raises(ConfigError, match=message) as caught:
        requirement_lines(Image(requirements=["requirements.txt"]), root)
    assert "canary" not in str(caught.value)


def test_repositories_and_paths(tree: Tree) -> None:
    """What pip names with `-e`, `#egg=` and `file:` is what an image names in one way."""
    root = tree({"lib/pyproject.toml": PROJECT})
    text = "-e git+https://a.example/x.git@main#egg=x[y]&subdirectory=z\n-e ../lib\n" + f"my-lib @ file://{root}/lib\n"
    tree({"sub/r.txt": text})
    resolved = resolve_files(Image(pip=["-r sub/r.txt"]), root)
    entries = tuple(entry.replace(" @", "@") for entry in resolved.image.pip)
    assert entries == ("./lib", "x[y]@ git+https://a.example/x.git@main#subdirectory=z")
    assert [each.name for each in resolved.packages] == ["my-lib"]
    (package,) = resolve_files(Image(pip=[f"-e my-lib[gpu] @ file://{root}/lib"]), root).packages
    assert package.requirement == f"my-lib[gpu] @ file://{root}/lib"


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
    for changed, message in (
        (text.replace(_hash(leaf), "sha256:" + "a" * 64), r"None .* leaf==1.0 matches"),
        (
            text.replace(f" \\\n    --hash={_hash(leaf)}", ""),
            r"requirements.txt requires hashes of all .*leaf==1.0 has none",
        ),
    ):
        file.write_text(changed)
        with pytest.raises(ConfigError, match=message):
            _lock(Image(requirements=["requirements.txt"]), wheels.parent)


def test_hashes_of_local_files(wheels: Path) -> None:
    """They are compared where the file is read; so are those that a lock has."""
    wheel = make_wheel(wheels.parent / "dist", "leaf", "1.0")
    line = f"./dist/{wheel.name} --hash="
    (wheels.parent / "r.txt").write_text(line + _hash(wheel))
    assert _pins(Image(requirements=["r.txt"]), wheels.parent) == []
    (wheels.parent / "r.txt").write_text(f"{line}sha256:{'0' * 64}")
    with pytest.raises(ConfigError, match=r"None of the hashes for ./dist/leaf.*\(r.txt\) matches"):
        _pins(Image(requirements=["r.txt"]), wheels.parent)
    entry = f'name = "leaf"\narchive = {{ path = "dist/{wheel.name}", hashes = {{ sha256 = "{"0" * 64}" }} }}\n'
    (wheels.parent / "pylock.toml").write_text(f'lock-version = "1.0"\ncreated-by = "x"\n[[packages]]\n{entry}')
    with pytest.raises(ConfigError, match=r"pylock.toml has another leaf: the SHA-256 of .* is not 0000"):
        _pins(Image(requirements=["pylock.toml"]), wheels.parent)


def test_constraints(wheels: Path) -> None:
    """They hold for what is installed and install nothing; in files, nested, and of an image."""
    for version in ("1.0", "2.0", "3.0"):
        make_wheel(wheels, "leaf", version)
    make_wheel(wheels, "top", "1.0", "leaf")
    (wheels.parent / "c.txt").write_text("-r more.txt\nnothing==1\n")
    (wheels.parent / "more.txt").write_text("leaf<3\n")
    (wheels.parent / "r.txt").write_text("-c c.txt\ntop\n")
    for image in (Image(requirements=["r.txt"]), Image(pip=["top", "-c c.txt"])):
        assert _pins(image, wheels.parent) == ["leaf==2.0", "top==1.0"]
    (wheels.parent / "more.txt").write_text("leaf>3\n")
    with pytest.raises((ConfigError, ImageError), match="leaf"):
        _pins(Image(requirements=["r.txt"]), wheels.parent)


def test_indexes_of_a_file(wheels: Path) -> None:
    """They are asked first, for that image; their addresses are no part of its lock's lines."""
    make_wheel(wheels, "leaf", "9.0")
    make_wheel(wheels, "top", "1.0", "leaf")
    make_wheel(wheels.parent / "own", "leaf", "1.0")
    (wheels.parent / "pip.conf").write_text(f"[global]\nindex-url = {wheels}\n")
    own = wheels.parent / "own"
    (wheels.parent / "r.txt").write_text(f"--extra-index-url file://{own}\ntop\n")
    lock = _lock(Image(requirements=["r.txt"]), wheels.parent)
    assert [package.pin for package in lock.packages] == ["leaf==1.0", "top==1.0"]
    assert lock.sources.extra == (str(own),)
    (wheels.parent / "r.txt").write_text(f"--index-url https://{'.'.join(('pypi', 'org'))}/simple\ntop\n")
    assert _pins(Image(requirements=["r.txt"]), wheels.parent) == ["leaf==9.0", "top==1.0"]
    (wheels.parent / "pip.conf").write_text("[global]\nno-index = true\n")
    (wheels.parent / "r.txt").write_text("--find-links ./own\nleaf\n")
    assert _pins(Image(requirements=["r.txt"]), wheels.parent) == ["leaf==1.0"]


PYLOCK = f"""lock-version = "1.0"
created-by = "pdm"
dependency-groups = ["default", "dev"]
default-groups = ["default"]
environments = ["sys_platform == 'linux' and python_version >= '3.11'"]
[[packages]]
name = "six"
version = "1.16.0"
marker = "'default' in dependency_groups"
wheels = [{{ name = "six-1.16.0-py3-none-any.whl", url = "https://a.example/s", hashes = {{ sha256 = "{"a" * 64}" }} }}]
[[packages]]
name = "leaf"
version = "2"
marker = "'dev' in dependency_groups"
wheels = [{{ name = "leaf-2-py3-none-any.whl", url = "https://a.example/l", hashes = {{ sha256 = "{"b" * 64}" }} }}]
"""


def test_groups_of_a_standard_lock(tree: Tree) -> None:
    """PDM has what the project itself needs in a default one; groups are found upwards."""
    root = tree({"pylock.toml": PYLOCK, "pyproject.toml": PROJECT + 'dev = ["leaf"]\n', "images/x.toml": ""})
    for file in ("pylock.toml", "pyproject.toml"):
        assert requirement_lines(Image(requirements=[file]), root) == ("six==1.16.0",)
    assert requirement_lines(Image(groups=["Dev"]), root / "images") == ("leaf==2",)
    assert requirement_lines(Image(project=Project(groups=["dev"])), root) == ("leaf==2", "six==1.16.0")
    assert dict(resolve_files(Image(groups=["dev"]), root).image.origins) == {"pip:leaf==2": "your groups=['dev']"}
    with pytest.raises(ConfigError, match=r"has no extra 'y'"):
        resolve_files(Image.from_project(extras=["y"]), root)
    tree({"pylock.toml": PYLOCK.replace("'linux'", "'win32'")})
    with pytest.raises(ConfigError, match=r"pylock.toml does not fit linux/.*environments"):
        resolve_files(Image(pip=["-r pylock.toml"]), root)


TABLES = """
train = ["Torch >=2", {include-group = "Base_Tools"}]
base-tools = ["tqdm"]
"""
SOURCED = '[dependency-groups]\ndev=["torch"]\n[tool.uv.sources]\nTorch={index="x"}'


def test_projects_without_a_lock(tree: Tree) -> None:
    """Groups (PEP 735), optional dependencies and `pyproject.toml` among the requirements mean what the file says."""
    root = tree({"pyproject.toml": PROJECT + TABLES, "images/x.toml": ""}) / "images"
    assert requirement_lines(Image(groups=["Train"]), root) == ("torch>=2", "tqdm")
    assert requirement_lines(Image(groups=["all"]), root) == ("torch>=2", "tqdm")
    assert requirement_lines(Image(requirements=["../pyproject.toml"]), root) == ("numpy", "rich>=13")
    image = resolve_files(Image(groups=["base_tools"]), root).image
    assert image.groups == ()
    assert dict(image.origins) == {"pip:tqdm": "your groups=['base-tools']"}
    tree({"pyproject.toml": PROJECT.replace('"torch>=2"', '"torch>=2", "my-lib[all]"')})
    assert requirement_lines(Image(groups=["all"]), root) == ("torch>=2", "tqdm")
    tree({"pyproject.toml": SOURCED})
    image = Image(groups=["dev"], pip_indexes=[PipIndex("https://a.example", ["torch"])])
    assert requirement_lines(image, root) == ("torch",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            PROJECT + TABLES,
            r"groups names 'dev', which .*pyproject.toml does not have; it has: all, base-t",
        ),
        ('[dependency-groups]\ndev=[{include-group="dev"}]', r"pyproject.toml cannot be used for your groups"),
        ('[dependency-groups]\ndev=["a b"]', r"pyproject.toml cannot be used for your groups"),
        ('[dependency-groups]\ndev="six"', r"pyproject.toml cannot be used for your groups"),
        ("[dependency", r"pyproject.toml cannot be read"),
        (SOURCED, r"takes torch from a source of its own"),
    ],
)
def test_groups_that_cannot_be_used(tree: Tree, text: str, message: str) -> None:
    """The message names the file."""
    root = tree({"pyproject.toml": text})
    with pytest.raises(ConfigError, match=message):
        requirement_lines(Image(groups=["dev"]), root)


def test_local_packages_bring_what_they_need(wheels: Path, tree: Tree) -> None:
    """A wheel's and a project's needs are locked with the rest; what they provide is asked of no index."""
    for name in ("rich", "torch", "tqdm", "click"):
        make_wheel(wheels, name, "20.0")
    make_wheel(wheels, "numpy", "2.0")
    make_wheel(wheels, "setuptools", "80.0")
    make_wheel(wheels, "wheel", "1.0")
    root = tree({"lib/pyproject.toml": PROJECT, "lib/my_lib.py": "", "r.txt": "my_lib>=1\n-e ./lib[all]"})
    tool = make_wheel(root / "dist", "tool", "2", "my-lib", "click>=8")
    image = Image(pip=[f"./dist/{tool.name}"], requirements=["r.txt"])
    assert _pins(image, root) == ["click==20.0", "numpy==2.0", "rich==20.0", "torch==20.0", "tqdm==20.0"]
    assert resolve_files(image, root).image.pip == (f"./dist/{tool.name}", "./lib[all]")


@pytest.mark.parametrize(
    ("entry", "files", "message"),
    [
        (".", {"a.py": ""}, r"pip='.' is neither a wheel nor a Python project"),
        ("./lib", {"lib/pyproject.toml": '[project]\nname = "../out"'}, r"has no valid \[project\] name"),
        ("./lib", {"lib/pyproject.toml": "[project"}, r"pip='./lib' is neither"),
        ("./a-1.tar.gz", {"a-1.tar.gz": ""}, r"neither a wheel nor a Python project"),
    ],
)
def test_local_packages_that_cannot_be_used(tree: Tree, entry: str, files: dict[str, str], message: str) -> None:
    """What is no package is refused."""
    root = tree(files)
    with pytest.raises(ConfigError, match=message):
        local_package(entry, located(root, local_path(entry) or ""))


def test_a_project_is_its_sources(tree: Tree) -> None:
    """Caches and old builds do not count; a changed source does, and where the project lies does not."""
    root = tree({"lib/pyproject.toml": PROJECT, "lib/a.py": "", "lib/dist/old.whl": "", "lib/__pycache__/a.pyc": ""})
    package = local_package("./lib", root / "lib")
    assert [name for name, _ in package.files] == ["a.py", "pyproject.toml"]
    (first,) = package_files([package])
    tree({"lib/dist/new.whl": "", "other/pyproject.toml": PROJECT, "other/a.py": ""})
    others = [local_package(f"./{name}", root / name) for name in ("lib", "other")]
    assert {each.digest for each in package_files(others)} == {first.digest}
    tree({"lib/a.py": "changed"})
    (changed,) = package_files([local_package("./lib", root / "lib")])
    assert changed.digest != first.digest
