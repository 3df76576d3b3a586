"""A worker's process, as far as its calls share it: what they fork, log and import, and what they leave on a GPU."""

from __future__ import annotations

import fcntl
import gc
import hashlib
import importlib
import logging
import os
import re
import stat
import sys
import termios
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from skyward.errors import WireError
from skyward.model.instance import BAKED_DIR, CODE_DIR
from skyward.runtime import masking, output
from skyward.system import time

_READ_WITHIN_S = 5.0
_LOOK_S = 0.001
_LONGEST = 64 * 1024  # characters of a string that are sent
# after these CUDA answers every call of the process with the same error; others, such as too little memory, pass
_BREAKING = re.compile(
    r"(cuda|hip).*(device-side assert|illegal memory access|unspecified launch failure|misaligned address"
    r"|illegal instruction|hardware stack error|invalid program counter|launch timed out|uncorrectable ECC)",
    re.IGNORECASE | re.DOTALL,
)
Send = Callable[[int | None, dict[str, Any]], None]


# forks ----------------------------------------------------------------------------------------------------------------


_is_child = False  # whether this process has been forked from a worker


def on_fork(abandon: Callable[[], object]) -> None:
    """Have this process's connections closed in every process that is forked from it; called once, by the worker."""

    def begin() -> None:
        global _is_child
        _is_child = True
        abandon()

    os.register_at_fork(after_in_child=begin)


def end_child(error: BaseException | None = None) -> None:
    """End a forked process with the status that Python would give it after this error; nothing happens in a worker.

    One that returned from its function would go on in the worker's loop, and read the socket that its parent reads.
    Its standard streams are flushed, and read: what its parent writes when it has ended comes after them. What a worker
    does at its exit is the worker's, and is not done.
    """
    if not _is_child:
        return
    status = 1
    try:
        status = _status(error)
        sys.stdout.flush()
        sys.stderr.flush()
        _wait_until_read()
    finally:  # also when nobody reads what it writes
        os._exit(status)


def _wait_until_read() -> None:
    """Wait until the agent has read both streams, 5 s at most. It reads them in no order: they are two pipes."""
    pipes = [fd for fd in (1, 2) if stat.S_ISFIFO(os.fstat(fd).st_mode)]
    deadline = time.monotonic() + _READ_WITHIN_S
    while any(_unread(fd) for fd in pipes) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


def _unread(pipe: int) -> int:
    """How many bytes a pipe holds, asked at the end that is written to."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def _status(error: BaseException | None) -> int:
    if error is None:
        return 0
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):
        return (error.code or 0) & 0xFF
    text = f"{error.code}\n" if isinstance(error, SystemExit) else "".join(traceback.format_exception(error))
    sys.stderr.write(text)
    return 1


# logging --------------------------------------------------------------------------------------------------------------


class ClientHandler(logging.Handler):
    """Sends records to the client, with the call that they came from, as plain data.

    It stands in for Python's handler of last resort, so a function that configures handlers of its own has these, and
    what they print is output.

    Args:
        send: sends the fields of a record, for the call with this number: `name`, `level` (a number), `text`, `trace`
            (of an exception, else ""), `line` (all of it, as text), `t`, `path`, `lineno`, `function`.
    """

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send
        self.setFormatter(logging.Formatter(logging.BASIC_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record, unless what the calling code prints to standard error is muted."""
        try:
            line = self.format(record)
            if _is_child:
                sys.stderr.write(f"{line}\n")  # a forked process serves no client
                return
            call, muted = output.standard_error()
            if not muted:
                self._send(call, _fields(record, line))
        except Exception:  # texts of records are made by other people's code
            self.handleError(record)


def _fields(record: logging.LogRecord, line: str) -> dict[str, Any]:
    return {
        "name": record.name,
        "level": record.levelno,
        "text": _shown(record.getMessage()),
        "trace": _shown(record.exc_text or ""),
        "line": _shown(line),
        "t": record.created,
        "path": record.pathname,
        "lineno": record.lineno,
        "function": record.funcName,
    }


def _shown(text: str) -> str:
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text) - _LONGEST} characters more)"
    return masking.conceal(text)


