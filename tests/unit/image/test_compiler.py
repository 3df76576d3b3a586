"""The compiler: text, order, origins, identity. Nothing here needs an engine."""

import hashlib
import io
import re
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skyward.builder.docker.build import mount_points_archive
from skyward.builder.files.copied import runner_files
from skyward.errors import ConfigError
from skyward.image import (
    TIME,
    BaseFacts,
    Copied,
    Lock,
    Package,
    Plan,
    requirements_file,
)
from skyward.image.lock import index_id, tier_files
from skyward.image.plan import origins_of
from skyward.image.steps import UV
from skyward.model.image import Image, PipIndex
from tests.unit.image.images import IMAGES, compiled, torched
from tests.unit.image.steps import SCRIPTS, uv_calls

ROOT = Path(__file__).parents[3]
CPU = "https://download.pytorch.org/whl/cpu"
WHEEL = Copied(folder="local/lib", digest="d1", target="lib/lib-1.0-py3-none-any.whl", files=())
CODE = Copied(folder="code", digest="d2", files=())
PYTHON = ("3.11", "/usr/bin/python3")


@pytest.mark.parametrize("name", IMAGES)
def test_only_dockerfile_1_2(name: str) -> None:
    """No instruction needs more than the engine's own BuildKit of 20.10 has."""
    text = compiled(IMAGES[name]).dockerfile
    words = [line.split()[0] for line in text.splitlines() if re.match(r"[A-Z]+ ", line)]
    assert set(words) <= {"FROM", "ADD", "ENV", "RUN", "COPY", "LABEL", "ARG"}
    newer = r"^# *syntax|^(COPY|RUN|ADD) .*--(link|network|parents|exclude|checksum)|^RUN <<"
    assert not re.search(newer, text, re.MULTILINE)


def test_every_entry_knows_who_asked() -> None:
    """The user's entries and a plugin's are told apart, also when both are in one layer."""
    image = torched(Image(pip=["numpy"], run=["date"]))
    assert origins_of(image, "pip", tuple(image.pip)) == "your pip=['numpy'], plugin torch pip=['torch']"
    origins = {layer.name: layer.origin for layer in compiled(image).layers}
    assert origins["run date"] == "your run=['date'] (command 1 of 2)"
    assert origins["run true"] == "plugin torch (command 2 of 2)"


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
        (replace(BASE, build_env={"A": "1"}), {}),
        (replace(BASE, secrets=["TOKEN"]), {}),
        (BASE, {"packages": (WHEEL,)}),
        (BASE, {"code": CODE}),
        (BASE, {"lock": Lock()}),
    ],
)
def test_content_decides_identity(image: Image, facts: dict[str, Any]) -> None:
    """Everything that changes what is in the image changes its identity and tag."""
    plain, other = compiled(BASE), compiled(image, **facts)
    assert plain.identity != other.identity
    assert plain.tag != other.tag


TORCH = Package(name="torch", pin="torch==2.13.0+cpu", hashes=("sha256:aa", "sha256:bb"), index=CPU)
SIX = Package(name="six", pin="six==1.17.0", hashes=("sha256:cc",))
BIG = Package(name="big", pin="big==1", hashes=("sha256:dd",), size=80_000_000)
NUMPY = Package(name="numpy", pin="numpy==2", hashes=("sha256:ab",))
NCCL = Package(name="nvidia-nccl-cu12", pin="nvidia-nccl-cu12==2", hashes=("sha256:ff",))
REPOSITORY = Package(name="own", pin="own @ git+https://a.example/own@c0ffee", build=(TORCH,))
SCOPED = Image(pip=["torch", "six", "big", "own @ git+https://a.example/own"], pip_indexes=[PipIndex(CPU, ["torch"])])


