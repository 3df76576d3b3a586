"""The torch plugin: its packages; the process group of one rank, in a process of its own; a second one of user code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import skyward as sky
from skyward.errors import ConfigError
from skyward.model.image import Image, PipIndex
from skyward.model.spec import Accelerator, Cluster, ClusterSpec
from skyward.plugins import transform_all
from skyward.plugins._torch import suitable

CPU = "https://download.pytorch.org/whl/cpu"


def image(*plugins: sky.Plugin, accelerator: Accelerator | str | None = None, before: Image | None = None) -> Image:
    """The image of a pool with these plugins."""
    spec = ClusterSpec(nodes=2, accelerator=Accelerator.of(accelerator))
    return transform_all(before or Image(), plugins, Cluster(spec=spec))


def test_cpu_pools_get_the_cpu_build() -> None:
    """Without an accelerator torch comes from the CPU index, and nothing else does; without numpy it would warn."""
    assert image(sky.plugins.torch()) == Image(pip=["numpy", "torch"], pip_indexes=[PipIndex(CPU, ["torch"])])


@pytest.mark.parametrize(
    ("version", "requirement"),
    [
        ("latest", "torch"),
        ("2.3.0", "torch==2.3.0"),
        ("2.13.0+cpu", "torch==2.13.0+cpu"),
        ("==2.3.*", "torch==2.3.*"),
        (">=2.3", "torch>=2.3"),
        (">2.3", "torch>2.3"),
        ("<=2.3", "torch<=2.3"),
        ("<2.3", "torch<2.3"),
        ("~=2.3", "torch~=2.3"),
        ("!=2.3.1", "torch!=2.3.1"),
        ("===2.3.1", "torch===2.3.1"),
        (" >= 2.3, < 3 ", "torch<3,>=2.3"),
    ],
)
def test_versions(version: str, requirement: str) -> None:
    """A bare version pins, a specifier passes through, with every operator there is."""
    assert image(sky.plugins.torch(version=version)).pip == ("numpy", requirement)


def test_what_is_there_stays() -> None:
    """Packages and indexes of the user are kept, also one that the user takes torch from."""
    other = PipIndex("https://packages.example/simple", ["mine"])
    mirror = PipIndex("https://mirror.example/torch", ["torch"])

    assert image(sky.plugins.torch(), before=Image(pip=["mine", "numpy<2"], pip_indexes=[other])) == Image(
        pip=["mine", "numpy<2", "torch"], pip_indexes=[other, PipIndex(CPU, ["torch"])]
    )
    kept = image(sky.plugins.torch(vision="latest"), before=Image(pip=["torch==2.3.0"], pip_indexes=[mirror]))
    assert kept.pip_indexes == Image(pip_indexes=[mirror, PipIndex(CPU, ["torchvision"])]).pip_indexes


def test_the_trainer_gets_what_it_needs_in_either_order() -> None:
    """Transformers with torch bring accelerate; transformers alone do not, as it would bring a torch of its own."""
    torch, huggingface = sky.plugins.torch(), sky.plugins.huggingface()

    assert image(torch, huggingface) == image(huggingface, torch)
    assert "accelerate" in image(torch, huggingface).pip
    assert image(huggingface).pip == ("datasets", "tokenizers", "transformers")
    pinned = image(torch, huggingface, before=Image(pip=["accelerate==1.15.0", "transformers==5.23.0"])).pip
    assert pinned == ("accelerate==1.15.0", "datasets", "numpy", "tokenizers", "torch", "transformers==5.23.0")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"backend": "mpi"}, "backend takes 'nccl', 'gloo' or None; found 'mpi'"),
        ({"cuda": "12.8"}, "cuda takes .* 'cu128'; found '12.8'"),
        ({"version": "two"}, "version takes 'latest', .* found 'two'"),
        ({"version": ""}, "version takes 'latest', .* found ''"),
        ({"vision": ">="}, "vision takes 'latest', .* found '>='"),
        ({"audio": 2.3}, "audio takes 'latest', .* found 2.3"),
    ],
    ids=str,
)
def test_wrong_parameters_are_refused_where_they_are_given(given: dict[str, Any], message: str) -> None:
    """Before there is a pool, with the parameter's name and the value."""
    with pytest.raises(ConfigError, match=message):
        sky.plugins.torch(**given)


pytest.importorskip("torch", reason="torch is not installed here; `pip install -e .[dev]` brings it")

