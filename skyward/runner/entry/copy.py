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
from contextlib import nullcontext, suppress
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import SupportsRead, SupportsWrite

CHUNK = 1 << 18
HERE = "."  # the name of a tree whose content goes into the destination itself
BEGIN = b"skyward-begin\n"  # shell files and prologs of a site may print something before
FAILED, INCOMPLETE = 2, 3  # exit statuses
Note = Callable[[str, str], None]  # called with a file that is not copied, and the reason


class CopyError(Exception):
    """A copy cannot begin or continue; the message is a sentence."""


def main() -> int:
    """Receive or send trees; return the exit status."""
    action, *words = sys.argv[1:]
    left_out = list[str]()
    try:
        if action == "put":
            destination, count = words
            unpack(sys.stdin.buffer, Destination(destination, several=int(count) > 1))
        else:
            sys.stdout.buffer.write(BEGIN)
            pack(words, sys.stdout.buffer, lambda file, why: left_out.append(not_copied(file, why)))
            sys.stdout.buffer.flush()
    except CopyError as error:
        sys.stderr.write(f"{error}\n")
        return FAILED
    sys.stderr.write("".join(f"{line}\n" for line in left_out))
    return INCOMPLETE if left_out else 0


def not_copied(file: str, why: str) -> str:
    """Return the line that reports a file that was not copied."""
    return f"skyward: not copied: {file} {why}"


def name_of(path: str) -> str:
    """Return the name of a tree at its destination: the last part of its path, or `HERE` if that is "", "." or ".."."""
    last = path.rstrip("/").rpartition("/")[2] if path.strip("/") else ""
    return HERE if last in ("", ".", "..") else last


def pack(paths: Sequence[str], target: SupportsWrite[bytes], note: Note) -> None:
    """Write trees to a stream. A path that is itself a link is followed; pipes, sockets and devices are left out.

    Args:
        paths: the trees.
        target: the stream.
        note: called for each file that cannot be read, or that vanishes or shrinks meanwhile.

    Raises:
        CopyError: a path does not exist, or the stream cannot be written to.
    """
    for path in paths:
        if not os.path.exists(path):  # noqa: PTH110 - Path("") would be the folder here
            raise CopyError(f"{path} does not exist.")
    try:
        with tarfile.open(mode="w|", fileobj=target, bufsize=CHUNK, copybufsize=CHUNK) as archive:  # type: ignore[call-overload]
            for path in paths:
                _add(archive, Path(path).resolve(), name_of(path), note)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CopyError(f"The copy failed: {error}.") from error


def _add(archive: tarfile.TarFile, path: Path, name: str, note: Note) -> None:
    """Add a file, or a folder with all that is in it."""
    file: IO[bytes] | None = None
    inside = list[Path]()
    try:
        if not path.is_symlink() and path.is_file():
            file = path.open("rb")
        member = archive.gettarinfo(str(path), name, file)
        if path.is_dir() and not path.is_symlink():
            inside = sorted(path.iterdir())
    except OSError as error:
        note(name, f"cannot be read ({error.strerror})")
        return
    finally:
        archive.inodes.clear()  # type: ignore[attr-defined] # else a second name of a file would become a link
        archive.members.clear()  # type: ignore[attr-defined] # else the names of all files stay in memory
    with file or nullcontext():
        if not member or not (member.isreg() or member.isdir() or member.issym()):  # type: ignore[truthy-bool]
            return
        member.uid, member.gid, member.uname, member.gname = 0, 0, "", ""
        content = _Content(file) if file else None
        archive.addfile(member, content)  # type: ignore[arg-type]
    if content and content.is_cut:
        note(name, "completely: it could not be read to its end, and zeros follow")
    for each in inside:
        _add(archive, each, f"{name}/{each.name}", note)


class _Content:
    """The content of a file as long as its header says: zeros replace what cannot be read any more."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.is_cut = file, False

    def read(self, count: int) -> bytes:
        data = b""
        with suppress(OSError):
            data = self._file.read(count)
        self.is_cut |= len(data) < count
        return data.ljust(count, b"\0")


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
    source: SupportsRead[bytes], into: Destination, tops: Collection[str] | None = None, note: Note = lambda *_: None
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
