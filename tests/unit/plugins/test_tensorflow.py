"""The tensorflow plugin: the image. With TensorFlow: tests/e2e/test_tensorflow.py."""

from __future__ import annotations

from typing import Any

import pytest

import skyward as sky
from skyward.model.spec import Accelerator, Cluster, ClusterSpec
from skyward.plugins import transform_all


@pytest.mark.parametrize(
    ("accelerator", "platform", "wanted"),
    [
        (None, "linux/amd64", "tensorflow-cpu"),
        (None, "linux/arm64", "tensorflow"),
        ("A100", "linux/amd64", "tensorflow[and-cuda]"),
        (Accelerator("A100", 2), "linux/amd64", "tensorflow[and-cuda]"),
    ],
)
def test_the_package_for_the_nodes(accelerator: Any, platform: str, wanted: str) -> None:
    """CPU nodes get the build without CUDA, where there is one."""
    spec = ClusterSpec(accelerator=Accelerator.of(accelerator), platform=platform)

    assert transform_all(sky.Image(), [sky.plugins.tensorflow()], Cluster(spec=spec)).pip == (wanted,)
