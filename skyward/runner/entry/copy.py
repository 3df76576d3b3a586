"""Copies of file trees into and out of nodes, like `cp -r`: tar streams, and the program at the node's end.

The receiving end decides where files are written. Data from a node is not trusted: no name and no link may lead out of
the destination folder.

`python -m ...copy put DESTINATION COUNT` and `... get PATH...` are the node's end of `skyward cp`. The trees are read
from standard input, or written to standard output after the line `BEGIN`.
"""

from __future__ import annotations

import os
import sys
import tarfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Protocol

CHUNK = 1 << 18
HERE = "."  # the name of a tree whose content goes into the destination itself
BEGIN = b"skyward-begin\n"  # shell files and prologs of a site may print something before
FAILED = 2
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
    """Receive or send trees; return the exit status."""
    action, *words = sys.argv[1:]
    try:
        if action == "put":
            destination, count = words
            unpack(sys.stdin.buffer, Destination(destination, several=int(count) > 1))
        else:
            sys.stdout.buffer.write(BEGIN)
            pack(words, sys.stdout.buffer)
            sys.stdout.buffer.flush()
    except CopyError as error:
        sys.stderr.write(f"{error}\n")
        return FAILED
    return 0


def name_of(path: str) -> str:
    """Return the name of a tree at its destination: the last part of its path, or `HERE` if that is "", "." or ".."."""
    last = path.rstrip("/").rpartition("/")[2] if path.strip("/") else ""
    return HERE if last in ("", ".", "..") else last


def pack(paths: Sequence[str], target: Writable) -> None:
    """Write trees to a stream. A path that is itself a link is followed; pipes, sockets and devices are left out.

    Raises:
        CopyError: a path does not exist, or a file cannot be read.
    """
    for path in paths:
        if not os.path.exists(path):  # noqa: PTH110 - Path("") would be the folder here
            raise CopyError(f"{path} does not exist.")
    try:
        with tarfile.open(mode="w|", fileobj=target, bufsize=CHUNK, copybufsize=CHUNK) as archive:  # type: ignore[call-overload]

            def rule(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
                archive.inodes.clear()  # else a second name of a file would become a link
                archive.members.clear()  # else the names of all files stay in memory
                member.uid, member.gid, member.uname, member.gname = 0, 0, "", ""
                return member if member.isreg() or member.isdir() or member.issym() else None

            for path in paths:
                archive.add(Path(path).resolve(), name_of(path), filter=rule)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CopyError(f"The copy failed: {error}.") from error


class Destination:
    """The destination of trees, as for `cp -r`: into a folder that exists; else the path becomes the copy itself.

    Args:
        path: the destination; "" for the working directory.
        several: whether more than one tree is copied, which requires a folder.

    Attributes:
        folder: that the copies are written to.
        name: of the copy there; "" if it keeps its own.

    Raises:
        CopyError: the required folder does not exist.
    """

    def __init__(self, path: str, *, several: bool) -> None:
        target = Path(path or ".")
        self.folder, self.name = (target, "") if target.is_dir() else (target.parent, target.name)
        if self.name and several:
            raise CopyError(f"{path} is not a folder; copies of several things go into one that exists.")
        if not self.folder.is_dir():
            raise CopyError(f"There is no folder {self.folder}. Create it first.")


def unpack(
    source: Readable, into: Destination, tops: Collection[str] | None = None, note: Note = lambda *_: None
) -> None:
    """Read trees from a stream.

    Args:
        source: the stream.
        into: the destination.
        tops: the names of the trees, if the other end is not trusted; None if it is.
        note: called for each entry that is refused.

    Raises:
        CopyError: the stream is truncated; a file cannot be written; this Python cannot check names.
    """
    if tops is not None and not hasattr(tarfile, "data_filter"):
        raise CopyError("This Python cannot check what comes from a node (PEP 706); use 3.11.4, 3.12 or newer.")
    try:
        with tarfile.open(mode="r|", fileobj=source, bufsize=CHUNK) as archive:  # type: ignore[call-overload]
            archive.extraction_filter = lambda member, _: member  # they are checked by `_checked`
            folders = []
            for member in _checked(archive, into, tops, note):
                archive.extract(member, into.folder, set_attrs=not member.isdir())
                folders += [member] if member.isdir() else []
            for member in reversed(folders):  # a folder may be read-only, and its time is that of its last change
                (into.folder / member.name).chmod(member.mode)
                os.utime(into.folder / member.name, (member.mtime, member.mtime))
    except (tarfile.TarError, OSError) as error:
        raise CopyError(f"The copy failed: {error}.") from error


def _checked(
    archive: tarfile.TarFile, into: Destination, tops: Collection[str] | None, note: Note
) -> Iterator[tarfile.TarInfo]:
    """Yield the entries of an archive that may be written, with the names they get."""
    while (member := archive.next()) is not None:
        archive.members.clear()  # type: ignore[attr-defined]
        parts = PurePosixPath(member.name).parts  # does not contain "."
        top, rest = (HERE, parts) if member.name.split("/")[0] == HERE else ("".join(parts[:1]), parts[1:])
        root = into.folder / (into.name or top)
        target = root.joinpath(*rest)
        try:
            if not (member.isreg() or member.isdir() or member.issym()):
                raise tarfile.SpecialFileError(member)
            safe = member
            if tops is not None:
                if top not in tops:
                    raise tarfile.OutsideDestinationError(member, str(target))
                safe = tarfile.data_filter(member.replace(name="/".join(rest) or HERE, deep=False), str(root))
        except tarfile.FilterError as error:
            note(member.name, str(error))
            continue
        safe.name, safe.mode = str(target.relative_to(into.folder)), member.mode & 0o777
        if not member.isdir():
            with suppress(OSError):  # it is not there, or is a folder
                target.unlink()
        if target != into.folder:
            yield safe


if __name__ == "__main__":
    sys.exit(main())
