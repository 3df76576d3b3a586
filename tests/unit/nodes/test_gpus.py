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
    some = {None: names, "1,2": names[1:], "": ()}
    monkeypatch.setattr(local_host, "_by_driver", some.__getitem__)


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
    assert local_host.gpus_of_container(launch("kinds", 1, accelerator=Accelerator("H100"))) == ("2",)
    monkeypatch.setenv(VISIBLE, "")
    with pytest.raises(ProviderError, match="this machine shows 0 GPUs in CUDA_VISIBLE_DEVICES="):
        local_host.check_gpu_count(1, Accelerator("H100"))


def test_nodes_without_an_accelerator_have_no_gpus_of_their_own(tmp_path: Path) -> None:
    """Nothing is set for them."""
    plain = launch("no-gpus", 0)

    assert local_host.gpus_of_container(plain) is None
    assert VISIBLE not in environment_of(plain, tmp_path)
