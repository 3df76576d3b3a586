"""`skyward cp`: copies files and directories into and out of nodes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from subprocess import DEVNULL, PIPE
from typing import IO

import click

from skyward.cli.places import NodeTarget, Place, find_node, place_options
from skyward.cli.runs import transfer
from skyward.errors import ConfigError, SkywardError
from skyward.nodes.access import Program
from skyward.runner.entry.copy import (
    BEGIN,
    CHUNK,
    INCOMPLETE,
    CopyError,
    Destination,
    name_of,
    not_copied,
    pack,
    unpack,
)

_PROGRAM = ("python3", "-m", "skyward.runner.entry.copy")
_ENV = {"PYTHONSAFEPATH": "1"}  # do not import the node's files as modules


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
    changes nothing. Modes and times are kept, links stay links. Files that cannot be read are left out and named at the
    end; the exit status is then 1.
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
    words = [*_PROGRAM, "put", destination, str(len(sources))]
    left_out = list[str]()
    with (
        target.enter() as access,
        transfer(f"copying into {target.title}") as count,
        closing(Program(access, words, env=_ENV, stdin=PIPE)) as program,
    ):
        given = program.process.stdin
        assert given
        try:
            with suppress(BrokenPipeError):  # it has reported why
                pack(sources, _Counted(given, count), lambda *about: left_out.append(not_copied(*about)))
        except CopyError as error:
            raise SkywardError(str(error)) from error
        finally:
            with suppress(BrokenPipeError):
                given.close()
        if program.wait():
            raise SkywardError(f"The copy into {target.title} failed.")
    return _report(left_out)


def _get(target: NodeTarget, paths: Sequence[str], destination: str) -> int:
    try:
        into = Destination(destination, several=len(paths) > 1)
    except CopyError as error:
        raise ConfigError(f"{error} Nothing was copied.") from error
    refused = list[str]()

    def note(file: str, why: str) -> None:
        refused.append(not_copied(file, why))

    words = [*_PROGRAM, "get", *paths]
    with (
        target.enter() as access,
        transfer(f"copying out of {target.title}") as count,
        closing(Program(access, words, env=_ENV, stdin=DEVNULL, stdout=PIPE)) as program,
    ):
        output = program.process.stdout
        assert output
        try:
            if BEGIN in iter(output.readline, b""):
                unpack(_Counted(output, count), into, {name_of(path) for path in paths}, note)
                while output.read(CHUNK):
                    pass  # what follows the end of the archive
        except CopyError as error:
            raise SkywardError(str(error)) from error
        status = program.wait()
        if status not in (0, INCOMPLETE):
            raise SkywardError(f"The copy out of {target.title} failed.")
    return _report(refused) or int(bool(status))


def _report(left_out: Sequence[str]) -> int:
    """Print what was not copied; return the exit status."""
    for line in left_out:
        click.echo(line, err=True)
    return int(bool(left_out))


class _Counted:
    """A stream whose bytes are counted."""

    def __init__(self, stream: IO[bytes], count: Callable[[int], None]) -> None:
        self._stream, self._count = stream, count

    def write(self, data: bytes) -> int:
        self._stream.write(data)
        self._count(len(data))
        return len(data)

    def read(self, count: int = -1, /) -> bytes:
        data = self._stream.read(count)
        self._count(len(data))
        return data