def test_a_lock_is_split_by_size_and_source(tmp_path: Path) -> None:
    """What is large by name or by size is apart from the rest; each source has a file that uv reads in its own way."""
    lock = Lock((TORCH, SIX, BIG, REPOSITORY, NUMPY, NCCL))
    files = dict(tier_files(lock))
    assert files == {
        "requirements/cuda/locked.txt": "nvidia-nccl-cu12==2 --hash=sha256:ff\n",
        f"requirements/framework/index-{index_id(CPU)}.txt": "torch==2.13.0+cpu --hash=sha256:aa --hash=sha256:bb\n",
        "requirements/large/locked.txt": "big==1 --hash=sha256:dd\n",
        "requirements/medium/locked.txt": "numpy==2 --hash=sha256:ab\n",
        "requirements/light/locked.txt": "six==1.17.0 --hash=sha256:cc\n",
        "requirements/source/own.source.txt": "own @ git+https://a.example/own@c0ffee\n",
        "requirements/source/own.build.txt": "torch==2.13.0+cpu --hash=sha256:aa --hash=sha256:bb\n",
        "requirements/source/own.pages.txt": f"{CPU} torch\n",
    }
    plan = compiled(SCOPED, lock=lock)
    assert dict(plan.files).items() >= files.items()
    assert all(f"source={Path(path).parent}," in plan.dockerfile for path in files)
    calls = uv_calls(plan, tmp_path)
    assert ["--require-hashes" in call for call in calls] == [True] * 4 + [False, True]  # a commit has no hash
    assert ["--require-build-hashes" in call for call in calls] == [False] * 4 + [True, False]
    assert calls[4][-2:] == ["--find-links", f"{CPU}/torch/"]
    assert calls[1][-2:] == ["--default-index", CPU]
    assert (SCRIPTS / "uv.sh").read_text().count("--require-hashes") == 1
    assert f"\nuv=={UV} " in (SCRIPTS / "uv.txt").read_text()


@pytest.mark.parametrize(
    ("package", "tier"),
    [
        (Package(name="nvidia-cublas-cu12", pin="", size=10), "cuda"),
        (Package(name="torch", pin=""), "framework"),
        (Package(name="jax-cuda12-plugin", pin=""), "framework"),
        (Package(name="unheard-of", pin="", size=50_000_000), "large"),
        (Package(name="pyarrow", pin=""), "large"),
        (Package(name="unheard-of", pin="", size=1_000_000), "medium"),
        (Package(name="unheard-of", pin="", compiled=True), "medium"),
        (Package(name="transformers", pin=""), "medium"),
        (Package(name="unheard-of", pin="", size=999_999, compiled=True), "light"),
        (Package(name="unheard-of", pin=""), "light"),
        (Package(name="torchmetrics", pin=""), "light"),
        (Package(name="own", pin="own @ git+https://a.example/own@c0ffee", build=()), "source"),
        (Package(name="flash-attn", pin="", build=()), "source"),
    ],
    ids=lambda value: value.name if isinstance(value, Package) else value,
)
def test_the_layer_of_a_package(package: Package, tier: str) -> None:
    """Names decide, then sizes; compiled code counts where no size is told."""
    assert package.tier == tier


def test_the_lock_decides_and_the_split_does_not() -> None:
    """The locked packages are in the identity; where an index tells sizes, the same packages are the same image."""
    lock, sized = Lock((SIX, BIG)), Lock((SIX, replace(BIG, size=None)))
    image = Image(pip=["six", "big"])
    assert compiled(image, lock=lock).identity == compiled(image, lock=sized).identity
    assert compiled(image, lock=lock).dockerfile != compiled(image, lock=sized).dockerfile
    bumped = Lock((replace(SIX, pin="six==1.18.0"), BIG))
    assert compiled(image, lock=bumped).identity != compiled(image, lock=lock).identity


@pytest.mark.parametrize(
    ("image", "facts"),
    [
        (Image(pip=["own"], build_env={"CMAKE_ARGS": "-DCUDA=on"}), {}),
        (Image(pip=["own"], apt=["libpq-dev"]), {}),
        (Image(pip=["own"]), {"base_digest": "sha256:other"}),
        (Image(pip=["own"]), {"python": "3.12"}),
        (Image(pip=["own"]), {"platform": "linux/arm64"}),
    ],
)
@pytest.mark.parametrize("local", [False, True])
def test_what_is_built_has_a_cache_for_what_it_is_built_with(image: Image, facts: dict[str, Any], local: bool) -> None:
    """Another base, apt list, variable, Python or platform is another cache; wheels alone share one."""
    project = Copied(folder="local/own", digest="d", target="own", files=())
    given: dict[str, Any] = {"lock": Lock((SIX, REPOSITORY))}
    if local:
        given = {"lock": Lock((SIX,), projects=(("own", ()),)), "packages": (project,)}
    one, other = _caches(compiled(Image(pip=["own"]), **given)), _caches(compiled(image, **given, **facts))
    assert len(one) == len(other) == 2
    assert one - other == {each for each in one if "built" in each or "platform" in facts}
    assert not any("built" in each for each in _caches(compiled(image, lock=Lock((SIX,)), **facts)))


