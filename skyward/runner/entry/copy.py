"""Copies of file trees into and out of nodes, like `cp -r`: tar streams, and the program at the node's end.

The receiving end decides where files are written. Each file gets its name once it is complete. Data from a node is not
trusted: no name may lead out of the destination folder, and links are neither followed nor allowed to lead out of it.

`python -m ...copy put DESTINATION COUNT` and `... get PATH...` are the node's end of `skyward cp`. The trees are read
from standard input, or written to standard output after the line `BEGIN`. Files that are not copied are named on
standard error, and make the exit status 1; with status 2 nothing more is copied, and the last line says why.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import signal
import stat
import sys
import tarfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

CHUNK = 1 << 18
HERE = "."  # the name of a tree whose content goes into the destination itself
BEGIN = b"skyward-begin\n"  # shell files and prologs of a site may print something before
SOME_LEFT_OUT, BROKEN_OFF = 1, 2
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


def main() -> int:
    """Receive or send trees."""
    action, *words = sys.argv[1:]
    left_out = list[str]()

    def note(file: str, why: str) -> None:
        left_out.append(file)
        sys.stderr.write(f"not copied: {file} {why}\n")

    signal.signal(signal.SIGHUP, lambda *_: sys.exit(BROKEN_OFF))  # after the partial file was removed
    try:
        if action == "put":
            destination, count = words
            unpack(sys.stdin.buffer, Destination(destination, several=int(count) > 1), note)
        else:
            sys.stdout.buffer.write(BEGIN)
            pack(words, sys.stdout.buffer, note)
            sys.stdout.buffer.flush()
    except CopyError as error:
        sys.stderr.write(f"{error}\n")
        return BROKEN_OFF
    return SOME_LEFT_OUT if left_out else 0


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


def pack(paths: Sequence[str], target: Writable, note: Note) -> None:
    """Write trees to a stream. A path that is itself a link is followed.

    Raises:
        CopyError: a path does not exist.
    """
    for path in paths:
        if not os.path.exists(path):  # noqa: PTH110 - Path("") would be the folder here
            raise CopyError(f"{path} does not exist.")
    with tarfile.open(  # type: ignore[call-overload]
        mode="w|", fileobj=target, bufsize=CHUNK, copybufsize=CHUNK, format=tarfile.PAX_FORMAT
    ) as archive:
        for path in paths:
            pending = [(Path(path).resolve(), name_of(path))]
            while pending:
                here, name = pending.pop()
                try:
                    _add(archive, here, name, note)
                    if here.is_dir() and not here.is_symlink():
                        pending += [(each, f"{name}/{each.name}") for each in sorted(here.iterdir(), reverse=True)]
                except PermissionError as error:
                    note(str(here), f"cannot be read ({error.strerror})")
                except FileNotFoundError:
                    note(str(here), "was removed meanwhile")


def _add(archive: tarfile.TarFile, path: Path, name: str, note: Note) -> None:
    info = archive.gettarinfo(path, name)
    archive.inodes.clear()  # type: ignore[attr-defined]  # else a second name of a file would become a link
    if not (info.isreg() or info.isdir() or info.issym()):
        note(str(path), "is neither a file nor a folder nor a link")
        return
    info.name, info.uid, info.gid, info.uname, info.gname = name, 0, 0, "", ""
    if not info.isreg():
        archive.addfile(info)
    else:
        with path.open("rb") as file:
            archive.addfile(info, _OfSize(file, info.size, lambda: note(str(path), "became shorter while it was read")))
    archive.members.clear()  # type: ignore[attr-defined]  # else the names of all files stay in memory


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
            raise CopyError(f"There is no folder {self._path.parent}. Create it first.")

    def root(self, top: str, *, is_folder: bool) -> Path:
        """Return the path of the copy of a tree with this name.

        Raises:
            CopyError: a file cannot be copied there.
        """
        if self._is_folder:
            return self._path if top == HERE else self._path / top
        if self._names_folder and not is_folder:
            raise CopyError(f"There is no folder {self._path}. Create it first.")
        return self._path


def unpack(source: Readable, into: Destination, note: Note, tops: Collection[str] | None = None) -> None:
    """Read trees from a stream.

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
    roots, folders = dict[str, Path](), list[tuple[Path, tarfile.TarInfo]]()
    try:
        with tarfile.open(mode="r|", fileobj=source, bufsize=CHUNK) as archive:  # type: ignore[call-overload]
            while (member := archive.next()) is not None:
                archive.members.clear()
                try:
                    target = _target(member, into, roots, tops)
                    if _write(archive, member, target):
                        folders.append((target, member))
                except (_RefusedError, ValueError) as error:
                    note(member.name, str(error))
                except tarfile.FilterError as error:
                    note(member.name, f"leads out of the copy ({error})")
                except OSError as error:
                    if error.errno in (errno.ENOSPC, errno.EDQUOT):
                        raise CopyError(f"{member.name} cannot be written: {error.strerror}.") from error
                    note(member.name, f"cannot be written ({error.strerror})")
    except tarfile.TarError as error:
        raise CopyError(f"The copy broke off ({error}).") from error
    finally:
        for path, info in reversed(folders):
            with suppress(OSError):  # it may have been removed
                _set_facts(path, info)


class _RefusedError(Exception):
    """An entry is not copied; the message completes a sentence that begins with its name."""


def _target(member: tarfile.TarInfo, into: Destination, roots: dict[str, Path], tops: Collection[str] | None) -> Path:
    """Return the path to which an entry is written.

    Raises:
        _RefusedError, tarfile.FilterError: its name or its link leads out of the destination.
    """
    parts = PurePosixPath(member.name).parts  # does not contain "."
    is_here = member.name == HERE or member.name.startswith(f"{HERE}/")
    if not (parts or is_here) or member.name.startswith("/") or ".." in parts:
        raise _RefusedError("has a name that leads elsewhere")
    top, rest = (HERE, parts) if is_here else (parts[0], parts[1:])
    if tops is not None and top not in tops:
        raise _RefusedError("was not asked for")
    root = roots.setdefault(top, into.root(top, is_folder=member.isdir() or bool(rest)))
    above = root
    for part in rest:
        if above.is_symlink() and (above != root or top != HERE):
            raise _RefusedError(f"would go through the link {above}")
        above /= part
    if tops is not None:
        tarfile.data_filter(member.replace(name="/".join(rest) or HERE, deep=False), str(root))
    if above.is_symlink() and member.isdir() and (rest or top != HERE):
        raise _RefusedError(f"is a folder, and {above} is a link")
    return above


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> bool:
    """Write an entry under a temporary name, which it keeps until it is whole; return whether a folder was created."""
    if member.isdir():
        if target.is_dir():
            return False
        target.mkdir(mode=0o700)
        return True
    if not (member.isreg() or member.issym()):
        raise _RefusedError("is neither a file nor a folder nor a link")
    if target.is_dir() and not target.is_symlink():
        raise _RefusedError(f"is a file, and {target} is a folder")
    temporary = target.with_name(f".skyward-{secrets.token_hex(6)}")
    try:
        if member.issym():
            temporary.symlink_to(member.linkname)
        else:
            content = archive.extractfile(member)
            assert content
            with temporary.open("xb") as file:
                shutil.copyfileobj(content, file, CHUNK)
            _set_facts(temporary, member)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return False


def _set_facts(path: Path, member: tarfile.TarInfo) -> None:
    path.chmod(member.mode & 0o777)
    os.utime(path, (member.mtime, member.mtime))


if __name__ == "__main__":
    sys.exit(main())
