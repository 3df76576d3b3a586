"""The compiler: text, order, origins, identity. Nothing here needs an engine."""

import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward.errors import ConfigError
from skyward.image import Plan, default_base, requirements_file
from skyward.image.origins import origins_of
from skyward.model.image import Image, PipIndex
from tests.unit.image.images import GOLDEN, IMAGES, compiled, text_of, torched

ROOT = Path(__file__).parents[3]
CPU = "https://download.pytorch.org/whl/cpu"
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
NAME = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True).filter(lambda name: name != "PYTHONPATH")


@pytest.mark.parametrize("name", IMAGES)
def test_golden_files(name: str) -> None:
    """What the compiler makes of these images changes only on purpose: `python -m tests.unit.image.images`."""
    assert text_of(name) == (GOLDEN / f"{name}.Dockerfile").read_text(encoding="utf-8")


def test_layers_stand_in_order_of_change() -> None:
    """What changes rarely comes first: apt, Python packages, runner, commands, environment, labels."""
    lines = compiled(IMAGES["everything"]).dockerfile.split("FROM python AS image")[1]
    marks = ["apt-get install", "uv pip install", "COPY runner", "compileall", "git --version", "ENV ", "LABEL "]
    places = [lines.rindex(mark) for mark in marks]
    assert places == sorted(places)


@pytest.mark.parametrize("name", IMAGES)
def test_only_dockerfile_1_2(name: str) -> None:
    """No instruction needs more than the engine's own BuildKit of 20.10 has."""
    text = compiled(IMAGES[name]).dockerfile
    words = [line.split()[0] for line in text.splitlines() if re.match(r"[A-Z]+ ", line)]
    assert set(words) <= {"FROM", "ENV", "RUN", "COPY", "LABEL", "ARG"}
    newer = r"^# *syntax|^(COPY|RUN|ADD) .*--(link|network|parents|exclude|checksum)|^RUN <<"
    assert not re.search(newer, text, re.MULTILINE)


def test_no_requirements_no_uv() -> None:
    """Without Python requirements neither the stage nor the mount of uv is there."""
    plan = compiled(Image(apt=["git"], run=["true"]))
    assert "uv" not in plan.dockerfile
    assert plan.files == ()


def test_steps_are_numbered_as_the_builder_counts() -> None:
    """Per stage: what runs or copies, and the one base that is pulled."""
    plan = compiled(IMAGES["everything"])
    steps = [(layer.stage, layer.step) for layer in plan.layers if layer.step]
    expected = [("python", 1), ("python", 2), ("uv", 1), *(("image", number) for number in range(1, 7))]
    assert steps == expected


def test_every_entry_knows_who_asked() -> None:
    """The user's entries and a plugin's are told apart, also when both are in one layer."""
    image = torched(Image(pip=["numpy"], run=["date"]))
    assert origins_of(image, "pip", tuple(image.pip)) == "your pip=['numpy'], plugin torch pip=['torch']"
    origins = {layer.name: layer.origin for layer in compiled(image).layers}
    assert origins["run date"] == "your run=['date'] (command 1 of 2)"
    assert origins["run true"] == "plugin torch (command 2 of 2)"


def test_origins_outlive_later_changes() -> None:
    """What the user gave stays the user's when a plugin names it again."""
    image = torched(Image(pip=["torch"])).pip_install("numpy")
    assert origins_of(image, "pip", tuple(image.pip)) == "your pip=['numpy', 'torch']"


def test_origins_decide_nothing() -> None:
    """Who asked for a package changes neither plan nor identity."""
    by_plugin, by_user = torched(Image()), Image(pip=["torch"], run=["true"])
    assert by_plugin == by_user
    assert compiled(by_plugin) == compiled(by_user)
    assert compiled(by_plugin).dockerfile == compiled(by_user).dockerfile


BASE = Image(pip=["numpy", "torch"], apt=["git"], run=["a", "b"], env={"A": "1"})


