"""Requirement files, dependency groups and local packages: what an image asks for in the end, and who asked."""

from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from skyward.builder.events import warn
from skyward.builder.files.copied import package_files
from skyward.builder.packages.metadata import local_package, located
from skyward.builder.packages.requirements import resolve_files
from skyward.errors import ConfigError
from skyward.model.image import Image, PipIndex, Project, local_path

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
train = ["Torch >=2", {include-group = "Base_Tools"}]
base-tools = ["tqdm"]
"""

DYNAMIC = '[project]\nname="a"\ndynamic=["dependencies"]'


def requirement_lines(image: Image, root: Path) -> tuple[str, ...]:
    """What an image asks of package indexes."""
    return tuple(entry for entry in resolve_files(image, root).image.pip if local_path(entry) is None)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Writes files below an empty directory, which it returns."""

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path

    return write


def wheel(path: Path, *lines: str) -> Path:
    """A wheel with this metadata and nothing else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name, version = path.name.split("-")[:2]
    metadata = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines])
    with ZipFile(path, "w") as file:
        file.writestr(f"{name}-{version}.dist-info/METADATA", metadata + "\n\nRequires-Dist: from-the-description\n")
    return path


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
    assert [line.replace("x @", "x@") for line in lines] == [
        "numpy",
        "numpy<3,>=2",
        'scipy; python_version < "3.12"',
        "six",
        "tqdm",
        "x@ https://a.example/x.zip#egg",
    ]
    origins = dict(resolve_files(image, root).image.origins)
    assert origins["pip:numpy<3,>=2"] == "requirements.txt, line 2"
    assert origins["pip:six"] == "last.txt, line 2"
    assert "pip:numpy" not in origins


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("numpy\n-c pins.txt", r"pins.txt cannot be read"),
        ("--extra-index-url https://u:canary@a.example", r"line 1: index holds a user name or password"),
        ("-i ${INDEX}", r"line 1: index must be a URL without"),
        (
            "-i https://u:canary@a.example/${X}",
            r"line 1: index must be a URL without variables; found 'https://\*\*\*@a",
        ),
        ("-r https://u:canary@a.example/r.txt", r"line 1: --requirement takes files of this machine; fetch https://\*"),
        ("x --hash=https://canary@a.example", r"line 1: images are locked by SHA-256; found --hash=https://\*\*\*@"),
        ("https://u:canary@a.example/x.whl", r"line 1: pip must be requirements .* found 'https://\*\*\*@a.example/x"),
        ("--no-binary :all:", r"line 1: --no-binary cannot be used here. Which packages are built from source"),
        ("numpy --no-binary :all:", r"line 1: --no-binary cannot be used here. Which packages are built from source"),
        ("--pre", r"line 1: --pre cannot be used here. Name the pre-release in the requirement"),
        ("--nonsense", r"line 1: --nonsense cannot be used here. A requirement file of an image holds requirements"),
        ("numpy==2 \\\n  --hash=md5:00", r"line 1: images are locked by SHA-256; found --hash=md5:00"),
        ("-e git+https://a.example/x", r"line 1: pip must be repositories with the package's name"),
        ("\nnum py", r"line 2: pip must be requirements .*'num py'"),
        ("x @ https://u:canary@a.example/x", r"line 1: pip holds a user name or password"),
        ("x @ https://u:canary${TOKEN}@a.example/x", r"line 1: pip holds a variable, '\$\{TOKEN\}', which is not"),
        ("x==${VERSION}", r"line 1: pip holds a variable, '\$\{VERSION\}', .* Write the value"),
        ("x @ file://${PWD}/lib", r"line 1: pip holds a variable, '\$\{PWD\}'"),
        ("./lib ; python_version > '3.8'", r"line 1: pip names the path './lib' with a condition, \"python_version > "),
        ("./lib[gpu];sys_platform=='linux'", r"line 1: pip names the path './lib\[gpu\]' with a condition"),
        ("-r requirements.txt", r"requirements.txt requires itself, by way of"),
        ("-r https://a.example/r.txt", r"line 1: --requirement takes files of this machine; fetch https://a.example"),
        ("-r none.txt", r"none.txt cannot be read"),
        ("-r", r"line 1: --requirement cannot be used here"),
    ],
)
def test_what_a_file_may_not_hold(tree: Tree, text: str, message: str) -> None:
    """Anything but requirements is refused with file, line and what to do."""
    root = tree({"requirements.txt": text})
    with pytest.raises(ConfigError, match=message) as caught:
        requirement_lines(Image(requirements=["requirements.txt"]), root)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "my-lib[gpu] @ file:./lib",
        "my-lib[gpu] @ file:lib",
        "my.lib [gpu]@file:{root}/lib",
        "-e my-lib[gpu] @ file://{root}/lib",
        "file:./lib[gpu]",
        "-e file:./lib#egg=my-lib[gpu]&x=1",
    ],
)
def test_extras_of_a_package_that_is_named_by_url(tree: Tree, line: str) -> None:
    """Its own requirements and those of the extras come along, from files and from `pip`."""
    root = tree({"lib/pyproject.toml": PROJECT})
    root = tree({"requirements.txt": line.format(root=root)})
    expected = ("./lib[gpu]", "numpy", "rich>=13", "torch>=2")

    assert resolve_files(Image(requirements=["requirements.txt"]), root).image.pip == expected
    entry = resolve_files(Image(pip=[line.format(root=root)]), root).image.pip
    assert [each for each in entry if "lib" not in each] == [*expected[1:]]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A file that is not there is named as it was given and where it was looked for."""
    with pytest.raises(ConfigError, match=rf"requirements names 'no.txt', but {tmp_path}/no.txt cannot be read"):
        requirement_lines(Image(requirements=["no.txt"]), tmp_path)


