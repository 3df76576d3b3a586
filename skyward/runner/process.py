"""Process-wide effects of calls in a worker: forks, logging, imports, and memory left on a GPU."""

from __future__ import annotations

import gc
import hashlib
import importlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from skyward.errors import WireError
from skyward.model.instance import BAKED_DIR, CODE_DIR
from skyward.runtime import masking, output

_LONGEST = 64 * 1024  # maximum number of characters sent of a string
# after these errors every CUDA call of the process fails; after others, such as out of memory, it works again
_BREAKING = re.compile(
    r"(cuda|hip).*(device-side assert|illegal memory access|unspecified launch failure|misaligned address"
    r"|illegal instruction|hardware stack error|invalid program counter|launch timed out|uncorrectable ECC)",
    re.IGNORECASE | re.DOTALL,
)
Send = Callable[[int | None, dict[str, Any]], None]


# forks ----------------------------------------------------------------------------------------------------------------


_is_child = False  # whether this process has been forked from a worker


def on_fork(abandon: Callable[[], object]) -> None:
    """Close this process's connections in every process forked from it; called once, by the worker."""

    def begin() -> None:
        global _is_child
        _is_child = True
        abandon()

    os.register_at_fork(after_in_child=begin)


def end_child(error: BaseException | None = None) -> None:
    """End a forked process with the exit status that Python would use for this error; do nothing in a worker.

    A child that returned from its function would continue in the worker's loop, and read from its parent's socket. Its
    standard streams are flushed. The worker's exit handlers are not run.
    """
    if not _is_child:
        return
    status = 1
    try:
        status = _status(error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # also if its output cannot be written
        os._exit(status)


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
    """Sends log records to the client as plain data, with the call that they belong to.

    It replaces Python's handler of last resort: a function that configures its own handlers uses those, and their text
    is output.

    Args:
        send: sends the fields of a record, for the call with this number: `name`, `level` (a number), `text`, `trace`
            (of an exception, else ""), `line` (the formatted record), `t`, `path`, `lineno`, `function`.
    """

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send
        self.setFormatter(logging.Formatter(logging.BASIC_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record, unless standard error of the calling code is muted."""
        try:
            line = self.format(record)
            if _is_child:
                sys.stderr.write(f"{line}\n")  # a forked process serves no client
                return
            call, muted = output.standard_error()
            if not muted:
                self._send(call, _fields(record, line))
        except Exception:  # user code may fail while it formats the record
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
    """Set the log level, and send records that no handler in this process takes; later calls only set the level."""
    logging.getLogger().setLevel(level)
    if not isinstance(logging.lastResort, ClientHandler):
        logging.lastResort = ClientHandler(send)


# local modules --------------------------------------------------------------------------------------------------------


modules_directory = Path(CODE_DIR)  # set where the worker starts, since functions may change the working directory
_written: dict[str, bytes] = {}  # digests of the files that this process was sent
_is_replaced = False


def place_modules(
    files: tuple[tuple[str, bytes], ...], programs: Collection[str] = (), roots: Collection[str] = ()
) -> None:
    """Write the user's local modules to where they can be imported; each file appears complete or not at all.

    In an image with `bake=True` they are part of the image, with the other included files. Those are linked next to the
    sent files, since modules look for their data next to themselves.

    Args:
        files: paths below the directory, and contents.
        programs: the paths that are to be executable.
        roots: folders that modules are imported from, beside the directory itself.

    Raises:
        WireError: a path leads out of the directory.
    """
    global _is_replaced
    root = modules_directory
    if not _written and BAKED_DIR in sys.path:
        _link_baked(Path(BAKED_DIR), root)
    for name, data in files:
        path = Path(os.path.normpath(root / name))  # the file itself may be a link to the image's
        if not path.parent.resolve().is_relative_to(root.resolve()):
            raise WireError(f"The client sent a module outside its directory: {name!r}.")
        digest = hashlib.blake2b(data, digest_size=16).digest()
        _is_replaced |= name.endswith(".py") and _written.get(name, digest) != digest
        _written[name] = digest
        _place(path, data, int.from_bytes(digest[:4], "big") >> 1, is_program=name in programs)
    for folder in (str(root), *(str(root / each) for each in sorted(roots))):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    importlib.invalidate_caches()


def _link_baked(baked: Path, root: Path) -> None:
    """Link the image's files, unless another worker of this node has already linked or written them."""
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
    # Python reuses bytecode of an earlier version if size and time (in whole seconds) are equal
    os.utime(partial, (stamp, stamp))
    partial.replace(path)


def forget_replaced_modules() -> None:
    """Remove all local modules from `sys.modules` if one was replaced; called before a function is loaded.

    The client sends a file again when it has reloaded the module. The function's modules, and those that import them,
    are then imported in their current version.
    """
    global _is_replaced
    if not _is_replaced:
        return
    _is_replaced = False
    for name, module in list(sys.modules.items()):
        if _is_below(modules_directory, module):
            sys.modules.pop(name, None)


def _is_below(root: Path, module: ModuleType | None) -> bool:
    """Return whether a module's Python source is below a directory; extension modules can only be imported once."""
    if not issubclass(type(module), ModuleType):
        return False
    names = ModuleType.__getattribute__(module, "__dict__")
    file, folders = names.get("__file__"), names.get("__path__")
    if isinstance(file, str):
        return file.endswith(".py") and Path(file).is_relative_to(root)
    return folders is not None and any(Path(str(folder)).is_relative_to(root) for folder in list(folders))


# GPUs -----------------------------------------------------------------------------------------------------------------


def breaks_device(error: BaseException | None) -> bool:
    """Return whether this error, or one of its causes, is a kernel failure after which CUDA is unusable here."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, RuntimeError) and _BREAKING.search(str(error)):  # torch.AcceleratorError is one, too
            return True
        error = error.__cause__ or error.__context__
    return False


def free_device_memory() -> bool:
    """Release the GPU memory that PyTorch caches for later calls; waits for running kernels.

    Returns:
        Whether CUDA still works in this process: the error of a queued kernel may surface here.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)  # looked up, not imported
    try:
        if cuda is None or not cuda.is_initialized():
            return True
        gc.collect()  # frees tensors in reference cycles, common in frames of exceptions
        cuda.empty_cache()
    except Exception:  # after any error, the next call is safer in a fresh process
        return False
    return True
