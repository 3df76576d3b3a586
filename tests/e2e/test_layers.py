"""What each edit of an image rebuilds, on a real engine; that two clean builds make the same layers; what is in them.

The packages are small wheels with new names in every run, so that no layer of an earlier run is taken. One is named
as CUDA's libraries are, one as a framework, one as another large package, and one holds compiled code, as far as its
file's name tells.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from skyward.builder.docker import build as building
from skyward.builder.docker.command import find_command
from skyward.builder.files.copied import runner_files
from skyward.image import Plan, with_origin
from tests.e2e.building import Built, entries_of_layers, files_of_layers
from tests.unit.builder.wheels import make_wheel

WORD = secrets.token_hex(4)
CUDA, FRAME, BIG, NATIVE = f"nvidia-canary-{WORD}", f"cupy-{WORD}", f"onnxruntime-{WORD}", f"native{WORD}"
SMALL, OTHER, THIRD = f"small{WORD}", f"other{WORD}", f"third{WORD}"
PYTHON_TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"
BASE = f"skyward-test-{WORD}:base"
PYTHON, LIBRARIES, FRAMEWORK, LARGE, MEDIUM, APT, LIGHT, FIRST, SECOND, RUNNER = range(10)
EVERYTHING = set(range(10))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of wheels among this machine's package sources, and a cache with no lock in it."""
    place = tmp_path_factory.mktemp("layers")
    tag = f"{PYTHON_TAG}-{PYTHON_TAG}-manylinux_2_17_x86_64"
    for version in ("1.0", "2.0"):
        make_wheel(place / "wheels", CUDA.replace("-", "_"), version)
        make_wheel(place / "wheels", FRAME.replace("-", "_"), version, f"{CUDA}==1.0")
        make_wheel(place / "wheels", BIG.replace("-", "_"), version)
        make_wheel(place / "wheels", NATIVE, version, tag=tag, padding=2_000_000)  # a medium one
        make_wheel(place / "wheels", SMALL, version)
    make_wheel(place / "wheels", OTHER, "1.0", SMALL)
    make_wheel(place / "wheels", THIRD, "1.0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_FIND_LINKS", str(place / "wheels"))
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        patch.setenv("TOKEN", "canary-one")
        yield place


@pytest.fixture(scope="module")
def built(engine: Any, place: Path) -> Iterator[Built]:
    """With a base of this run, on which no earlier run has made a layer."""
    built = Built(sky.Docker().images, engine)
    _move_base(built, place, "first")
    yield built
    built.remove()


def _move_base(built: Built, place: Path, content: str) -> None:
    """Let the base's name mean another image."""
    (place / "Dockerfile").write_text(
        f"FROM {built.plan(sky.Image()).base}\nRUN echo {content} {WORD} > /base && rm -rf /opt/venv\n"
    )
    made = built(sky.Image.from_dockerfile(str(place / "Dockerfile"))).base
    built.made += [made, BASE]
    assert built.engine.images.get(made).tag(*BASE.split(":"))


def _image(**more: Any) -> sky.Image:
    given: dict[str, Any] = {
        "base": BASE,
        "apt": ["hello"],
        "pip": [f"{FRAME}==1.0", f"{BIG}==1.0", f"{NATIVE}==1.0", f"{SMALL}==1.0", THIRD],
        "run": [f"echo {WORD} > /first", "test -s /run/secrets/TOKEN"],
        "secrets": ["TOKEN"],
        "env": {"A": "1"},
    }
    return sky.Image(**{**given, **more})


@pytest.fixture(scope="module")
def first(built: Built) -> Plan:
    """The image that all edits start from, built; every edit finds its layers in the builder's cache."""
    plan = built(_image())
    assert _kinds(built) == EVERYTHING - {PYTHON}  # which was made on this base when the base was
    return plan


def _kinds(built: Built) -> set[int]:
    """Which kinds of layers the last build made anew."""
    kinds = {
        "apt ": APT,
        "Python ": PYTHON,
        f"pip {CUDA}": LIBRARIES,
        f"pip {FRAME}": FRAMEWORK,
        f"pip {BIG}": LARGE,
        f"pip {NATIVE}": MEDIUM,
        "pip ": LIGHT,
        "the runner": RUNNER,
        f"run echo {WORD}": FIRST,
        "run ": SECOND,
    }
    names = [name for name in built.made_anew() if not name.startswith("uv ")]  # a stage that is thrown away
    return {next(kind for start, kind in kinds.items() if name.startswith(start)) for name in names}