def test_a_project_file_stands_for_its_dependencies(tree: Tree) -> None:
    """`pyproject.toml` among the requirement files means what the project needs."""
    root = tree({"app/pyproject.toml": PROJECT})
    assert requirement_lines(Image(requirements=["app/pyproject.toml"]), root) == ("numpy", "rich>=13")


@pytest.mark.parametrize(
    ("lock", "export"),
    [
        ("poetry.lock", "`poetry export -f requirements.txt -o requirements.txt`"),
        ("pdm.lock", "`pdm export -f pylock -o pylock.toml`"),
        ("Pipfile.lock", "`pipenv requirements --hash > requirements.txt`"),
    ],
)
@pytest.mark.parametrize(
    "image", [Image(requirements=["app/pyproject.toml"]), Image(pip=["./app"])], ids=["file", "pip"]
)
def test_a_lock_of_another_tool_is_said_not_to_be_used(
    tree: Tree, caplog: pytest.LogCaptureFixture, lock: str, export: str, image: Image
) -> None:
    """A line names it and what to do."""
    root = tree({"app/pyproject.toml": PROJECT, f"app/{lock}": ""})

    warn.cache_clear()
    resolve_files(image, root)

    (line,) = caplog.messages
    assert line.startswith(f"{root / 'app' / lock} is not used")
    assert export in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DYNAMIC, r"from its build \(dynamic\), .*; write them into \[project\] dependencies"),
        ("[tool.black]", r"pyproject.toml has no \[project\] table, .*; write them into \[project\] dependencies"),
        ("[tool.poetry.dependencies]\nsix='^1'", r"no \[project\] table, .*; `poetry export -f requirements.txt"),
        ('[dependency-groups]\ndev=["six"]', r"no \[project\] table, .*; name its groups: Image\(groups=\['dev'\]\)"),
        ('[project]\nname="a"\ndependencies="six"', r"toml: \[project\] dependencies must be a list.*found 'six'"),
    ],
)
def test_a_project_file_that_does_not_say_what_it_needs(tree: Tree, text: str, message: str) -> None:
    """No image is made without what the project needs."""
    root = tree({"pyproject.toml": text})
    with pytest.raises(ConfigError, match=message):
        requirement_lines(Image(requirements=["pyproject.toml"]), root)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("poetry.lock", r"`poetry export -f requirements.txt -o requirements.txt` in .*, and name requirements.txt"),
        ("pdm.lock", r"`pdm export -f pylock -o pylock.toml` in .*, and name pylock.toml"),
        ("Pipfile.lock", r"`pipenv requirements --hash > requirements.txt` in .*"),
        ("Pipfile", r"Write one requirement on a line"),
        ("uv.lock", r"Name the pyproject.toml beside it"),
        ("environment.yml", r"Packages of conda are not installed in images: name those of PyPI in pip="),
        ("pixi.toml", r"Packages of conda are not installed in images"),
        ("setup.cfg", r"Write what it needs into \[project\] dependencies"),
    ],
)
def test_files_of_other_tools(tree: Tree, name: str, remedy: str) -> None:
    """They are refused with what to do, whatever their lines look like to pip; also where a file names them."""
    root = tree({name: "numpy\n", "requirements.txt": f"-r {name}\n"})
    for file in (name, "requirements.txt"):
        message = rf"requirements names '{name}', which is no file of requirements in pip's form. .*{remedy}"
        with pytest.raises(ConfigError, match=message):
            requirement_lines(Image(requirements=[file]), root)
    with pytest.raises(ConfigError, match=rf"constraints names '{name}', which"):
        requirement_lines(Image(constraints=[name]), root)


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


