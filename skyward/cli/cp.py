"""`skyward cp`: copies files and directories into and out of nodes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Semaphore

import click

from skyward.cli.places import NodeTarget, Place, find_node, place_options
from skyward.cli.runs import Transfer
from skyward.errors import ConfigError, SkywardError
from skyward.nodes.access import OUTPUT, Program
from skyward.runner.entry.copy import CopyError, Destination, name_of, pack, size_of, unpack

_PROGRAM = ("python3", "-m", "skyward.runner.entry.copy")
_ENV = {"PYTHONSAFEPATH": "1"}  # do not import the node's files as modules
_PARTS = 32  # maximum number of received but unread parts of a stream
_MOST_NAMED = 20


@dataclass(frozen=True, slots=True)
class RemotePath:
    """A path in a node, written `POOL:NODE:PATH`; relative paths start at the directory in which calls run."""

    pool: str
    node: str | None
    path: str

    @classmethod
    def parse(cls, text: str) -> RemotePath | None:
        """Parse a path in a node; return None for a local one, such as any with a slash before the first colon."""
        found = re.fullmatch(r"([^:/]+):([^:/]*):(.*)", text, re.DOTALL)
        return cls(found[1], found[2] or None, found[3]) if found else None


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.argument("destination")
@place_options
def command(sources: tuple[str, ...], destination: str, places: Sequence[Place]) -> int:
    """Copy files and folders into a node, or out of one.

    `skyward cp data POOL:2:/data` copies into node 2, `skyward cp POOL:2:/out .` out of it.

    As `cp -r` does: a DESTINATION that is a folder gets the copy inside, under its own name; any other becomes the
    copy, and its parent must exist. `SOURCE/.` is what is in a folder, without the folder. A slash at the end of SOURCE
    changes nothing. Modes and times are kept, links stay links. A file appears when it is whole.
    """
    into, origins = RemotePath.parse(destination), [RemotePath.parse(source) for source in sources]
    remote = [each for each in origins if each is not None]
    if into is not None and not remote:
        for source in sources:
            if not os.path.lexists(source):
                raise ConfigError(f"{source} does not exist here; nothing was copied.")
        return _put(find_node(places, into.pool, into.node), sources, into.path)
    if into is None and len(remote) == len(sources):
        if len({(each.pool, each.node) for each in remote}) > 1:
            raise ConfigError("skyward cp copies out of one node at a time.")
        first = remote[0]
        return _get(find_node(places, first.pool, first.node), [each.path or "." for each in remote], destination)
    raise ConfigError(
        "skyward cp copies from here to a node, or from a node to here: one side has the form POOL:NODE:PATH; found "
        f"{' '.join((*sources, destination))}."
    )


def _put(target: NodeTarget, sources: Sequence[str], destination: str) -> int:
    with target.enter() as access, Transfer(f"copying into {target.title}", size_of(sources)) as transfer:
        report = _Report(target, transfer)
        program = Program(access, [*_PROGRAM, "put", destination, str(len(sources))], report.hear, env=_ENV)
        try:
            pack(sources, _Input(program, transfer), report.note)
            program.end_input()
            report.status = program.wait().status
        except _EndedError:
            report.status = program.wait().status  # it has reported why
        except CopyError as error:
            report.error = str(error)
        finally:
            program.close()
        return report.finish()


def _get(target: NodeTarget, paths: Sequence[str], destination: str) -> int:
    try:
        into = Destination(destination, several=len(paths) > 1)
    except CopyError as error:
        raise ConfigError(f"{error} Nothing was copied.") from error
    with target.enter() as access, Transfer(f"copying out of {target.title}") as transfer:
        report = _Report(target, transfer)
        output = _Output(report, transfer)
        program = Program(access, [*_PROGRAM, "get", *paths], output.put, env=_ENV)
        program.at_end(output.end)
        try:
            unpack(output, into, report.note, {name_of(path) for path in paths})
            output.skip()
            report.status = program.wait().status
        except CopyError as error:
            if output.has_ended:
                report.status = program.wait().status  # tells more precisely why the copy broke off
            report.error = report.error or str(error)
        finally:
            output.stop()
            program.close()
        return report.finish()


class _EndedError(Exception):
    """The program in the node ended before all data was sent."""


class _Input:
    """The node's end of a copy, as a writable file."""

    def __init__(self, program: Program, transfer: Transfer) -> None:
        self._program, self._transfer = program, transfer

    def write(self, data: bytes) -> int:
        if not self._program.write(data):
            raise _EndedError
        self._transfer.advance(len(data))
        return len(data)