def _plugin(name: str, package: str, variable: str) -> Callable[[sky.Image], sky.Image]:
    return lambda image: with_origin(image, image.pip_install(package).with_env({variable: "1"}), f"plugin {name}")


@dataclass(frozen=True)
class Edit:
    """An edit of the image, and the kinds of layers it costs."""

    name: str
    image: sky.Image
    costs: set[int]


COMMANDS = {FIRST, SECOND, RUNNER}


def _pip(framework: str = "1.0", large: str = "1.0", native: str = "1.0", small: str = "1.0") -> list[str]:
    return [f"{FRAME}=={framework}", f"{BIG}=={large}", f"{NATIVE}=={native}", f"{SMALL}=={small}", THIRD]


EDITS = [
    Edit("env var", _image(env={"A": "2"}), set()),
    Edit("secret id renamed", _image(secrets=["RENAMED"], run=[f"echo {WORD} > /first", "true"]), COMMANDS),
    Edit("light dependency added", _image().pip_install(OTHER), {LIGHT, *COMMANDS}),
    Edit("light dependency removed", _image(pip=_pip()[:-1]), {LIGHT, *COMMANDS}),
    Edit("light dependency bumped", _image(pip=_pip(small="2.0")), {LIGHT, *COMMANDS}),
    Edit("medium dependency bumped", _image(pip=_pip(native="2.0")), {MEDIUM, APT, LIGHT, *COMMANDS}),
    Edit("large dependency bumped", _image(pip=_pip(large="2.0")), {LARGE, MEDIUM, APT, LIGHT, *COMMANDS}),
    Edit("torch bumped", _image(pip=_pip(framework="2.0")), {FRAMEWORK, LARGE, MEDIUM, APT, LIGHT, *COMMANDS}),
    Edit("apt package added", _image(apt=["hello", "tree"]), {APT, LIGHT, *COMMANDS}),
    Edit("run command changed", _image(run=[f"echo {WORD} > /first", "test -r /run/secrets/TOKEN"]), {SECOND, RUNNER}),
]


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_what_an_edit_costs(built: Built, first: Plan, monkeypatch: pytest.MonkeyPatch, edit: Edit) -> None:
    """Only layers above the edit are made anew; the others keep their digests."""
    monkeypatch.setenv("RENAMED", "canary-one")
    plan = built(edit.image)
    assert plan.tag != first.tag
    assert _kinds(built) == edit.costs
    before, after = built.layers(first.tag), built.layers(plan.tag)
    kept = len(EVERYTHING) - len(edit.costs)
    own = len(before) - len(EVERYTHING)  # the base's
    assert before[: own + kept] == after[: own + kept]


def test_an_apt_edit_changes_no_other_layer(built: Built, first: Plan) -> None:
    """What stands above it and is run anew becomes the same bytes, which a registry has: one layer is to be sent."""
    before, after = built.layers(first.tag), built.layers(built(_image(apt=["hello", "tree"])).tag)
    assert len(after) == len(before)
    assert [place - len(after) for place in range(len(after)) if after[place] != before[place]] == [
        APT - len(EVERYTHING)
    ]


def test_a_layer_holds_what_it_installs_and_nothing_else(built: Built, first: Plan) -> None:
    """Source and bytecode of its own packages; nothing of the layers below is written once more."""
    layers = [[each.name for each in layer] for layer in files_of_layers(built.engine.images.get(first.tag))]
    own = layers[-len(EVERYTHING) :]
    for kind, name in {LIBRARIES: CUDA, FRAMEWORK: FRAME, LARGE: BIG, MEDIUM: NATIVE, LIGHT: SMALL}.items():
        module = name.replace("-", "_")
        files = {path.rpartition("/")[2] for path in own[kind] if f"/{module}." in path}
        assert files == {f"{module}.py", f"{module}.cpython-{PYTHON_TAG[2:]}.pyc"}
        others = {each.replace("-", "_") for each in (CUDA, FRAME, BIG, NATIVE, SMALL)} - {module}
        assert not [path for path in own[kind] if any(f"/{other}" in path for other in others)]


