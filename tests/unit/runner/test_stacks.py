"""Where a call is, seen from another thread, and whether it waits for other ranks."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from skyward.runner import diagnosis
from skyward.runner.config import WorkerStart

WAITS_S = 60.0


@contextmanager
def thread_in(work: Callable[[], object]) -> Iterator[int]:
    """A thread that has been in `work` for a moment; `work` is to end by itself when the block has ended."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert thread.ident is not None
    still = 0
    while still < 4:  # looks at it, between which it has not moved
        before = _place(thread.ident)
        time.sleep(0.05)
        still = still + 1 if _place(thread.ident) == before else 0
    yield thread.ident
    thread.join(WAITS_S)
    assert not thread.is_alive()


def _place(ident: int) -> tuple[int, int]:
    frame = sys._current_frames()[ident]
    return id(frame), frame.f_lasti


def test_frames_are_told_with_their_lines() -> None:
    """Outermost first; the source of the innermost is what the thread waits in."""
    gate = threading.Lock()
    gate.acquire()

    def inner() -> None:
        gate.acquire()  # here

    def outer() -> None:
        inner()

    with thread_in(outer) as ident:
        first, second = diagnosis.describe(ident), diagnosis.describe(ident)
        gate.release()
    assert [(name.rpartition(".")[2], source) for _, _, name, source in first["frames"]][-2:] == [
        ("outer", "inner()"),
        ("inner", "gate.acquire()  # here"),
    ]
    assert {frame[0] for frame in first["frames"][-2:]} == {__file__}
    assert not first["waits"]
    assert (first["place"], first["switches"]) == (second["place"], second["switches"])
    assert diagnosis.describe(ident) == {}  # it has ended


class Waits:
    """Stands for an object of a framework's whose methods are C functions."""

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.wait = self.gate.acquire
        self.__call__ = self.gate.acquire


def in_module(name: str, text: str, **given: Any) -> Callable[[], object]:
    """A function of a module of that name."""
    module = types.ModuleType(name)
    module.__dict__.update(given)
    exec(text, module.__dict__)
    work: Callable[[], object] = module.__dict__["work"]
    return work


@pytest.mark.parametrize(
    ("module", "waits"),
    [
        ("torch.distributed.distributed_c10d", True),
        ("torch.autograd.graph", True),
        ("jax._src.array", True),
        ("tensorflow.python.eager.execute", True),
        ("torch.utils.data.dataloader", False),
        ("tensorflow.python.ops.gen_dataset_ops", False),
        ("torchmetrics.text", False),
        ("train", False),
    ],
)
def test_a_framework_waits_in_some_of_its_modules(module: str, waits: bool) -> None:
    """A data loader waits for data, and the user's own code for anything."""
    gate = threading.Lock()
    gate.acquire()
    with thread_in(in_module(module, "def work():\n    gate.acquire()\n", gate=gate)) as ident:
        assert diagnosis.describe(ident)["waits"] is waits
        gate.release()


@pytest.mark.parametrize("kind", ["torch._C._distributed_c10d", "collections"])
@pytest.mark.parametrize("text", ["work_.wait()", "print(len('a'), work_.wait())"])
def test_a_users_line_waits_in_a_method_of_a_frameworks_object(kind: str, text: str) -> None:
    """`work.wait()` has no frame of its own: what it is called on tells."""
    thing = type("Work", (Waits,), {"__module__": kind})()
    function = in_module("train", f"def work():\n    work_ = thing\n    {text}\n", thing=thing)
    with thread_in(function) as ident:
        sample = diagnosis.describe(ident)
        thing.gate.release()
    assert sample["waits"] is (kind != "collections")


def test_a_process_that_holds_the_lock_writes_its_frames(tmp_path: Path) -> None:
    """The signal is handled below Python."""
    start = WorkerStart(index=1, generation=2, slots=1, run_dir=str(tmp_path), key="")
    program = f"""
import ctypes, pathlib
from skyward.runner import calls, diagnosis
diagnosis.prepare_dump(pathlib.Path({str(diagnosis.dump_file(start))!r}))
def spin():
    print("spinning", flush=True)
    library = ctypes.PyDLL(None)
    while True:
        library.usleep(100000)
spin()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "spinning\n"
            texts = [diagnosis.read_dump(diagnosis.dump_file(start), process.send_signal, WAITS_S) for _ in range(2)]
            assert process.poll() is None
        finally:
            process.kill()
    for text in texts:
        assert text.count("most recent call first") == 1
        assert "in spin" in text