def _caches(plan: Plan) -> set[str]:
    """The names of caches of uv's."""
    return {name for name in re.findall(r"type=cache,id=([\w-]+)", plan.dockerfile) if "apt" not in name}


def test_what_a_build_takes_is_in_the_identity() -> None:
    """Another version of what a package is built with is another image, and another folder of the cache."""
    newer = replace(REPOSITORY, build=(replace(TORCH, pin="torch==3"),))
    one, other = compiled(SCOPED, lock=Lock((REPOSITORY,))), compiled(SCOPED, lock=Lock((newer,)))
    assert one.identity != other.identity
    assert (
        dict(one.files)["requirements/source/own.build.txt"] != dict(other.files)["requirements/source/own.build.txt"]
    )
    assert 'cat /var/lib/dpkg/status "$constraints"' in (SCRIPTS / "uv_pip.sh").read_text()


def test_packages_are_chosen_for_the_platform_they_were_locked_for(tmp_path: Path) -> None:
    """A wheel that fits the node better, but was not locked, would not have the lock's hash."""
    plan = compiled(SCOPED, lock=Lock((SIX, TORCH, REPOSITORY), target="x86_64-manylinux_2_36"))
    calls = uv_calls(plan, tmp_path)
    chosen = [call[call.index("--python-platform") + 1] for call in calls]
    assert chosen == ["x86_64-manylinux_2_36"] * 3


def test_one_more_small_package_leaves_the_large_ones() -> None:
    """Neither text nor files of larger packages' layers change, also where a new index is named for the other."""
    large = (TORCH, BIG, NUMPY, NCCL)
    before = compiled(SCOPED, lock=Lock((*large, SIX)))
    more = Package(name="more", pin="more==1", hashes=("sha256:ee",), index="https://a.example")
    after = compiled(SCOPED.pip_install("more").with_index("https://a.example", "more"), lock=Lock((*large, SIX, more)))
    for tier in ("cuda", "framework", "large", "medium"):
        kept = [next(layer.text for layer in plan.layers if f"/{tier}," in layer.text) for plan in (before, after)]
        files = [[file for file in plan.files if f"/{tier}/" in file[0]] for plan in (before, after)]
        assert kept[0] == kept[1]
        assert files[0] == files[1]


def _small(*names: str, size: int | None = 100_000) -> tuple[Package, ...]:
    return tuple(Package(name=name, pin=f"{name}==1", hashes=("sha256:aa",), size=size) for name in names)


MANY = _small(*(f"package-{number}" for number in range(100)))


@pytest.mark.parametrize("beside", [(), (NUMPY,), (TORCH, NUMPY), (NCCL, TORCH, BIG, NUMPY, REPOSITORY)])
def test_small_packages_are_split_where_they_are_many(beside: tuple[Package, ...]) -> None:
    """No part is large, together they are all of them, and there are at most ten layers of packages."""
    groups = Lock((*MANY, *beside)).groups
    light = [group for group in groups if group.tier == "light"]
    assert sorted(package.name for group in light for package in group.packages) == [
        p.name for p in Lock(MANY).packages
    ]
    assert max(len(group.packages) for group in light) < (25 if NCCL not in beside and TORCH not in beside else 40)
    assert len(groups) <= 10


@pytest.mark.parametrize("size", [1, 999_999, None])
def test_one_more_small_package_changes_one_part(size: int | None) -> None:
    """The others keep their packages and so their files, whatever the new one is called."""
    before = {group.name: group.packages for group in Lock(MANY).groups}
    for number in range(30):
        after = {group.name: group.packages for group in Lock((*MANY, *_small(f"new{number}", size=size))).groups}
        assert sum(before.get(name) != packages for name, packages in after.items()) == 1


def test_the_mount_points_of_builders_are_the_same_bytes() -> None:
    """Empty files below /etc with a fixed time: no builder has to make them, and change that of /etc."""
    with tarfile.open(fileobj=io.BytesIO(mount_points_archive())) as archive:
        members = {member.name: (member.size, member.mode, member.mtime, member.uid) for member in archive}
    assert members == {
        "etc": (0, 0o755, TIME, 0),
        "etc/hosts": (0, 0o644, TIME, 0),
        "etc/resolv.conf": (0, 0o644, TIME, 0),
    }
    assert hashlib.sha256(mount_points_archive()).hexdigest()[:8] == "05936ede"


