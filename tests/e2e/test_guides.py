"""The guides, each as a user runs it: in a process of its own, on containers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

GUIDES = ROOT / "examples" / "guides"
PATHS = sorted(GUIDES.glob("[0-9]*.py"))
# left to `make test-all`
LARGE = ("roundtrip", "per_gpu", "kubernetes", "keras", "jax", "tensorflow", "huggingface", "ray", "dask")
PROGRAMS = [
    pytest.param(path, id=path.stem, marks=pytest.mark.large if any(word in path.stem for word in LARGE) else ())
    for path in PATHS
]

# guide -> what it prints in the end, and what the numbers found in it must at least be
SHOWN = {
    "01_hello": (r"^node 1 of 2: Python", None),
    "02_broadcast_and_shard": (r"^all together: ([\d.]+)$", 0.85),
    "03_streams_and_groups": (r"^inspect.py has [\d,]+ bytes$", None),
    "04_joblib": (r"^and again: ([\d.]+) to [\d.]+ mm, drawn on nodes \[0, 1\] in", 4),
    "05_scikit_learn": (r"^cross-validated accuracy ([\d.]+), on digits nobody trained on", 0.97),
    "06_pytorch_distributed": (r"node 1: loss \S+, accuracy \S+, test accuracy ([\d.]+), checksum \S+$", 0.85),
    "07_keras_training": (r"^node 1: samples 718, loss \S+, test accuracy ([\d.]+)$", 0.9),
    "08_torch_model_roundtrip": (r"round trip 2:  accuracy ([\d.]+), loss \S+, back on cpu$", 0.8),
    "09_jax_data_parallel": (r"^node 1: loss \S+ -> \S+, test accuracy ([\d.]+)$", 0.85),
    "10_tensorflow": (r"^node 1: replicas 2, .* test accuracy ([\d.]+), checksum \S+$", 0.85),
    "11_huggingface_finetuning": (r"rank 1, ranks 2, accuracy ([\d.]+), checksum \S+$", 0.55),
    "12_per_gpu_ranks": (r"rank 3, node 1, local rank 1, device cpu, samples 449, accuracy ([\d.]+)$", 0.85),
    "13_checkpoints": (r"^4 runs, equal to the last bit: True, accuracy ([\d.]+)$", 0.85),
    "14_kubernetes": (r"^best of 4: \d+ trees of depth \d+, accuracy ([\d.]+)$", 0.9),
    "15_ray": (r"^best of 12 settings, tried on [12] nodes: C=\S+, gamma=\S+, accuracy ([\d.]+)$", 0.95),
    "16_dask": (r"^counted on nodes \[0, 1\]$", None),
}
# the plugin takes the version that is installed here, which pip may have found on another index than the first
SETTINGS = {"15_ray": {"UV_INDEX_STRATEGY": "unsafe-best-match"}}


@pytest.mark.parametrize("path", PROGRAMS)
def test_a_guide_runs_on_containers(path: Path) -> None:
    """It ends well, prints what it promises, and leaves the models of its nodes alike (which it checks itself)."""
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=ROOT,
        env={**os.environ, **SETTINGS.get(path.stem, {})},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    pattern, least = SHOWN.get(path.stem, (r"(?s)\S.*\n$", None))
    found = re.search(pattern, done.stdout, re.MULTILINE)
    assert found, done.stdout
    assert least is None or float(found.group(1)) >= least