def send_logs(level: int, send: Send) -> None:
    """Log from this level on, and send what no handler here takes; called again, it sets the level."""
    logging.getLogger().setLevel(level)
    if not isinstance(logging.lastResort, ClientHandler):
        logging.lastResort = ClientHandler(send)


# local modules --------------------------------------------------------------------------------------------------------


modules_directory = Path(CODE_DIR)  # set where the worker starts, since functions may change the working directory
_written: dict[str, bytes] = {}  # digests of what this process was sent
_is_replaced = False


def place_modules(files: tuple[tuple[str, bytes], ...], programs: Collection[str] = ()) -> None:
    """Place the user's local modules where they can be imported; a file appears whole or not at all.

    An image with `bake=True` has them with the other files of its includes. These are linked beside what is sent, as
    modules find their data beside themselves.

    Args:
        files: paths below the directory, and contents.
        programs: those of the paths that may be executed.

    Raises:
        WireError: a path leads out of the directory.
    """
    global _is_replaced
    root = modules_directory
    if not _written and BAKED_DIR in sys.path:
        _link_baked(Path(BAKED_DIR), root)
    for name, data in files:
        path = Path(os.path.normpath(root / name))  # itself it may be a link to the image's file
        if not path.parent.resolve().is_relative_to(root.resolve()):
            raise WireError(f"The client sent a module outside its directory: {name!r}.")
        digest = hashlib.blake2b(data, digest_size=16).digest()
        _is_replaced |= _written.get(name, digest) != digest
        _written[name] = digest
        _place(path, data, int.from_bytes(digest[:4], "big") >> 1, is_program=name in programs)
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    importlib.invalidate_caches()


def _link_baked(baked: Path, root: Path) -> None:
    """Link the image's files where no other worker of this node has linked or placed one."""
    for folder, _, names in os.walk(baked):
        target = root / Path(folder).relative_to(baked)
        target.mkdir(parents=True, exist_ok=True)
        for name in names:
            with suppress(FileExistsError):
                (target / name).symlink_to(Path(folder, name))


def _place(path: Path, data: bytes, stamp: int, *, is_program: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(data)
    if is_program or (path.exists() and path.stat().st_mode & 0o111):
        partial.chmod(partial.stat().st_mode | 0o111)
    # Python takes the bytecode of an earlier file for this one's where size and time, in seconds, are the same
    os.utime(partial, (stamp, stamp))
    partial.replace(path)


def forget_replaced_modules() -> None:
    """Forget all local modules if one of them was replaced; by the thread that is about to load a function.

    The client sends a file again when it has loaded the module anew. The function's modules, and those that import
    them, are then imported as they are now.
    """
    global _is_replaced
    if not _is_replaced:
        return
    _is_replaced = False
    for name, module in list(sys.modules.items()):
        if _is_below(modules_directory, module):
            sys.modules.pop(name, None)


def _is_below(root: Path, module: ModuleType | None) -> bool:
    """Whether a module's Python code stands below a directory; extension modules can be imported once per process."""
    if not issubclass(type(module), ModuleType):
        return False
    names = ModuleType.__getattribute__(module, "__dict__")
    file, folders = names.get("__file__"), names.get("__path__")
    if isinstance(file, str):
        return file.endswith(".py") and Path(file).is_relative_to(root)
    return folders is not None and any(Path(str(folder)).is_relative_to(root) for folder in list(folders))


# GPUs -----------------------------------------------------------------------------------------------------------------


def breaks_device(error: BaseException | None) -> bool:
    """Whether this error, or one that it followed from, is that of a kernel after which CUDA works no more here."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, RuntimeError) and _BREAKING.search(str(error)):  # torch.AcceleratorError is one, too
            return True
        error = error.__cause__ or error.__context__
    return False


def free_device_memory() -> bool:
    """Give back the GPU memory that PyTorch keeps for later calls; waits for kernels that run.

    Returns:
        Whether CUDA still works in this process: the error of a kernel that was queued may come out here.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)  # by its name: nothing here imports it
    try:
        if cuda is None or not cuda.is_initialized():
            return True
        gc.collect()  # tensors of frames that refer to themselves, as those of an exception often do
        cuda.empty_cache()
    except Exception:  # whatever it is, a fresh process is the better place for the next call
        return False
    return True