def test_what_nodes_load_has_bytecode() -> None:
    """Of our own files, those of packages that only clients use go without; each of these packages is there."""
    (left_out,) = re.findall(r"^clients='(\S+)'$", (SCRIPTS / "runner.sh").read_text(), re.MULTILINE)
    without = {path for path, _ in runner_files() if re.match(left_out, path.removeprefix("skyward/"))}
    packages = {path.split("/")[1] for path in without}
    assert packages == {"_pool", "builder", "delivery", "engine", "image", "nodes", "providers", "runs", "ssh"}
    for modules, asked in (
        ("skyward.runner.agent, skyward.runner.worker, skyward.plugins.hooks", "skyward."),
        ("skyward.runs.driver, skyward.runs.keys, skyward.runs.saved", "skyward.runs."),  # of the driver of a run
    ):
        code = f"import sys, {modules}; print(*sys.modules)"
        loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        assert set(modules.split(", ")) <= set(loaded)
        assert {f"{name.replace('.', '/')}.py" for name in loaded if name.startswith(asked)}.isdisjoint(without)


def test_build_env_is_seen_by_build_steps_only() -> None:
    """It is mounted where packages are installed and commands run; no ENV has it."""
    value = 'it\'s "$HOME"\nand more'
    plan = compiled(Image(apt=["git"], pip=["six"], run=["true"], build_env={"FLAGS": value}))
    texts = [layer.text for layer in plan.layers if "source=build-env.sh" in layer.text]
    assert len(texts) == 3
    assert "FLAGS" not in plan.dockerfile
    script = dict(plan.files)["build-env.sh"]
    shell = ["sh", "-c", f'{script}printf %s "$FLAGS"']
    assert subprocess.run(shell, capture_output=True, text=True, check=True).stdout == value


def test_another_python_is_refused() -> None:
    """Functions cannot be sent to another minor version, so such an image is an error before any build."""
    with pytest.raises(ConfigError, match=r"python='3.12', but this client runs Python 3.11"):
        compiled(Image(python="3.12"))
    assert compiled(Image(python="3.11")).identity == compiled(Image()).identity


def test_scoped_packages_have_one_source() -> None:
    """Each scoped package is pinned to its index; one the image does not list is an extra, installed when needed."""
    image = IMAGES["torch"]
    document = tomllib.loads(requirements_file(image, image.pip, python="3.11"))
    uv = document["tool"]["uv"]
    assert uv["index"] == [{"name": "scoped-1", "url": CPU, "explicit": True}]
    assert uv["sources"] == {"torch": {"index": "scoped-1"}, "torchvision": {"index": "scoped-1"}}
    assert document["project"]["optional-dependencies"] == {"torchvision": ["torchvision"]}
    assert f"install index-{index_id(CPU)}.txt={CPU}\n" in compiled(image).dockerfile
    mirrored = tomllib.loads(requirements_file(image, image.pip, python="3.11", places={CPU: {"url": "http://m"}}))
    assert mirrored["tool"]["uv"]["index"][0]["url"] == "http://m"


def test_a_python_is_brought_where_the_base_has_another() -> None:
    """By uv, from a stage of its own on the base, else by apt; the name of the image does not tell who brought it."""
    image = Image(apt=["git"])
    plan = compiled(image, python="3.12", given=BaseFacts(pythons=[PYTHON], user="app", apt=True))
    stages = [line for line in plan.dockerfile.splitlines() if line.startswith(("FROM", "USER"))]
    base = "FROM python:3.11-slim AS"
    assert stages == [f"{base} uv", "USER 0:0", f"{base} python", "USER 0:0", "FROM python AS image", "USER app"]
    assert "step.sh python 3.12 bring\n" in plan.dockerfile
    script = (SCRIPTS / "python.sh").read_text()
    assert "uv python install" in script
    assert '"python$wanted-venv"' in script
    own = compiled(image, python="3.12", given=BaseFacts(pythons=[("3.12", "/usr/bin/python3")]))
    assert "uv" not in own.dockerfile
    assert "step.sh python 3.12\n" in own.dockerfile
    assert own.tag == plan.tag