@pytest.mark.parametrize(
    ("image", "facts"),
    [
        (BASE.pip_install("pandas"), {}),
        (BASE.apt_install("curl"), {}),
        (replace(BASE, run=["b", "a"]), {}),
        (replace(BASE, run=["a b"]), {}),
        (BASE.with_env(A="2"), {}),
        (BASE.with_env(B=""), {}),
        (BASE.with_index(CPU, "torch"), {}),
        (replace(BASE, platform="linux/arm64"), {}),
        (BASE, {"platform": "linux/arm64"}),
        (BASE, {"python": "3.12"}),
        (BASE, {"base_digest": "sha256:1"}),
        (BASE, {"runner_digest": "1"}),
    ],
)
def test_content_decides_identity(image: Image, facts: dict[str, str]) -> None:
    """Everything that changes what is in the image changes its identity and tag."""
    plain, other = compiled(BASE), compiled(image, **facts)
    assert plain.identity != other.identity
    assert plain.tag != other.tag


def test_what_is_outside_decides_nothing() -> None:
    """The base's name beside its digest, and local code that is sent later, are not in the identity."""
    plain = compiled(BASE)
    sent = replace(BASE, includes=["./src"], excludes=["*.bin"])
    assert compiled(sent, base="mirror.example/python:3.11").identity == plain.identity
    assert "./src" not in compiled(sent).dockerfile


def test_separators_cannot_be_shifted() -> None:
    """Texts that join to the same string are still different contents."""
    pairs = [({"A": "1", "B": "2"}, {"A": '1" B="2'}), ({"A": "x\\"}, {"A": "x"}), ({"A": "$B"}, {"A": "\\$B"})]
    for one, other in pairs:
        assert compiled(Image(env=one)).identity != compiled(Image(env=other)).identity


def test_same_everywhere() -> None:
    """Hash seeds and construction orders do not change the identity."""
    code = """
import random, sys
from tests.unit.image.images import compiled
from skyward.model.image import Image, PipIndex
def mixed(*items): return sorted({*items}, key=lambda _: random.random())
index = PipIndex("https://download.pytorch.org/whl/cpu", mixed("torch", "torchvision", "torchaudio"))
env = dict(mixed(("A", "1"), ("B", "2"), ("C", "3")))
pip, apt = mixed("numpy", "Pandas >= 2", "torch"), mixed("git", "curl", "tree")
image = Image(pip=pip, apt=apt, env=env, pip_indexes=[index])
print(compiled(image).identity)
"""
    seen = set()
    for seed in ("0", "1", "2", "77", "random"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd="/", capture_output=True, text=True, check=True
        )
        seen.add(done.stdout)
    assert len(seen) == 1


def test_another_python_is_refused() -> None:
    """Functions cannot be sent to another minor version, so such an image is an error before any build."""
    with pytest.raises(ConfigError, match=r"python='3.12', but this client runs Python 3.11"):
        compiled(Image(python="3.12"))
    assert compiled(Image(python="3.11")).identity == compiled(Image()).identity


def test_default_base() -> None:
    """Without any other word the official slim image is the base."""
    assert default_base("3.13") == "python:3.13-slim"


def test_labels() -> None:
    """The image says what it is: identity, base, Python version."""
    plan = compiled(Image())
    expected = {"skyward.base", "skyward.image", "skyward.python"}
    assert set(plan.labels) == expected
    assert plan.labels["skyward.image"] == plan.identity
    assert plan.tag == f"skyward:sky-1-{plan.identity[:16]}"


