"""The torch plugin's build half: which packages, in which version, from which index; and what it refuses."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest

import skyward as sky
from skyward.errors import ConfigError
from skyward.model.image import Image, PipIndex
from skyward.model.spec import Accelerator, Cluster, ClusterSpec
from skyward.plugins import transform_all

CPU = "https://download.pytorch.org/whl/cpu"


def image(*plugins: sky.Plugin, accelerator: Accelerator | str | None = None, before: Image | None = None) -> Image:
    """The image of a pool with these plugins."""
    spec = ClusterSpec(nodes=2, accelerator=Accelerator.of(accelerator))
    return transform_all(before or Image(), plugins, Cluster(spec=spec))


def test_cpu_pools_get_the_cpu_build() -> None:
    """Without an accelerator torch comes from the CPU index, and nothing else does; without numpy it would warn."""
    assert image(sky.plugins.torch()) == Image(pip=["numpy", "torch"], pip_indexes=[PipIndex(CPU, ["torch"])])


@pytest.mark.parametrize("accelerator", ["A100", "A100:4", "a100", Accelerator("A100"), Accelerator("T4", count=2)])
def test_cuda_pools_get_the_cuda_build(accelerator: Accelerator | str) -> None:
    """By name or as an object, with a count or without."""
    assert image(sky.plugins.torch(), accelerator=accelerator).pip_indexes == (
        PipIndex("https://download.pytorch.org/whl/cu128", ["torch"]),
    )
    assert image(sky.plugins.torch(cuda="cu124"), accelerator=accelerator).pip_indexes[0].url.endswith("/whl/cu124")


@pytest.mark.parametrize("accelerator", ["Trainium", "MI300X", Accelerator("A100", cuda=False)])
def test_other_accelerators_get_the_cpu_build(accelerator: Accelerator | str) -> None:
    """An accelerator that does not run CUDA has no use for its packages."""
    assert image(sky.plugins.torch(), accelerator=accelerator).pip_indexes[0].url == CPU


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


def test_vision_and_audio_have_versions_of_their_own() -> None:
    """Each is installed with its own value, from the same index; None leaves it out."""
    made = image(sky.plugins.torch(version="2.3.0", vision="0.18.0", audio=">=2.3"), accelerator="A100")

    assert made.pip == ("numpy", "torch==2.3.0", "torchaudio>=2.3", "torchvision==0.18.0")
    assert made.pip_indexes[0].packages == ("torch", "torchaudio", "torchvision")
    assert image(sky.plugins.torch(audio="latest")).pip == ("numpy", "torch", "torchaudio")


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


def test_it_makes_the_ranks_one_group() -> None:
    """The pool knows that they depend on each other."""
    assert sky.plugins.torch().collective


def test_the_run_half_needs_nothing_of_the_client() -> None:
    """On a node it is loaded without torch, and without what only clients have."""
    hook = pickle.dumps(sky.plugins.torch(backend="gloo").around_app)
    code = (
        f"import pickle, sys; pickle.loads({hook!r})\n"
        "print(sorted({'torch', 'packaging', 'docker', 'click', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_no_version_is_the_latest() -> None:
    """Torch is installed in any case."""
    image = transform_all(sky.Image(), [sky.plugins.torch(version=None)], Cluster(spec=ClusterSpec(nodes=2)))
    assert "torch" in image.pip
