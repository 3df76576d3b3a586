"""Which of this machine's GPUs the nodes of a pool get, and when there are not enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward.errors import ProviderError
from skyward.model.spec import Accelerator
from skyward.nodes import local_host
from skyward.nodes.process import environment_of
from tests.standin import launch

H100 = "NVIDIA H100 80GB HBM3"
VISIBLE = "CUDA_VISIBLE_DEVICES"


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is a test's own."""
    monkeypatch.delenv(VISIBLE, raising=False)


@pytest.fixture
def mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver lists three GPUs of two kinds."""
    names = (("0", "NVIDIA A100-SXM4-40GB"), ("1", H100), ("2", H100))
    monkeypatch.setattr(local_host, "_by_driver", lambda chosen: names if chosen is None else names[1:])


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel shows four GPUs, whose names nobody tells."""
    monkeypatch.setattr(local_host, "_by_driver", lambda _: ())
    monkeypatch.setattr(local_host, "visible_gpus", lambda: 4)


@pytest.mark.usefixtures("four")
def test_a_client_that_was_given_some_gpus_gives_its_nodes_those(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By index or UUID, in the order of its CUDA_VISIBLE_DEVICES."""
    monkeypatch.setenv(VISIBLE, "3, GPU-12ab,1,-1,0")
    assert local_host.usable_gpus() == (("3", ""), ("GPU-12ab", ""), ("1", ""))

    second = launch("own-gpus", 1, accelerator=Accelerator("T4"))

    assert local_host.gpus_of_container(second) == ("GPU-12ab",)
    assert environment_of(second, tmp_path)[VISIBLE] == "GPU-12ab"
    local_host.check_gpu_count(3, Accelerator("T4"))
    with pytest.raises(ProviderError, match="this machine shows 3 GPUs in CUDA_VISIBLE_DEVICES=3, GPU-12ab,1,-1,0"):
        local_host.check_gpu_count(4, Accelerator("T4"))


@pytest.mark.usefixtures("four")
def test_a_client_that_may_use_no_gpu_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty variable hides all of them."""
    monkeypatch.setenv(VISIBLE, "")

    with pytest.raises(ProviderError, match="this machine shows 0 GPUs"):
        local_host.check_gpu_count(1, Accelerator("T4"))


@pytest.mark.usefixtures("mixed")
def test_gpus_of_another_kind_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes get those that fit the name; too few of them are refused with what is there."""
    assert local_host.gpus_of(launch("kinds", 1, accelerator=Accelerator("H100"))) == ("2",)
    with pytest.raises(
        ProviderError,
        match=r"asks for 1 x A100 on each of 2 nodes, 2 in all; this machine shows 1 NVIDIA A100-SXM4-40GB and 2 "
        r"NVIDIA H100 80GB HBM3\. Name the accelerator that is there\.",
    ):
        local_host.check_gpu_count(2, Accelerator("A100"))
    monkeypatch.setenv(VISIBLE, "1,2")
    with pytest.raises(ProviderError, match=r"shows 2 NVIDIA H100 80GB HBM3 in CUDA_VISIBLE_DEVICES=1,2\."):
        local_host.check_gpu_count(1, Accelerator("A100"))


def test_nodes_without_an_accelerator_have_no_gpus_of_their_own(tmp_path: Path) -> None:
    """Nothing is set for them."""
    plain = launch("no-gpus", 0)

    assert local_host.gpus_of_container(plain) is None
    assert VISIBLE not in environment_of(plain, tmp_path)