def test_a_rotated_secret_builds_nothing(built: Built, first: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """The image is the same, and so it is there; even when it is built again, every layer is found made."""
    monkeypatch.setenv("TOKEN", "canary-two")
    assert built(_image()).tag == first.tag
    assert built.reports == []
    built.engine.images.remove(first.tag)
    built(_image())
    assert _kinds(built) == set()


def test_a_new_version_of_skyward_costs_its_own_layer(
    built: Built, first: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that is installed is installed again, and none of the user's commands runs again."""
    files = tuple(
        (path, data + b"\n# a patch\n" if path == "skyward/_version.py" else data) for path, data in runner_files()
    )
    monkeypatch.setattr("skyward.builder.plans.runner_digest", lambda: WORD)
    monkeypatch.setattr("skyward.builder.docker.build.runner_files", lambda: files)
    assert built(_image()).tag != first.tag
    assert _kinds(built) == {RUNNER}


def test_code_costs_nothing_until_it_is_baked(
    built: Built, first: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comment in local code builds nothing; where the code is baked in, it is the one layer that is made."""
    monkeypatch.chdir(tmp_path)
    for text in ("x = 1\n", "x = 1  # a comment\n"):
        Path("mine.py").write_text(text)
        assert built(_image(includes=["mine.py"])).tag == first.tag
        assert built.reports == []
        baked = built(_image(includes=["mine.py"], bake=True))
        assert built.made_anew() == ["local code"]
        assert built.run(baked, "import mine; print(mine.__file__, mine.x)") == "/opt/code/mine.py 1\n"
    assert built.layers(baked.tag)[:-1] == built.layers(first.tag)


def test_the_order_of_plugins_costs_nothing(built: Built, first: Plan) -> None:
    """What two plugins install and set is the same image, whichever comes first."""
    one, other = _plugin("one", OTHER, "ONE"), _plugin("other", f"{SMALL}<2", "OTHER")
    plan = built(one(other(_image())))
    assert built(other(one(_image()))).tag == plan.tag
    assert built.reports == []


def test_a_base_that_moved_costs_everything(built: Built, first: Plan, place: Path) -> None:
    """Another image behind the same name is another base: nothing made on the old one is used."""
    _move_base(built, place, "second")
    assert built(_image()).tag != first.tag
    assert _kinds(built) == EVERYTHING - {PYTHON}
    _move_base(built, place, "first")
    assert built(_image()).tag == first.tag
    assert built.reports == []


def test_two_clean_builds_make_the_same(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any cache the builder makes the same layers again, byte for byte; and no cache of a tool is in them."""
    (tmp_path / "mine.py").write_text("x = 1\n")
    monkeypatch.chdir(tmp_path)
    image = _image(pip=[FRAME, SMALL, "jinja2"], includes=["mine.py"], bake=True)
    command = find_command()
    without = replace(command, words=(*command.words, "--no-cache"))
    monkeypatch.setattr(building, "find_command", lambda **_: without)
    layers, contents = [], []
    for _ in range(2):
        plan = built(image)
        assert built.made_anew()[-1] == "local code"
        assert not [event for event in built.events if event.kind == "cached" and event.layer]
        layers.append(built.layers(plan.tag))
        contents.append(list(entries_of_layers(built.engine.images.get(plan.tag)))[len(built.layers(plan.base)) :])
        built.engine.images.remove(plan.tag)
    for first, second in zip(*contents, strict=True):
        assert set(first) ^ set(second) == set()  # names what differs
    assert layers[0] == layers[1]
    own = contents[1]
    caches = (
        "var/cache/apt/",
        "var/cache/uv",
        "var/lib/apt/lists/",
        "root/.cache/",
        "run/",
        "tmp/",
        "var/tmp/",
        "opt/uv",
    )
    left = [each.name for layer in own for each in layer if each.digest and each.size and each.name.startswith(caches)]
    assert left == []
    assert not [each.name for layer in own for each in layer if each.name.startswith(("opt/uv", "run/"))]


def test_local_packages(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel and a project are installed with what they need; a change of the project is another image of it."""
    monkeypatch.chdir(tmp_path)
    make_wheel(tmp_path / "dist", f"wheel{WORD}", "1.0", SMALL)
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        f'[build-system]\nrequires = ["flit_core"]\nbuild-backend = "flit_core.buildapi"\n'
        f'[project]\nname = "own{WORD}"\nversion = "1"\ndescription = "mine"\ndependencies = ["{OTHER}"]\n'
    )
    image = sky.Image(pip=[f"./dist/wheel{WORD}-1.0-py3-none-any.whl", "./project"])
    say = f"import wheel{WORD} as w, own{WORD} as o, {SMALL} as s, {OTHER}; print(w.version, o.x, s.version)"
    for value in (1, 2):
        (project / f"own{WORD}.py").write_text(f"x = {value}\n")
        assert built.run(built(image), say) == f"1.0 {value} 2.0\n"
    assert built.made_anew()[0].startswith(f"pip ./dist/wheel{WORD}")
    assert (project / f"own{WORD}.py").exists()
    assert sorted(path.name for path in project.iterdir()) == [f"own{WORD}.py", "pyproject.toml"]
