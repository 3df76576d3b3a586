"""The joblib and sklearn plugins: what they add to an image, and how they share out the CPUs of a node."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import joblib
import pytest

import skyward as sky
from skyward.errors import PluginError
from skyward.integrations import JoblibPool, ScikitLearnPool
from skyward.model.image import Image
from skyward.model.instance import SETTINGS_VAR, InstanceInfo, Peer
from skyward.model.spec import Cluster, ClusterSpec
from skyward.plugins import _joblib, _ranks, transform_all
from skyward.plugins._joblib import share_of_cpus
from skyward.runner.config import RunnerSettings


def image(*plugins: sky.Plugin, before: Image | None = None) -> Image:
    return transform_all(before or Image(), plugins, Cluster(spec=ClusterSpec(nodes=2)))


@pytest.mark.parametrize(
    ("plugin", "packages"),
    [
        (sky.plugins.joblib(), ("joblib",)),
        (sky.plugins.joblib(version="1.5.1"), ("joblib==1.5.1",)),
        (sky.plugins.joblib(">=1.5"), ("joblib>=1.5",)),
        (sky.plugins.sklearn(), ("scikit-learn", "joblib")),
        (sky.plugins.sklearn(version="1.7.0"), ("scikit-learn==1.7.0", "joblib")),
    ],
)
def test_packages(plugin: sky.Plugin, packages: tuple[str, ...]) -> None:
    """The packages with the versions that were asked for."""
    assert set(image(plugin).pip) == set(packages)


def packages_of(pool: sky.ComputePool) -> set[str]:
    return set(pool._image().pip)


def test_pools_bring_the_plugin_and_take_what_a_pool_takes() -> None:
    """Parameters are those of `ComputePool`; those of the packages' versions come on top."""
    own = sky.Plugin.create("own").with_image_transform(lambda image, _cluster: image.pip_install("polars"))
    settings: dict[str, Any] = {"nodes": 3, "image": Image(apt=["git"]), "env": {"A": "b"}, "plugins": [own]}

    pool = JoblibPool(sky.Local(), concurrency=2, joblib_version="1.5.1", **settings)
    both = ScikitLearnPool(sky.Local(), sklearn_version="1.7.0", joblib_version="1.5.1", **settings)

    assert packages_of(pool) == {"joblib==1.5.1", "polars"}
    assert packages_of(both) >= {"joblib==1.5.1", "scikit-learn==1.7.0", "polars"}
    assert pool.total_slots == 6
    assert both.total_slots == 3
    assert pool._image().apt == ("git",)


def test_joblib_is_needed_on_this_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is missing the pool says so; the hook is told of no other import that fails."""
    plugin = sky.plugins.joblib()
    assert plugin.around_client is not None
    monkeypatch.delitem(sys.modules, "skyward.plugins._joblib_backend", raising=False)
    monkeypatch.setitem(sys.modules, "joblib", None)
    monkeypatch.setitem(sys.modules, "joblib.parallel", None)

    with pytest.raises(PluginError, match="joblib is needed"), plugin.around_client(None, Cluster(spec=ClusterSpec())):
        pass


# on the node ---------------------------------------------------------------------------------------------------------


def place(node: int, addresses: Sequence[str]) -> InstanceInfo:
    peers = tuple(Peer(node=number, private_ip=address) for number, address in enumerate(addresses))
    return InstanceInfo(node=node, total_nodes=len(peers), head_addr=addresses[0], head_port=29400, peers=peers)


@pytest.mark.parametrize(
    ("machine", "addresses", "processes", "slots", "threads"),
    [
        (8, ["10.0.0.1"], 1, 1, 8),
        (8, ["10.0.0.1"], 4, 1, 2),
        (8, ["10.0.0.1"], 1, 4, 2),
        (8, ["10.0.0.1", "10.0.0.2"], 1, 1, 8),
        (8, ["127.0.0.1", "127.0.0.1"], 1, 1, 4),
        (2, ["127.0.0.1"] * 4, 2, 1, 1),
    ],
    ids=["alone", "processes", "threads", "two machines", "two nodes of one machine", "more than there is"],
)
def test_threads_are_the_share_of_a_call(
    machine: int,
    addresses: list[str],
    processes: int,
    slots: int,
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CPUs of the machine, by its nodes, by the calls at once; at least one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(machine)), raising=False)
    monkeypatch.setattr(_ranks, "_CPU_MAX", Path("no such file"))
    monkeypatch.setenv(SETTINGS_VAR, RunnerSettings(lease_s=60, processes=processes, slots=slots).to_json())
    for name in _joblib._THREADS:
        monkeypatch.delenv(name, raising=False)

    with share_of_cpus(place(0, addresses)):
        assert os.environ["OMP_NUM_THREADS"] == os.environ["OPENBLAS_NUM_THREADS"] == str(threads)


def test_other_versions_are_told_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Objects of one version may not work in another; a patch release is no other version."""
    theirs = (("joblib", "0.1.2"),)
    _joblib._compare.cache_clear()

    for _ in range(3):
        assert _joblib.run_batch([(max, (1, 2), {})], 1, theirs) == [2]
    assert _joblib.run_batch([(max, (1, 2), {})], 1, (("joblib", f"{joblib.__version__}.post1"),)) == [2]

    told = capsys.readouterr().err
    assert told.count("this node has joblib") == 1
    assert "sky.plugins.joblib(version='0.1.2')" in told