Run = Callable[..., list[str]]
HEAD = """
import os
import warnings
import torch
import torch.distributed as dist
from skyward.errors import ConfigError, PluginError
from skyward.model.instance import InstanceInfo, Peer
from skyward.plugins._torch import around_workers, process_group

def place(**given):
    return InstanceInfo(**{"node": 0, "total_nodes": 1, "head_addr": "127.0.0.1", "head_port": 0, **given})

def total():
    value = torch.ones(1)
    dist.all_reduce(value)
    return value.item()
"""


# Imports torch once, which takes seconds, and forks a process for each piece of code; it has no threads by then.
ZYGOTE = f"""
import json, sys, traceback
{HEAD}
for line in sys.stdin:
    code, variables = json.loads(line)
    ours, theirs = os.pipe()
    if (pid := os.fork()) == 0:
        os.dup2(theirs, 1)
        os.environ.update(variables)
        status = 1
        try:
            exec(code, dict(globals()))
            status = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        said = pipe.read()
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said]), flush=True)
"""


@pytest.fixture(scope="module")
def zygote() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported torch."""
    clean = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")}
    with subprocess.Popen(
        [sys.executable, "-c", ZYGOTE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean
    ) as process:
        yield process
        assert process.stdin
        process.stdin.close()


@pytest.fixture
def run(zygote: subprocess.Popen[str]) -> Run:
    """The lines that a process of its own prints for a piece of code."""

    def run(code: str, **env: str) -> list[str]:
        assert zygote.stdin
        assert zygote.stdout
        zygote.stdin.write(json.dumps([textwrap.dedent(code), env]) + "\n")
        zygote.stdin.flush()
        status, said = json.loads(zygote.stdout.readline())
        assert status == 0, f"its traceback is in the captured stderr; it printed {said!r}"
        return str(said).splitlines()

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("rank=3, world_size=1", "init_process_group(rank=3): in the group of this pool this process has rank 0."),
        ("world_size=4, rank=0", "init_process_group(world_size=4): in the group of this pool this process has world_"),
        ("'mpi'", ""),  # a backend that this build of torch lacks: nothing that could be meant
        ("'fake'", "The process group of this pool uses gloo, and fake is asked for. Name the backend where the group"),
    ],
)
def test_a_second_init_that_asks_for_something_else(arguments: str, message: str, run: Run) -> None:
    """A conflict is an error that says what there is and where to say otherwise."""
    lines = run(
        f"""
        import torch.testing._internal.distributed.fake_pg  # a backend that this machine could use
        with process_group(place()):
            try:
                dist.init_process_group({arguments})
            except ConfigError as error:
                print(error)
        """
    )

    assert "".join(lines).startswith(message)
    assert len(lines) == bool(message)


def test_nccl_without_a_gpu_is_an_error_that_says_so(run: Run) -> None:
    """Before anything waits for anybody."""
    lines = run(
        """
        try:
            with process_group(place(), backend="nccl"):
                pass
        except PluginError as error:
            print(error)
        """,
        CUDA_VISIBLE_DEVICES="",
    )

    assert len(lines) == 1
    assert lines[0].startswith("torch: the backend nccl needs a GPU, and node 0 has none that CUDA can use.")


@pytest.mark.parametrize(
    ("gpus", "backend"),
    [(["a", "b"], "nccl"), (["a", "a"], "gloo"), (["a", "b", "b"], "gloo"), ([None, None], "nccl")],
)
def test_ranks_that_share_a_gpu_use_gloo(gpus: list[str | None], backend: str) -> None:
    """NCCL refuses them with "invalid usage". A torch that does not tell which GPU it uses is taken to have its own."""
    assert suitable(gpus, None) == backend


def test_each_rank_tells_the_others_which_gpu_it_has(run: Run) -> None:
    """And takes the backend that suits all; with a stand-in for CUDA and for the other rank."""
    lines = run(
        """
        import types
        from skyward.plugins import _torch
        torch.cuda.is_available = lambda: True
        torch.cuda.device_count = lambda: 1
        torch.cuda.set_device = lambda device: None
        torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(uuid="1234")
        _torch.gather = lambda value, name, timeout_s: [value, "1234"]
        with process_group(place()):
            print(dist.get_backend(), total())
        """
    )

    assert lines == ["gloo 1.0"]
