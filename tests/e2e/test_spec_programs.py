"""Programs of users that coordinate nodes themselves or bring plugins, on containers and on processes."""

from __future__ import annotations

import importlib
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import skyward as sky
from tests.e2e import programs
from tests.e2e.conftest import provider_of
from tests.printed import Printed

NODES = 2
METER = """
import os
from contextlib import contextmanager
import skyward as sky


def meter(level=1):
    @contextmanager
    def around_app(info):
        os.environ["METER"] = f"level {level} on node {info.node}"
        yield

    def decorate(fn):
        return lambda *args, **kwargs: "metered " + fn(*args, **kwargs)

    return sky.Plugin.create("meter").with_around_app(around_app).with_decorator(decorate)
"""


def test_the_head_coordinates_the_others(pool: sky.ComputePool) -> None:
    """Node 0 listens where all nodes were told; the others reach it there, again and again in one pool."""
    for words in (["red", "green"], ["cat", "dog"]):
        assert programs.hand_out(words) @ pool == [f"head keeps {words[0]}", f"node 1 got {words[1]}"]


def test_a_plugin_with_every_hook(provider_name: str, printed: Printed) -> None:
    """Hooks of two plugins run where and when they should, in order, and are left in reverse when the pool ends."""
    record: list[str] = []
    plugins = [programs.recorder("outer", record, programs.PACKAGE), programs.recorder("inner", record)]
    worker = sky.Worker(concurrency=2, executor="process")

    with sky.ComputePool(provider_of(provider_name), nodes=NODES, plugins=plugins, worker=worker) as pool:
        entered = list(record)
        logs = programs.bootstrap_log() @ pool
        imported = sky.gather(*(programs.which(programs.PACKAGE, 0.3) for _ in range(4))) >> pool
    seen = [line for line in printed.read().out.splitlines() if line.startswith("[")]

    clients = ["enter client outer, 2 of 2 nodes", "enter client inner, 2 of 2 nodes"]
    transforms = ["transform outer, 2 nodes, sees nothing", f"transform inner, 2 nodes, sees {programs.PACKAGE}"]
    assert entered == [*transforms, *clients]
    assert record[len(entered) :] == ["exit client inner, 2 nodes", "exit client outer, 2 nodes"]

    steps = "outer shell, 2 nodes\nouter callable\ninner shell, 2 nodes\ninner callable\n"
    assert logs == [f"outer(inner({steps}))"] * NODES  # once per node, though it has two processes

    calls = [re.fullmatch(rf"outer\(inner\({programs.PACKAGE} in (\d+)\)\)", text) for text in imported]
    assert all(calls)
    assert _by_process(seen) == {
        "enter app outer, enter app inner, enter process outer, enter process inner, "
        "exit process inner, exit process outer, exit app inner, exit app outer": NODES * 2
    }


def test_a_package_that_nothing_adds_is_not_there() -> None:
    """What the plugin above adds is in no other image: the error names the package and the remedy."""
    with sky.ComputePool(sky.Docker()) as pool, pytest.raises(ModuleNotFoundError, match=programs.PACKAGE) as caught:
        programs.which(programs.PACKAGE) >> pool

    assert "Image(pip=[...])" in "\n".join(caught.value.__notes__)


def _by_process(printed: list[str]) -> dict[str, int]:
    """How many worker processes went through which sequence of hooks."""
    sequences: dict[tuple[str, str], list[str]] = defaultdict(list)
    for line in printed:
        found = re.fullmatch(r"\[(\d)\] (\d+) (.*) of node (\d)", line)
        assert found, line
        assert found[1] == found[4]
        sequences[found[1], found[2]].append(found[3])
    counts: dict[str, int] = defaultdict(int)
    for sequence in sequences.values():
        counts[", ".join(sequence)] += 1
    return dict(counts)


def test_a_plugin_of_an_installed_package(provider_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution's entry point makes it `sky.plugins.<name>`, with the settings of its function."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "meter_plugin", raising=False)
    (tmp_path / "meter_plugin.py").write_text(METER)
    info = tmp_path / "skyward_meter-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: skyward-meter\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[skyward.plugins]\nmeter = meter_plugin:meter\n")
    importlib.invalidate_caches()

    assert "meter" in dir(sky.plugins)
    with sky.ComputePool(provider_of(provider_name), nodes=NODES, plugins=[sky.plugins.meter(level=3)]) as pool:
        assert programs.metered(7) @ pool == [f"metered 7 at level 3 on node {node}" for node in range(NODES)]
