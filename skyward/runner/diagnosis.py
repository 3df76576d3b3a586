"""Diagnosis of waiting ranks, on request of a client: the position of a call.

Another thread of the same process reads the stack of a call, which works unless the call holds the global interpreter
lock; waiting in a collective releases it. If the lock is held, a signal still makes the process write its frames.
"""

from __future__ import annotations

import dis
import faulthandler
import hashlib
import linecache
import os
import signal
import sys
from collections.abc import Callable
from functools import lru_cache
from itertools import dropwhile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from skyward.runner.config import WorkerStart
from skyward.system import threading, time
from skyward.wire import payload

if sys.platform == "darwin":  # unlikely to be used by user code
    DUMP_SIGNAL = signal.SIGINFO
else:
    DUMP_SIGNAL = signal.SIGRTMAX - 2


_DEPTH = 60  # maximum number of frames reported, the innermost ones
_POLL_S = 0.02
# files of frames at the base of every call
_BELOW = (str(Path(__file__).parent), str(Path(payload.__file__).parent), "<frozen runpy>", threading.__file__)
# Modules whose C code waits for other ranks while it does not return. Other modules of these packages (loading a file,
# a data loader) wait for other things.
_WAITING_PLACES = (
    "torch.distributed", "torch.nn.parallel", "torch.autograd", "torch._ops", "torch._tensor", "jax", "jaxlib",
    "tensorflow.python.eager", "tensorflow.python.distribute",
)  # fmt: skip
_FRAMEWORKS = ("torch", "jax", "jaxlib", "tensorflow")


# where a call is ------------------------------------------------------------------------------------------------------


def describe(thread: int) -> dict[str, Any]:
    """Return where a thread of this process is; an empty document if it, or its call, has ended or not begun.

    Keys: `frames`, outermost first, each `[file, line, function, source line]`; `place`, a digest that is equal as long
    as no frame moves; `waits`, whether it is in C code of a framework that can wait for other ranks; `cpu_s`, processor
    time of the process; `switches`, how often the thread has gone to sleep, -1 if the system does not report it.
    """
    innermost = sys._current_frames().get(thread)
    if innermost is None:
        return {}
    if _has_failed(innermost):
        return {}  # its exception, with the traceback, is about to be sent
    frames = _frames(innermost)
    if not frames:
        return {}
    place = hashlib.sha256(repr([(f.f_code.co_filename, f.f_code.co_name, f.f_lasti) for f in frames]).encode())
    return {
        "frames": [_told(frame) for frame in frames[-_DEPTH:]],
        "place": place.hexdigest(),
        "waits": _waits(innermost),
        "cpu_s": time.process_time(),
        "switches": _switches(thread),
    }


def _has_failed(innermost: FrameType) -> bool:
    """Return whether the call has failed and the runner is serialising its exception."""
    frame: FrameType | None = innermost
    while frame is not None and frame.f_back is not None:
        if frame.f_code is payload.dump_exception.__code__:
            return frame.f_back.f_code.co_filename.startswith(_BELOW[0])
        frame = frame.f_back
    return False


def _frames(innermost: FrameType) -> list[FrameType]:
    """Return the frames of a call, outermost first, without the runner's; none while the runner itself is executing."""
    frames = []
    frame: FrameType | None = innermost
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return list(dropwhile(lambda each: each.f_code.co_filename.startswith(_BELOW), reversed(frames)))


def _told(frame: FrameType) -> tuple[str, int, str, str]:
    code, line = frame.f_code, frame.f_lineno or 0
    return code.co_filename, line, code.co_qualname, linecache.getline(code.co_filename, line, frame.f_globals).strip()


def _waits(frame: FrameType) -> bool:
    """Return whether the frame belongs to a framework, or calls a C method of a framework's object (`work.wait()`)."""
    if _within(str(frame.f_globals.get("__name__", "")), _WAITING_PLACES):
        return True
    name = _called_on(frame.f_code, frame.f_lasti)
    if name is None:
        return False
    called = frame.f_locals.get(name, frame.f_globals.get(name))
    return called is not None and _within(type(called).__module__ or "", _FRAMEWORKS)


@lru_cache(maxsize=256)  # reading a function of 300 lines takes 12 ms, and a loop is seen at few positions
def _called_on(code: CodeType, at_instruction: int) -> str | None:
    """Return the variable that the call expression starts with: `work` in `work.wait()`, `step` in `step(x)`."""
    at = None
    loads: dict[tuple[int | None, int | None], str] = {}  # names by their position
    for instruction in dis.get_instructions(code):
        where = instruction.positions
        if where is None:
            continue
        start = (where.lineno, where.col_offset)
        if instruction.opname.startswith("LOAD_") and instruction.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            loads[start] = str(instruction.argval)
        if instruction.offset >= at_instruction:
            at = start
            break
    return loads.get(at) if at is not None else None


def _within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def _switches(thread: int) -> int:
    native = next((t.native_id for t in threading.enumerate() if t.ident == thread), None)
    try:
        status = Path(f"/proc/self/task/{native}/status").read_text(encoding="ascii")
    except OSError:
        return -1  # a system without /proc
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split(maxsplit=1)[0])


# where a call is that holds the interpreter's lock --------------------------------------------------------------------


def prepare_dump(path: Path) -> None:
    """Make `DUMP_SIGNAL` append the main thread's frames to a file, even while the interpreter lock is held.

    A fatal error, such as a segmentation fault, appends those of the thread in which it happens.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    faulthandler.register(DUMP_SIGNAL, file=file, all_threads=False)
    faulthandler.enable(file=file, all_threads=False)


def dump_file(start: WorkerStart) -> Path:
    """Return the file that this worker process writes its frames to."""
    return Path(start.run_dir) / f"w{start.index}.{start.generation}.stack"


def fatal_stack(start: WorkerStart) -> str:
    """Return the frames that a fatal error of this worker process wrote; "" if it ended otherwise."""
    try:
        return dump_file(start).read_text(errors="replace").rpartition("Fatal Python error")[2]
    except FileNotFoundError:
        return ""


def read_dump(path: Path, send_signal: Callable[[int], None], limit_s: float) -> str:
    """Make a process that called `prepare_dump` write its frames; return what it wrote within the limit."""
    written = ""
    try:
        before = path.stat().st_size
        send_signal(DUMP_SIGNAL)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            time.sleep(_POLL_S)
            text = path.read_bytes()[before:].decode("utf-8", "replace")
            if text and text == written:
                break  # the file has stopped growing
            written = text
    except FileNotFoundError:
        pass  # the process has ended
    return written
