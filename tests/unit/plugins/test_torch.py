"""The torch plugin: its packages; the process group of one rank; a second one of user code."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

import skyward as sky
from skyward.errors import ConfigError, PluginError
from skyward.model.image import Image, PipIndex
from skyward.model.instance import InstanceInfo
from skyward.model.spec import Accelerator, Cluster, ClusterSpec
from skyward.plugins import _torch, transform_all
from skyward.plugins._torch import process_group, suitable
from skyward.plugins.base import versioned

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
        ("2.7.0rc1", "torch==2.7.0rc1"),
        ("==2.3.*", "torch==2.3.*"),
        (">=2.3", "torch>=2.3"),
        (">2.3", "torch>2.3"),
        ("<=2.3", "torch<=2.3"),
        (">2.5,<2.6", "torch<2.6,>2.5"),
        ("~=2.3", "torch~=2.3"),
        ("!=2.3.1", "torch!=2.3.1"),
        ("===2.3.1", "torch===2.3.1"),
        (" >= 2.3, < 3 ", "torch<3,>=2.3"),
    ],
)
def test_versions(version: str, requirement: str) -> None:
    """A bare version pins, a specifier passes through, with every operator there is."""
    assert image(sky.plugins.torch(version=version)).pip == ("numpy", requirement)


@pytest.mark.parametrize(
    "version", ["2.2.2", "2.2.2+cpu", "<2.3", "~=2.1.0", "==2.2.*", "===1.13.1", ">=2,<2.3", ">=2,!=2.1,<=2.2.2"]
)
def test_torch_before_2_3_gets_numpy_1(version: str) -> None:
    """It was built for that, and cannot read arrays of numpy 2; also if the image names the version, or numpy."""
    assert "numpy<2" in image(sky.plugins.torch(version=version)).pip
    named = image(
        sky.plugins.torch(),
        before=Image(pip=["numpy", versioned("torch", version, where=""), "./mine-1.0-py3-none-any.whl"]),
    )
    assert {"numpy", "numpy<2"} <= {*named.pip}


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


torch = pytest.importorskip("torch", reason="torch is not installed here; `pip install -e .[dev]` brings it")
dist = torch.distributed
PLACE = InstanceInfo(node=0, total_nodes=1, head_addr="127.0.0.1", head_port=0)


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the group sets in the environment is undone."""
    monkeypatch.setattr(_torch, "_warned", set())
    with mock.patch.dict(os.environ):
        yield


@pytest.mark.parametrize(
    ("asked", "outcome"),
    [
        (
            {"rank": 3, "world_size": 1},
            (ConfigError, "init_process_group(rank=3): in the group of this pool"),
        ),
        ({"rank": 0, "world_size": 4}, (ConfigError, "init_process_group(world_size=4): in the group of this pool")),
        ({"backend": "fake"}, (ConfigError, "The process group of this pool uses gloo, and fake is asked for. Name")),
        ({"backend": "mpi"}, (UserWarning, "is kept: this call does nothing")),  # this build of torch lacks it
    ],
    ids=str,
)
@pytest.mark.usefixtures("variables")
def test_a_second_init_that_asks_for_something_else(asked: dict[str, Any], outcome: tuple[Any, str]) -> None:
    """A conflict is an error that says what there is and where to say otherwise."""

    with process_group(PLACE), pytest.raises(outcome[0], match=re.escape(outcome[1])):
        dist.init_process_group(**asked)


@pytest.mark.usefixtures("variables")
def test_nccl_without_a_gpu_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything waits for anybody."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(PluginError, match="torch: the backend nccl needs a GPU"), process_group(PLACE, backend="nccl"):
        pass


@pytest.mark.parametrize(
    ("gpus", "backend"),
    [(["a", "b"], "nccl"), (["a", "a"], "gloo"), (["a", "b", "b"], "gloo"), ([None, None], "nccl")],
)
def test_ranks_that_share_a_gpu_use_gloo(gpus: list[str | None], backend: str) -> None:
    """NCCL refuses them with "invalid usage". A torch that does not tell which GPU it uses is taken to have its own."""
    assert suitable(gpus, None) == backend


@pytest.mark.usefixtures("variables")
def test_each_rank_tells_the_others_which_gpu_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """And takes the backend that suits all; with a stand-in for CUDA and for the other rank."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace(uuid="1234"))
    monkeypatch.setattr(_torch, "gather", lambda value, **_: [value, "1234"])
    with process_group(PLACE):
        assert dist.get_backend() == "gloo"
