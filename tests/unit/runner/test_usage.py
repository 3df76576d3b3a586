"""What a node uses, as cgroups, /proc and nvidia-smi tell it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from skyward.runner.usage import UsageMeter, gpus

NETWORK = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:  999       1    0    0    0     0          0         0      999       1    0    0    0     0       0          0
  eth0:  100       1    0    0    0     0          0         0       40       1    0    0    0     0       0          0
  eth1:   11       1    0    0    0     0          0         0        2       1    0    0    0     0       0          0
"""  # noqa: E501 - the kernel's


MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return write(tmp_path / "proc", {"net/dev": NETWORK, "self/cgroup": "0::/x\n"})


V2 = {"memory.current": "700\n", "memory.stat": "anon 1\ninactive_file 200\n", "cpu.stat": "usage_usec 2500000\n"}


@pytest.mark.parametrize("place", ["", "x/"])
def test_a_container_is_its_cgroup(tmp_path: Path, proc: Path, place: str) -> None:
    """Version 2, whether the container sees its cgroup at the root of the mount or below it."""
    files = {place + name: text for name, text in {**V2, "memory.max": "5000\n"}.items()}
    usage = UsageMeter(of_processes=False, cgroups=write(tmp_path / "cgroup", files), proc=proc).measure()
    assert usage["cpu_s"] == 2.5 and usage["cores"] == 0
    assert (usage["memory"], usage["memory_limit"]) == (500, 5000)
    assert (usage["received"], usage["sent"]) == (111, 42)


def test_version_1(tmp_path: Path, proc: Path) -> None:
    """Each controller has a tree of its own."""
    (proc / "self/cgroup").write_text("4:memory:/a\n2:cpuacct,cpu:/b\n0::/\n")
    root = write(
        tmp_path / "cgroup",
        {
            "memory/a/memory.usage_in_bytes": "900\n",
            "memory/a/memory.stat": "total_inactive_file 100\n",
            "memory/a/memory.limit_in_bytes": "9223372036854771712\n",
            "cpuacct/b/cpuacct.usage": "1500000000\n",
        },
    )
    usage = UsageMeter(of_processes=False, cgroups=root, proc=proc).measure()
    assert (usage["cpu_s"], usage["memory"], usage["memory_limit"]) == (1.5, 800, MACHINE)


def test_processes_are_counted_with_all_they_started() -> None:
    """A child's child that is busy is seen; the memory of all is added."""
    meter = UsageMeter(of_processes=True)
    alone = meter.measure()
    busy = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    with subprocess.Popen([sys.executable, "-c", busy], start_new_session=True) as child:
        try:
            most = max(meter.measure()["cores"] for _ in range(8))
            assert meter.measure()["memory"] > alone["memory"]
        finally:
            os.killpg(child.pid, 9)
    assert most > 0.05  # on a busy machine too


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, [("0", "G1"), ("1", "G2")]),
        ("1", [("1", "G2")]),
        ("GPU-b0, 0", [("GPU-b0", "G2"), ("0", "G1")]),
        ("0,7,1", [("0", "G1")]),
        ("-1,0", []),
        ("", []),
    ],
)
def test_the_gpus_of_the_node_are_read(tmp_path: Path, visible: str | None, names: list[tuple[str, str]]) -> None:
    """Those that CUDA_VISIBLE_DEVICES names, as CUDA reads it; what the driver does not tell is None."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '0, GPU-a0, G1, 75, 400, 1000'\necho '1, GPU-b0, G2, [N/A], 400, 1000'\n")
    program.chmod(0o755)
    found = gpus(visible, str(program))

    assert [(gpu.called, gpu.name) for gpu in found] == names
    assert all(gpu.figures["utilization"] == (0.75 if gpu.name == "G1" else None) for gpu in found)
    assert all(gpu.figures["memory"] == 400 * 1024**2 for gpu in found)
    assert gpus(visible, str(tmp_path / "none")) == []
