"""Importing skyward is light, and what runs in containers needs the standard library and cloudpickle only."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

import skyward

HEAVY = {"docker", "boto3", "paramiko", "pydantic", "rich", "torch", "numpy", "pandas", "asyncio", "requests"}
USER_MODULE = """
import skyward as sky

IMAGE = sky.Image(pip=["numpy>=2"], apt=["git"], env={"A": "b"})

@sky.compute(timeout=60)
@sky.stdout(only="head")
def train(x):
    return sky.shard(x)

@sky.pool(sky.Docker(), nodes=sky.Nodes(desired=2), image=IMAGE, worker=sky.Worker(concurrency=2))
def main():
    return (train(1) & train(2)) >> sky

@sky.pool(provider=sky.Local(), accelerator=sky.Accelerator("A100"), plugins=[])
def debug():
    return train(1) @ sky

assert sky.gather(train([1]), stream=True)
assert sky.instance_info() is None
assert train.local([1, 2]) == [1, 2]
"""


def run(code: str, *options: str) -> str:
    """What a fresh interpreter prints, every warning being an error."""
    command = [sys.executable, "-W", "error", *options, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded(code: str) -> set[str]:
    """Modules that a fresh interpreter loads for `code`, beyond those its start-up files load."""
    return set(run(f"import sys\nbefore = set(sys.modules)\n{code}\nprint(*set(sys.modules) - before)").split())


@pytest.mark.parametrize(
    "code",
    [
        "import skyward",
        "import skyward; skyward.compute; skyward.gather; skyward.sky; skyward.pool(nodes=2)",
        "import skyward; skyward.Accelerator('A100'); skyward.Nodes(desired=1); skyward.Image()",
        "import skyward; skyward.shard; skyward.stdout; skyward.stderr; skyward.silent; skyward.instance_info()",
        "import skyward; skyward.errors; skyward.plugins",
    ],
    ids=["root", "language", "values", "runtime", "modules"],
)
def test_the_language_loads_nothing_heavy(code: str) -> None:
    """The root, the decorators and the values that a user's module uses at its top load no heavy library."""
    assert not {name.partition(".")[0] for name in loaded(code)} & HEAVY


def test_the_root_loads_nothing_else() -> None:
    """`import skyward` loads its own file, and none of ours beside it."""
    assert loaded("import skyward") <= {"skyward", "types"}


def test_a_pool_of_plain_processes_loads_no_builder() -> None:
    """The compiler of images and the builder would take a third of its start; included files alone need them."""
    names = loaded(
        "import skyward as sky\n"
        "with sky.ComputePool(sky.Local(), display='quiet') as pool:\n"
        "    sky.compute(abs)(-1) >> pool"
    )
    assert not {name for name in names if name.startswith(("skyward.builder", "skyward.image"))}
    assert not {name.partition(".")[0] for name in names} & HEAVY


@pytest.fixture
def node_path(tmp_path: Path) -> Path:
    """A directory with what a node has beside the standard library: skyward and cloudpickle."""
    for package in (skyward, cloudpickle):
        home = Path(str(package.__file__)).parent
        (tmp_path / home.name).symlink_to(home)
    return tmp_path


@pytest.mark.parametrize(
    "code",
    ["import skyward.runner.worker, skyward.wire.payload", USER_MODULE],
    ids=["runner", "user's module"],
)
def test_nodes_need_cloudpickle_only(node_path: Path, code: str) -> None:
    """The runner, and what a user's module says at its top, work with the standard library and cloudpickle alone."""
    run(f"import sys\nsys.path.append({str(node_path)!r})\n{code}", "-I", "-S")


@pytest.mark.alone
def test_importing_the_root_costs_a_few_milliseconds() -> None:
    """`import skyward` takes less than 60 ms, the median of several, in an interpreter of its own."""
    script = "import time; start = time.perf_counter(); import skyward; print(time.perf_counter() - start)"
    times = [float(subprocess.check_output([sys.executable, "-c", script])) for _ in range(5)]

    assert statistics.median(times) < 0.060
