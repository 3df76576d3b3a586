"""Other systems: what is imported there, and what says that it cannot be. On Windows itself nothing is taken away."""

from __future__ import annotations

import subprocess
import sys

import pytest

# what Windows lacks of what the package uses; the modules first, so that those of the standard library are whole
WITHOUT = """
import asyncio, os, selectors, signal, socket, subprocess, sys, threading

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

ABSENT = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty")
for name in ABSENT:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Absent())
for name in ("fork", "register_at_fork", "geteuid", "getuid", "waitid", "killpg", "setsid", "chown", "sysconf"):
    delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGRTMAX", "pthread_sigmask"):
    delattr(signal, name)
del socket.AF_UNIX
sys.platform = "win32"
"""
PROGRAM = """
import skyward as sky

image = sky.Image(pip=["numpy"], python="3.12").pip_install("torch")

@sky.compute(timeout=60)
@sky.stdout(only="head")
def place(rows):
    return sky.shard(rows), sky.instance_info().is_head

assert place.local([1, 2]) == ([1, 2], True)
assert sky.Accelerator("A100:4".partition(":")[0], 4).count == 4
for name in ("Nodes", "Worker", "Volume", "PipIndex", "Plugin", "gather", "errors", "silent", "pool", "sky"):
    getattr(sky, name)
try:
    sky.ComputePool
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("before", [WITHOUT] if sys.platform != "win32" else [""])
def test_on_windows_all_but_pools_is_there(before: str) -> None:
    """Images, compute functions and `.local`; a pool says where it is to be had."""
    done = subprocess.run([sys.executable, "-c", before + PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sky.ComputePool takes Linux or macOS")
    assert "WSL 2" in done.stdout


@pytest.mark.parametrize("before", [WITHOUT] if sys.platform != "win32" else [""])
def test_on_windows_the_command_says_where_it_runs(before: str) -> None:
    """With the status of a setting that is wrong."""
    program = "from skyward.cli.main import main\nraise SystemExit(main(['ps']))"
    done = subprocess.run([sys.executable, "-c", before + program], capture_output=True, text=True, check=False)
    assert (done.returncode, "WSL 2" in done.stderr) == (2, True), done.stderr
