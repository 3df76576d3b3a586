"""Copies of file trees into and out of nodes, like `cp -r`: tar streams, and the program at the node's end.

The receiving end decides where files are written. Each file gets its name once it is complete. Data from a node is not
trusted: no name may lead out of the destination folder, and links are neither followed nor allowed to lead out of it.

`python -m ...copy put DESTINATION COUNT` and `... get PATH...` are the node's end of `skyward cp`. The trees are read
from standard input or written to standard output. Reports go to standard error, one JSON object a line: `{"total":
bytes}`, `{"file": path, "why": text}` for each file that is not copied, `{"copied": number}`, `{"error": sentence}`.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
import sys
import tarfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

CHUNK = 1 << 18
HERE = "."  # the name of a tree whose content goes into the destination itself
_FULL = (errno.ENOSPC, errno.EDQUOT)
_O_TMPFILE = getattr(os, "O_TMPFILE", None)  # Linux only: a file without a name
Note = Callable[[str, str], None]  # called with a file that is not copied, and the reason


class CopyError(Exception):
    """A copy cannot begin or continue; the message is a sentence."""


class Writable(Protocol):
    """A stream that bytes are written to."""

    def write(self, data: bytes, /) -> object:
        """Write all of the data."""
        ...


class Readable(Protocol):
    """A stream that bytes are read from."""

    def read(self, count: int, /) -> bytes:
        """Return up to this many bytes; none at the end."""
        ...


# the program ----------------------------------------------------------------------------------------------------------


def main() -> int:
    """Receive or send trees."""
    action, *words = sys.argv[1:]
    try:
        if action == "put":
            destination, count = words
            into = Destination(destination, several=int(count) > 1)
            _tell(copied=unpack(sys.stdin.buffer, into, _note))
        else:
            _tell(total=size_of(words))
            _tell(copied=pack(words, sys.stdout.buffer, _note))
            sys.stdout.buffer.flush()
    except CopyError as error:
        _tell(error=str(error))
        return 1
    return 0


def _note(file: str, why: str) -> None:
    _tell(file=file, why=why)


def _tell(**about: object) -> None:
    sys.stderr.write(f"{json.dumps(about)}\n")
    sys.stderr.flush()


# sending --------------------------------------------------------------------------------------------------------------


def name_of(path: str) -> str:
    """Return the name of a tree at its destination: the last part of its path, or `HERE` if that is "", "." or ".."."""
    last = path.rstrip("/").rpartition("/")[2] if path.strip("/") else ""
    return HERE if last in ("", ".", "..") else last


def size_of(paths: Sequence[str]) -> int:
    """Return the bytes of all files in these trees."""
    return sum(about.st_size for path in paths for _, about in _walk(Path(path)) if stat.S_ISREG(about.st_mode))


def _walk(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    pending = [path.resolve()]
    while pending:
        here = pending.pop()
        with suppress(OSError):  # unreadable files are reported when they are to be sent
            about = here.lstat()
            yield here, about
            if stat.S_ISDIR(about.st_mode):
                pending += [Path(entry.path) for entry in os.scandir(here)]


def pack(paths: Sequence[str], target: Writable, note: Note) -> int:
    """Write trees to a stream and return the number of their entries. A path that is itself a link is followed.

    Raises:
        CopyError: a path does not exist.
    """
    for path in paths:
        if not os.path.exists(path):  # noqa: PTH110 - Path("") would be the folder here
            raise CopyError(f"{path} does not exist.")
    count = 0
    with tarfile.open(  # type: ignore[call-overload]
        mode="w|", fileobj=target, bufsize=CHUNK, copybufsize=CHUNK, format=tarfile.PAX_FORMAT
    ) as archive:
        for path in paths:
            pending = [(Path(path).resolve(), name_of(path))]
            while pending:
                here, name = pending.pop()
                try:
                    count += _add(archive, here, name, note)
                    if here.is_dir() and not here.is_symlink():
                        pending += [(each, f"{name}/{each.name}") for each in sorted(here.iterdir(), reverse=True)]
                except PermissionError as error:
                    note(str(here), f"cannot be read ({error.strerror})")
                except FileNotFoundError:
                    note(str(here), "was removed meanwhile")
    return count


def _add(archive: tarfile.TarFile, path: Path, name: str, note: Note) -> bool:
    info = archive.gettarinfo(path, name)
    archive.inodes.clear()  # type: ignore[attr-defined]  # else a second name of a file would become a link
    if not (info.isreg() or info.isdir() or info.issym()):
        note(str(path), "is neither a file nor a folder nor a link")
        return False
    info.name, info.uid, info.gid, info.uname, info.gname = name, 0, 0, "", ""
    if not info.isreg():
        archive.addfile(info)
    else:
        with path.open("rb") as file:
            archive.addfile(info, _OfSize(file, info.size, lambda: note(str(path), "became shorter while it was read")))
    archive.members.clear()  # type: ignore[attr-defined]  # else the names of all files stay in memory
    return True


class _OfSize:
    """A file that yields exactly the announced number of bytes, even if it is changed meanwhile."""

    def __init__(self, file: BinaryIO, size: int, on_short: Callable[[], None]) -> None:
        self._file, self._left, self._on_short = file, size, on_short

    def read(self, count: int = -1) -> bytes:
        count = self._left if count < 0 else min(count, self._left)
        data = self._file.read(count)
        if len(data) < count:
            if data or self._left:
                self._on_short()
                self._on_short = lambda: None
            data += bytes(count - len(data))
        self._left -= len(data)
        return data


# receiving ------------------------------------------------------------------------------------------------------------


class Destination:
    """The destination of trees, as for `cp -r`: into a folder that exists; else the path becomes the copy itself.

    Args:
        path: the destination; "" for the working directory.
        several: whether more than one tree is copied, which requires a folder.

    Raises:
        CopyError: the required folder does not exist.
    """

    def __init__(self, path: str, *, several: bool) -> None:
        self._path = Path(path or ".")
        self._is_folder = self._path.is_dir()
        self._names_folder = path.endswith("/")
        if self._is_folder:
            return
        if several:
            raise CopyError(f"{path} is not a folder; copies of several things go into one that exists.")
        if not self._path.parent.is_dir():
            raise CopyError(f"There is no folder {self._path.parent}; make it first.")

    def root(self, top: str, *, is_folder: bool) -> Path:
        """Return the path of the copy of a tree with this name.

        Raises:
            CopyError: a file cannot be copied there.
        """
        if self._is_folder:
            return self._path if top == HERE else self._path / top
        if self._names_folder and not is_folder:
            raise CopyError(f"There is no folder {self._path}; make it first.")
        return self._path


def unpack(source: Readable, into: Destination, note: Note, tops: Collection[str] | None = None) -> int:
    """Read trees from a stream, and return the number of entries copied.

    Args:
        source: the stream.
        into: the destination.
        note: called for each entry that is not copied.
        tops: the names of the trees, if the other end is not trusted; None if it is.

    Raises:
        CopyError: the stream is invalid or truncated; the disk is full; this Python cannot check names.
    """
    if tops is not None and not hasattr(tarfile, "data_filter"):
        raise CopyError("This Python cannot check what comes from a node (PEP 706); use 3.11.4, 3.12 or newer.")
    return _Receiver(into, note, tops).receive(source)


class _Receiver:
    def __init__(self, into: Destination, note: Note, tops: Collection[str] | None) -> None:
        self._into, self._note, self._tops = into, note, tops
        self._roots: dict[str, Path] = {}
        self._folders: list[tuple[Path, tarfile.TarInfo]] = []  # those that were created

    def receive(self, source: Readable) -> int:
        count = 0
        try:
            with tarfile.open(mode="r|", fileobj=source, bufsize=CHUNK) as archive:  # type: ignore[call-overload]
                while (member := archive.next()) is not None:
                    archive.members.clear()
                    count += self._take(archive, member)
        except tarfile.TarError as error:
            raise CopyError(f"The copy broke off ({error}).") from error
        finally:
            for path, info in reversed(self._folders):
                with suppress(OSError):  # it may have been removed
                    path.chmod(info.mode & 0o777)
                    os.utime(path, (info.mtime, info.mtime))
        return count

    def _take(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> bool:
        try:
            target = self._target(member)
            if member.isdir():
                self._make_folder(target, member)
            elif member.issym():
                _rename_to(target, lambda name: name.symlink_to(member.linkname))
            elif member.isreg():
                file = archive.extractfile(member)
                assert file
                _write(target, file, member)
            else:
                raise _RefusedError("is neither a file nor a folder nor a link")
        except _RefusedError as error:
            self._note(member.name, str(error))
            return False
        except ValueError as error:
            self._note(member.name, f"has a name that cannot be used ({error})")
            return False
        except OSError as error:
            if error.errno in _FULL:
                raise CopyError(f"{target} cannot be written: {error.strerror}.") from error
            self._note(str(target), f"cannot be written ({error.strerror})")
            return False
        return True

    def _target(self, member: tarfile.TarInfo) -> Path:
        """Return the path to which an entry is written.

        Raises:
            _RefusedError: its name or its link leads out of the destination.
        """
        parts = PurePosixPath(member.name).parts  # does not contain "."
        is_here = member.name == HERE or member.name.startswith(f"{HERE}/")
        if not (parts or is_here) or member.name.startswith("/") or ".." in parts:
            raise _RefusedError("has a name that leads elsewhere")
        top, rest = (HERE, parts) if is_here else (parts[0], parts[1:])
        if self._tops is not None and top not in self._tops:
            raise _RefusedError("was not asked for")
        if top not in self._roots:
            self._roots[top] = self._into.root(top, is_folder=member.isdir() or bool(rest))
        root = self._roots[top]
        above = root
        for part in rest:
            if above.is_symlink() and (above != root or top != HERE):
                raise _RefusedError(f"would go through the link {above}")
            above /= part
        if self._tops is not None:
            inside = member.replace(name="/".join(rest) or HERE, deep=False)
            try:
                tarfile.data_filter(inside, str(root))
            except tarfile.FilterError as error:
                raise _RefusedError(f"leads out of the copy ({error})") from error
        return above

    def _make_folder(self, target: Path, member: tarfile.TarInfo) -> None:
        if target.is_symlink() and target != self._roots.get(HERE):
            raise _RefusedError(f"is a folder, and {target} is a link")
        if target.is_dir():
            return
        target.mkdir(mode=0o700)
        self._folders.append((target, member))


class _RefusedError(Exception):
    """An entry is not copied; the message completes a sentence that begins with its name."""


def _write(target: Path, source: Readable, info: tarfile.TarInfo) -> None:
    """Write a complete file without a name, or with a temporary one, and then give it its name."""

    def fill(handle: int) -> None:
        with open(handle, "wb", buffering=0, closefd=False) as file:
            while data := source.read(CHUNK):
                left = memoryview(data)
                while left:
                    left = left[file.write(left) :]
        os.fchmod(handle, info.mode & 0o777)
        os.utime(handle, (info.mtime, info.mtime))

    if target.is_dir():
        raise _RefusedError(f"is a file, and {target} is a folder")
    handle = _nameless(target.parent)
    if handle is not None:
        try:
            fill(handle)
            # without src_dir_fd Python does not follow symbolic links, and the name in /proc is one
            own = f"/proc/self/fd/{handle}"
            _rename_to(target, lambda name: os.link(own, name, src_dir_fd=handle, follow_symlinks=True))
        finally:
            os.close(handle)
        return

    def make(name: Path) -> None:
        made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            fill(made)
        finally:
            os.close(made)

    _rename_to(target, make)


def _nameless(folder: Path) -> int | None:
    """Open a file without a name in a folder, which vanishes if this process dies; return None if unsupported."""
    if _O_TMPFILE is None or not os.path.exists("/proc/self/fd"):  # noqa: PTH110 - cheaper
        return None
    try:
        return os.open(folder, _O_TMPFILE | os.O_WRONLY, 0o600)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            return None  # not on this file system
        raise


def _rename_to(target: Path, make: Callable[[Path], None]) -> None:
    """Create something under a temporary name next to the target, then replace the target atomically."""
    if target.is_dir() and not target.is_symlink():
        raise _RefusedError(f"cannot take the place of the folder {target}")
    temporary = target.with_name(f".skyward-{secrets.token_hex(6)}")
    try:
        make(temporary)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


if __name__ == "__main__":
    sys.exit(main())