class _Output:
    """Data from the node's end of a copy, as a readable file with a bounded buffer.

    Attributes:
        has_ended: whether the end was read.
    """

    def __init__(self, report: _Report, transfer: Transfer) -> None:
        self._report, self._transfer = report, transfer
        self._parts: SimpleQueue[bytes] = SimpleQueue()
        self._room = Semaphore(_PARTS)
        self._rest = b""
        self.has_ended = self._stopped = False

    def put(self, stream: int, data: bytes) -> None:
        """Buffer received data (called in a separate thread)."""
        if stream != OUTPUT:
            self._report.hear(stream, data)
        elif not self._stopped:
            self._room.acquire()
            self._parts.put(data)

    def end(self) -> None:
        """Mark the end of the data."""
        self._parts.put(b"")

    def read(self, count: int) -> bytes:
        """Return `count` bytes; fewer at the end."""
        found = bytearray(self._rest[:count])
        self._rest = self._rest[count:]
        while len(found) < count and not self.has_ended:
            part = self._parts.get()
            if not part:
                self.has_ended = True
                break
            self._room.release()
            self._transfer.advance(len(part))
            missing = count - len(found)
            found += part[:missing]
            self._rest = part[missing:]
        return bytes(found)

    def skip(self) -> None:
        """Read to the end."""
        while self.read(1 << 20):
            pass

    def stop(self) -> None:
        """Release a blocked `put`, and discard what comes after."""
        self._stopped = True
        self._room.release(_PARTS)


class _Report:
    """Messages of the program in the node about a copy."""

    def __init__(self, target: NodeTarget, transfer: Transfer) -> None:
        self._target, self._transfer = target, transfer
        self._line = b""
        self._unread: list[str] = []  # output lines that are not the program's messages
        self.failures: list[str] = []
        self.status = 0
        self.error = ""

    def note(self, file: str, why: str) -> None:
        """Record a file that was not copied."""
        self.failures.append(f"{file} {why}")

    def hear(self, _: int, data: bytes) -> None:
        """Handle output of the program in the node."""
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            try:
                about = json.loads(line)
                assert isinstance(about, dict)
            except (ValueError, AssertionError):
                self._unread.append(line.decode(errors="replace"))
                continue
            self._transfer.total = about.get("total", self._transfer.total)
            self.error = about.get("error", self.error)
            if "file" in about:
                self.note(about["file"], about["why"])

    def finish(self) -> int:
        """Report what was not copied, and return the exit status.

        Raises:
            SkywardError: the copy broke off.
        """
        if self.error:
            raise SkywardError(f"The copy was not made, or not to its end: {self.error} ({self._target.title})")
        if self.status:
            said = "\n".join(self._unread[-_MOST_NAMED:])
            raise SkywardError(
                f"The copy broke off: its program in {self._target.title} ended with {self.status}.\n{said}"
            )
        for failure in self.failures[:_MOST_NAMED]:
            click.echo(f"skyward: not copied: {failure}", err=True)
        if len(self.failures) > _MOST_NAMED:
            click.echo(f"skyward: and {len(self.failures) - _MOST_NAMED} more were not copied", err=True)
        return 1 if self.failures else 0