def test_scoped_packages_have_one_source() -> None:
    """Each scoped package is pinned to its index; one the image does not list is an extra, installed when needed."""
    image = IMAGES["torch"]
    document = tomllib.loads(requirements_file(image, python="3.11"))
    uv = document["tool"]["uv"]
    assert uv["index"] == [{"name": "scoped-1", "url": CPU, "explicit": True}]
    assert uv["sources"] == {"torch": {"index": "scoped-1"}, "torchvision": {"index": "scoped-1"}}
    assert document["project"]["optional-dependencies"] == {"torchvision": ["torchvision"]}
    assert "for name in torchvision;" in compiled(image).dockerfile
    mirrored = tomllib.loads(requirements_file(image, python="3.11", mirrors={CPU: "http://127.0.0.1:1/x"}))
    assert mirrored["tool"]["uv"]["index"][0]["url"] == "http://127.0.0.1:1/x"


@given(st.dictionaries(NAME, TEXT, max_size=5))
def test_env_survives_the_dockerfile(env: dict[str, str]) -> None:
    """Whatever is in a value, the builder's reading of the text gives it back."""
    plan = compiled(Image(env=env))
    assert _read_env(plan) == env


@given(st.lists(TEXT.filter(str.strip), max_size=4))
def test_commands_survive_the_dockerfile(commands: list[str]) -> None:
    """Whatever is in a command, the shell gets it as it was given, after the site's settings."""
    lines = [line for line in compiled(Image(run=commands)).dockerfile.split("\n") if "/bin/sh" in line]
    words = [json.loads(line[line.index("[") :]) for line in lines]
    assert [word[:2] for word in words] == [["/bin/sh", "-ec"]] * len(commands)
    assert [word[2].split("\n", 1)[1] for word in words] == commands


@given(st.builds(Image, pip=st.lists(st.sampled_from(["numpy>=2", 'x[a]; os_name == "nt"', "y~=1.0"]), max_size=3)))
def test_requirements_survive(image: Image) -> None:
    """Specifiers with quotes, extras and markers arrive in the requirements file as they are."""
    document = tomllib.loads(requirements_file(image, python="3.11"))
    assert tuple(document["project"]["dependencies"]) == image.pip


@settings(max_examples=20)
@given(st.permutations(["a", "b", "c", "d"]))
def test_construction_order(names: list[str]) -> None:
    """Adding the same things in another order gives the same plan."""
    image = Image()
    for name in names:
        image = (
            image.pip_install(name)
            .apt_install(f"lib{name}")
            .with_env({name: name})
            .with_index(f"https://{name}.example", name)
        )
    assert (
        compiled(image).identity
        == compiled(
            Image(
                pip=["a", "b", "c", "d"],
                apt=["liba", "libb", "libc", "libd"],
                env={n: n for n in "abcd"},
                pip_indexes=[PipIndex(f"https://{n}.example", [n]) for n in "abcd"],
            )
        ).identity
    )


def test_compiling_is_fast() -> None:
    """A description of 80 packages compiles in 5 ms."""
    image = Image(pip=[f"package-{number}>={number}" for number in range(80)], apt=["git"], env={"A": "1"})
    best = min(_seconds(image) for _ in range(5))
    assert best < 0.005


def _seconds(image: Image) -> float:
    start = perf_counter()
    compiled(image)
    return perf_counter() - start


def _read_env(plan: Plan) -> dict[str, str]:
    """The last ENV of a Dockerfile, read by the format's rules: joined lines, quotes, escapes, `${}` replaced."""
    text = plan.dockerfile.split("COPY runner")[1]
    joined = re.sub(r"\\[ \t]*\n", "", text)
    lines = [line for line in joined.split("\n") if line.startswith("ENV ") and "=/opt/skyward" not in line]
    found: dict[str, str] = {}
    rest = lines[-1].removeprefix("ENV ").strip() if lines else ""
    while rest:
        name, _, rest = rest.partition('="')
        value, position = "", 0
        while rest[position] != '"':
            if rest[position] == "\\" and rest[position + 1] in '"$\\':
                position += 1
                value += rest[position]
            elif rest[position] == "$":
                end = rest.index("}", position)
                value += dict(plan.build_args)[rest[position + 2 : end]]
                position = end
            else:
                value += rest[position]
            position += 1
        found[name] = value
        rest = rest[position + 1 :].lstrip()
    return found
