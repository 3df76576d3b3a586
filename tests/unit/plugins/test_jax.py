"""The jax plugin: what it adds to an image, and how ranks describe their group. With JAX: tests/e2e/test_jax.py."""

from __future__ import annotations

import pytest

import skyward as sky
from skyward.errors import ConfigError
from skyward.model.instance import InstanceInfo
from skyward.model.spec import Accelerator, Cluster, ClusterSpec
from skyward.plugins import transform_all
from skyward.plugins._jax import variables

NO_GPU = Cluster(spec=ClusterSpec(nodes=2))


def on_gpus(accelerator: str | Accelerator) -> Cluster:
    return Cluster(spec=ClusterSpec(accelerator=Accelerator.of(accelerator)))


def packages(plugin: sky.Plugin, cluster: Cluster, image: sky.Image | None = None) -> tuple[str, ...]:
    return tuple(transform_all(image or sky.Image(), [plugin], cluster).pip)


def test_plain_jax_on_nodes_without_gpu() -> None:
    """CPU nodes get jax, and no CUDA libraries."""
    assert packages(sky.plugins.jax(), NO_GPU) == ("jax",)


@pytest.mark.parametrize("accelerator", ["A100", "a100:4", Accelerator("A100"), Accelerator("RTX9999", 2, cuda=True)])
def test_cuda_on_nodes_with_nvidia_gpus(accelerator: str | Accelerator) -> None:
    """A GPU that runs CUDA gets the extra with its libraries, however it was written."""
    assert packages(sky.plugins.jax(), on_gpus(accelerator)) == ("jax[cuda12]",)


@pytest.mark.parametrize(
    ("cuda", "extra"),
    [("cuda12", "cuda12"), ("cu12", "cuda12"), ("cu124", "cuda12"), ("cu12.8", "cuda12"), ("cuda13", "cuda13")],
)
def test_spellings_of_cuda(cuda: str, extra: str) -> None:
    """jax has an extra for each major version; the other frameworks' spellings mean it, too."""
    assert packages(sky.plugins.jax(cuda=cuda), on_gpus("A100")) == (f"jax[{extra}]",)


@pytest.mark.parametrize("cuda", ["", "12", "rocm", "cuda", "cuda1", "cu12]; import os", None])
def test_what_is_no_cuda_is_refused(cuda: str) -> None:
    """A spelling that names no extra fails before anything is created."""
    with pytest.raises(ConfigError, match=r"jax\(cuda=...\) takes 'cuda12' or 'cuda13'"):
        sky.plugins.jax(cuda=cuda)


def test_the_variables_describe_the_group() -> None:
    """Address, number of processes, and this process's number over all nodes."""
    place = InstanceInfo(node=1, total_nodes=2, head_addr="10.0.0.1", head_port=1, worker=1, workers_per_node=2)

    assert variables(place, "10.0.0.1", 4242) == {
        "JAX_COORDINATOR_ADDRESS": "10.0.0.1:4242",
        "JAX_NUM_PROCESSES": "4",
        "JAX_PROCESS_ID": "3",
        "JAX_LOCAL_DEVICE_COUNT": "1",
    }


@pytest.mark.parametrize(("ranks", "gpus"), [(1, "8"), (8, "1"), (2, "4")])
def test_the_gpus_of_a_node_are_shared_among_its_ranks(ranks: int, gpus: str) -> None:
    """JAX_LOCAL_DEVICE_COUNT is what one rank has."""
    place = InstanceInfo(
        node=0, total_nodes=2, head_addr="10.0.0.1", head_port=1, accelerators=8, workers_per_node=ranks
    )

    assert variables(place, "10.0.0.1", 1)["JAX_LOCAL_DEVICE_COUNT"] == gpus
