"""Images as TOML files: what they mean, and what is said of mistakes."""

from pathlib import Path

import pytest

from skyward.builder.sources.declared import load
from skyward.errors import ConfigError
from skyward.model.image import Dockerfile, Image, PipIndex
from skyward.model.spec import Accelerator

ROOT = Path(__file__).parents[4]
FULL = """
base = "python:3.12-slim"
python = "3.12"
apt = ["git"]
pip = ["torch", "./lib"]
requirements = ["requirements.txt"]
groups = ["train"]
exclude_newer = 2026-05-31
run = ["b", "a"]
secrets = ["HF_TOKEN"]
includes = ["src"]
excludes = ["**/*.csv"]
bake = true
platform = "linux/arm64"
accelerator = "A100:4"
nodes = 2

[env]
A = "1"

[build_env]
B = "2"

[[pip_indexes]]
url = "https://download.pytorch.org/whl/cpu"
packages = ["torch"]

[plugins.torch]
version = "2.13.0"

[plugins.joblib]
"""


def written(path: Path, text: str) -> Path:
    """A file `x.toml` with this text."""
    file = path / "x.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_every_field_has_a_key(tmp_path: Path) -> None:
    """The keys are the fields of `Image` and what plugins need to know, and mean the same."""
    declared = load(written(tmp_path, FULL))
    assert declared.image == Image(
        base="python:3.12-slim",
        python="3.12",
        apt=["git"],
        pip=["torch", "./lib"],
        requirements=["requirements.txt"],
        groups=["train"],
        exclude_newer="2026-05-31",
        run=["b", "a"],
        secrets=["HF_TOKEN"],
        includes=["src"],
        excludes=["**/*.csv"],
        bake=True,
        platform="linux/arm64",
        env={"A": "1"},
        build_env={"B": "2"},
        pip_indexes=[PipIndex("https://download.pytorch.org/whl/cpu", ["torch"])],
    )
    assert declared.name == "x"
    assert declared.root == tmp_path
    assert declared.accelerator == Accelerator("A100", 4)
    assert declared.nodes == 2
    assert [(use.name, use.kwargs) for use in declared.plugins] == [("torch", {"version": "2.13.0"}), ("joblib", {})]


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ('base = "./x.Dockerfile"', Dockerfile("x.Dockerfile")),
        ('base = {dockerfile = "Dockerfile", context = "..", target = "a"}', Dockerfile("Dockerfile", "..", "a")),
    ],
)
def test_a_dockerfile_as_base(tmp_path: Path, text: str, base: Dockerfile) -> None:
    """A base is a reference, the path of a Dockerfile, or a table that says more of it."""
    assert load(written(tmp_path, text)).image.base == base


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("2026-05-31T12:00:00Z", "2026-05-31T12:00:00Z"),
        ('"2026-05-31"', "2026-06-01T00:00:00Z"),
        ("2026-05-31T14:00:00+02:00", "2026-05-31T12:00:00Z"),
    ],
)
def test_dates_of_toml(tmp_path: Path, value: str, kept: str) -> None:
    """A date may be TOML's own or a string."""
    assert load(written(tmp_path, f"exclude_newer = {value}")).image.exclude_newer == kept


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('pips = ["numpy"]', r"there is no key 'pips'. Did you mean pip"),
        ("qqq = 1", r"there is no key 'qqq'. Known keys: .*pip, .*nodes"),
        ('pip = "numpy"', r"pip must be a list of strings; found 'numpy'"),
        ('apt = ["git", 1]', r"apt must be a list of strings; found \['git', 1\]"),
        ("python = 3.12", r"python must be 'auto' or a minor version such as '3.12'; write python='3.12'"),
        ("nodes = 0", r"odes.*0"),
        ('base = {dockerfil = "x"}', r"base must be .* a table with dockerfile and perhaps context and target"),
        ("project = {groups = 1}", r"project.groups must be a list of strings; found 1"),
        (
            '[[pip_indexes]]\nurl = "https://a.example"',
            r"pip_indexes must be tables \[\[pip_indexes\]\], each with url",
        ),
        ('[[pip_indexes]]\nurl = "https://u:canary@a"\npackages = ["a"]', r"pip_indexes.url holds a user name"),
        ("plugins = [1]", r"plugins must be a list of names, or tables \[plugins.NAME\]"),
        ("exclude_newer = 2026-05-31T12:00:00", r"exclude_newer must be a date such as .* with its zone"),
        ('accelerator = "A100:x"', r"Accelerator 'A100:x'"),
        ("pip = [", r"cannot be read: "),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    """File, key, what was found and what is allowed stand in the message."""
    file = written(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        load(file)
    assert str(caught.value).startswith(str(file))
    assert "canary" not in str(caught.value)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    """One line for each."""
    file = written(tmp_path, 'python = "3"\npip = ["numpy", 1]\nbse = "x"\n[base]\ncontext = "."\n')
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert [line.removeprefix(f"{file}: ").split()[0] for line in str(caught.value).splitlines()] == [
        "python",
        "pip",
        "there",
        "base",
    ]