def test_the_default_groups_of_a_lock_are_installed(tree: Tree) -> None:
    """PDM has what the project itself needs in one; other groups come beside it."""
    root = tree({"pylock.toml": PYLOCK, "pyproject.toml": PROJECT + 'dev = ["leaf"]\n'})

    for file in ("pylock.toml", "pyproject.toml"):
        assert requirement_lines(Image(requirements=[file]), root) == ("six==1.16.0",)
    assert requirement_lines(Image(groups=["dev"]), root) == ("leaf==2",)
    assert requirement_lines(Image(project=Project(groups=["dev"])), root) == ("leaf==2", "six==1.16.0")


def test_a_lock_for_other_environments_is_refused(tree: Tree) -> None:
    """It may lack packages that the nodes' platform needs."""
    root = tree({"pylock.toml": PYLOCK.replace("'linux'", "'win32'")})
    with pytest.raises(ConfigError, match=r"pylock.toml is for other environments than linux/.* 'win32'"):
        requirement_lines(Image(requirements=["pylock.toml"]), root)


def test_groups_of_the_nearest_project(tree: Tree) -> None:
    """Groups are found upwards, expanded, and fall back to optional dependencies; names are normalised."""
    root = tree({"pyproject.toml": PROJECT, "images/x.toml": ""}) / "images"
    assert requirement_lines(Image(groups=["Train"]), root) == ("torch>=2", "tqdm")
    assert requirement_lines(Image(groups=["all"]), root) == ("torch>=2", "tqdm")
    image = resolve_files(Image(groups=["base_tools"]), root).image
    assert image.groups == ()
    assert dict(image.origins) == {"pip:tqdm": "your groups=['base-tools']"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PROJECT, r"groups names 'dev', which .*pyproject.toml does not have; it has: all, base-tools, gpu, train"),
        ('[dependency-groups]\ndev=[{include-group="dev"}]', r"group 'dev' includes itself"),
        ('[dependency-groups]\ndev=[{include-group="no"}]', r"group 'dev' holds .*'no'.* which names no group there"),
        ('[dependency-groups]\ndev=["a b"]', r"\[dependency-groups\] dev: pip must be requirements"),
        ('[dependency-groups]\ndev="six"', r"the dependency group 'dev' must be a list, .* found 'six'"),
        ("[dependency", r"pyproject.toml cannot be read"),
        (
            '[dependency-groups]\ndev=["torch"]\n[tool.uv.sources]\nTorch={index="x"}',
            r"takes torch from a source of its",
        ),
    ],
)
def test_groups_that_cannot_be_used(tree: Tree, text: str, message: str) -> None:
    """What is wrong with a group is said with the file's name."""
    root = tree({"pyproject.toml": text})
    with pytest.raises(ConfigError, match=message):
        requirement_lines(Image(groups=["dev"]), root)


def test_sources_may_be_said_in_the_image(tree: Tree) -> None:
    """A project's own source of a package is fine where the image says its own."""
    root = tree({"pyproject.toml": '[dependency-groups]\ndev=["torch"]\n[tool.uv.sources]\ntorch={index="x"}'})
    image = Image(groups=["dev"], pip_indexes=[PipIndex("https://a.example", ["torch"])])
    assert requirement_lines(image, root) == ("torch",)


def test_local_packages_bring_what_they_need(tree: Tree) -> None:
    """A wheel's and a project's needs are locked with the rest; what they provide is asked of no index."""
    root = tree({"lib/pyproject.toml": PROJECT, "lib/src/my_lib/__init__.py": "", "r.txt": "my_lib>=1\n-e ./lib[all]"})
    wheel(root / "dist/tool-2-py3-none-any.whl", "Requires-Dist: my-lib", "Requires-Dist: click (>=8)")
    image = Image(pip=["./dist/tool-2-py3-none-any.whl"], requirements=["r.txt"])
    resolved = resolve_files(image, root).image
    assert resolved.pip == (
        "./dist/tool-2-py3-none-any.whl",
        "./lib[all]",
        "click>=8",
        "numpy",
        "rich>=13",
        "torch>=2",
        "tqdm",
    )
    assert dict(resolved.origins)["pip:click>=8"] == "your pip=['./dist/tool-2-py3-none-any.whl']"
    assert requirement_lines(image, root) == resolved.pip[2:]
    assert resolve_files(resolved, root).image == resolved


