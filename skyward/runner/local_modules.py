"""The user's local modules in a worker: their files, and what is imported of them when a file is replaced.

An image with `bake=True` has them with the other files of its includes. These are linked beside what is sent, as
modules find their data beside themselves.

The client sends a file again when it has loaded the module anew. All local modules are then forgotten here before the
next function is loaded, so that those that import it import what it is now.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from skyward.errors import WireError
from skyward.model.instance import BAKED_DIR, CODE_DIR

directory = Path(CODE_DIR)  # set where the worker starts, since functions may change the working directory
_written: dict[str, bytes] = {}  # digests of what this process was sent
_is_replaced = False


def write(files: tuple[tuple[str, bytes], ...], programs: Collection[str] = ()) -> None:
    """Place files where they can be imported; a file appears whole or not at all.

    Args:
        files: paths below the directory, and contents.
        programs: those of the paths that may be executed.

    Raises:
        WireError: a path leads out of the directory.
    """
    global _is_replaced
    root = directory
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


def forget_replaced() -> None:
    """Forget all local modules if one of them was replaced; by the thread that is about to load a function."""
    global _is_replaced
    if not _is_replaced:
        return
    _is_replaced = False
    for name, module in list(sys.modules.items()):
        if _is_below(directory, module):
            sys.modules.pop(name, None)


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


def _is_below(root: Path, module: ModuleType | None) -> bool:
    """Whether a module's Python code stands below a directory; extension modules can be imported once per process."""
    if not issubclass(type(module), ModuleType):
        return False
    names = ModuleType.__getattribute__(module, "__dict__")
    file, folders = names.get("__file__"), names.get("__path__")
    if isinstance(file, str):
        return file.endswith(".py") and Path(file).is_relative_to(root)
    return folders is not None and any(Path(str(folder)).is_relative_to(root) for folder in list(folders))