@pytest.mark.parametrize(
    ("needs", "extras", "on_311", "on_313"),
    [
        ('extra == "x"', "", False, False),
        ('extra == "x"', "[x]", True, True),
        ('python_version < "3.12" and extra == "X"', "[x]", True, False),
        ('python_version < "3.12" and extra == "x"', "[y]", False, False),
        ('python_version < "3.12" or extra == "x"', "", True, False),
        ('python_version < "3.12" or extra == "x"', "[x,y]", True, True),
        ('(os_name == "nt" or os_name == "posix") and extra == "x"', "", False, False),
        ('(os_name == "nt" or os_name == "posix") and extra == "x"', "[x]", True, True),
        ("python_version < '3.12'", "", True, False),
    ],
)
def test_extras_of_a_wheel(tmp_path: Path, needs: str, extras: str, on_311: bool, on_313: bool) -> None:
    """What a wheel needs for an extra counts when the extra is asked for; other conditions are left for the lock."""
    name = "tool-2-py3-none-any.whl"
    wheel(tmp_path / name, "Provides-Extra: x", "Provides-Extra: y", f"Requires-Dist: a; {needs}")
    lines = requirement_lines(Image(pip=[f"./{name}{extras}"]), tmp_path)
    assert not any("extra" in line for line in lines)
    for version, expected in (("3.11", on_311), ("3.13", on_313)):
        here = {"python_version": version, "os_name": "posix"}
        markers = [Requirement(line).marker for line in lines]
        assert any(marker is None or marker.evaluate(here) for marker in markers) == expected


@pytest.mark.parametrize(
    ("entry", "files", "message"),
    [
        ("./no", {}, r"pip names './no', but there is no .*/no"),
        (".", {"a.py": ""}, r"pip='.' cannot be used: .* is no Python project: it has no pyproject.toml. Name"),
        ("./lib", {"lib/setup.py": ""}, r"'./lib' cannot be used: .* it has no \[project\] name. Make a wheel"),
        ("./lib", {"lib/pyproject.toml": DYNAMIC}, r"dependencies in .* are dynamic"),
        ("./lib", {"lib/pyproject.toml": '[project]\nname = "../out"'}, r"calls itself '../out', which is not a name"),
        ("./lib[no]", {"lib/pyproject.toml": PROJECT}, r"my-lib has no extra 'no'; it has: all, gpu"),
        ("./lib", {"lib/pyproject.toml": "[project"}, r"pip='./lib' cannot be used: "),
        ("./a-1.tar.gz", {"a-1.tar.gz": ""}, r"neither a wheel nor a project. Make a wheel of it"),
        ("./a-1-py3-none-any.whl", {"a-1-py3-none-any.whl": "x"}, r"pip='./a-1-py3-none-any.whl' cannot be used: "),
    ],
)  # fmt: skip
def test_local_packages_that_cannot_be_used(tree: Tree, entry: str, files: dict[str, str], message: str) -> None:
    """What is no package, or does not say what it needs, is refused with what to do."""
    root = tree(files)
    with pytest.raises(ConfigError, match=message):
        local_package(entry, located(root, local_path(entry) or ""))


def test_a_project_is_its_sources(tree: Tree) -> None:
    """Caches and old builds do not count; a changed source does, and where the project lies does not."""
    root = tree({"lib/pyproject.toml": PROJECT, "lib/a.py": "", "lib/dist/old.whl": "", "lib/__pycache__/a.pyc": ""})
    package = local_package("./lib", root / "lib")
    assert [name for name, _ in package.files] == ["a.py", "pyproject.toml"]
    assert package.name == "my-lib"
    (first,) = package_files([package])
    tree({"lib/dist/new.whl": "", "other/pyproject.toml": PROJECT, "other/a.py": ""})
    others = [local_package(f"./{name}", root / name) for name in ("lib", "other")]
    assert {each.digest for each in package_files(others)} == {first.digest}
    tree({"lib/a.py": "changed"})
    (changed,) = package_files([local_package("./lib", root / "lib")])
    assert changed.digest != first.digest
