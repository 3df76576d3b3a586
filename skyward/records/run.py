"""The record of one run: a directory under the user's state directory, with what is known of it and its journals.

- `runs/ID/run.json`: what was started, by whom and where; written once
- `runs/ID/end.json`: how it ended; missing while it runs, and for good when it was killed
- `runs/ID/output/`: journal of what the program itself prints: t, stream ("out", "err"), text
- `runs/ID/nodes/`: journal of what nodes print: t, pool, node, rank, call, stream, text
- `runs/ID/events/`: journal of its pools: t, pool, event, and what belongs to the event
- `runs/ID/saved/`: values of sky.save
- `runs/ID/files/`: the run's output folder
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from skyward.errors import ConfigError

FOLDER_VARIABLE = "SKYWARD_RUN"  # names the directory of the run that a process belongs to
_NOWHERE = Path("/nonexistent")  # the home of users without one, as Debian's accounts have it
_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_.-]{0,80}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """The machines that were rented for a detached run, by whoever started it.

    Attributes:
        provider: the provider and its region, as "AWS:us-east-1".
        pool: identifier of a pool, with which the machines are tagged.
        keep_s: how long the driver's machine stays after the run's end if nobody fetches the results.
    """

    provider: str
    pool: str
    keep_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What is known of a run from its start on.

    Attributes:
        id: its name: that of the program, and four characters that tell it from others.
        program: the file that runs, or a module as "-m name".
        arguments: of the program.
        started: seconds since 1970.
        directory: where it was started.
        user: who started it, as "name@host".
        pid: of its process on the host that it runs on; None where that is in a container.
        process: that process as `nodes/process_id.py` writes it, which tells it from a later one with the same number.
        place: where its driver runs, seen from the machine whose record this is: "local" (a process there), "docker" (a
            container there), or "user@host", where the record with the journals is.
        key: file of the private key for that host; None for what agent and SSH configuration offer.
        known_hosts: file of the only host keys to trust for it; None for those of the SSH configuration.
        detached: whether it lives on without the terminal that started it.
        container: name of the driver's container; None where it is a process.
        rented: its machines; None where they were there before.
    """

    id: str
    program: str
    arguments: Sequence[str] = ()
    started: float
    directory: str
    user: str
    pid: int | None = None
    process: str = ""
    place: str = "local"
    key: str | None = None
    known_hosts: str | None = None
    detached: bool = False
    container: str | None = None
    rented: Rental | None = None

    def write(self, folder: Path) -> None:
        """Put it into the run's directory, which is made when it is missing."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(folder / "run.json", asdict(self))

    @classmethod
    def parse(cls, text: str | bytes) -> RunRecord:
        """Of the text of a run.json; fields of later versions are left out.

        Raises:
            ValueError, TypeError: it is none.
        """
        known = {each.name for each in fields(cls)}
        values = json.loads(text)
        rented = values.pop("rented", None)
        found = {name: value for name, value in values.items() if name in known}
        return cls(**found, rented=Rental(**rented) if rented else None)


def state_folder() -> Path:
    """The user's directory for what outlives a process: $XDG_STATE_HOME/skyward, usually ~/.local/state/skyward.

    A path that does not exist for users without a home.
    """
    from platformdirs import user_state_path

    try:
        found = user_state_path("skyward")
    except RuntimeError:  # no HOME, and no account of this user's number
        return _NOWHERE
    return found if found.is_absolute() else _NOWHERE  # some versions leave `~` as it is


def runs_folder() -> Path:
    """Where the records of runs are."""
    return state_folder() / "runs"


def folder_of(run_id: str) -> Path:
    """The directory of a run, whether or not it is there.

    Raises:
        ConfigError: this cannot be the name of a run.
    """
    if not _NAME.fullmatch(run_id):
        raise ConfigError(f"{run_id!r} cannot be the name of a run: letters, digits and -_. only.")
    return runs_folder() / run_id


def new_id(program: str) -> str:
    """A name for a run of this program: "train-4f2a" for train.py."""
    stem = re.sub("[^A-Za-z0-9_]+", "-", Path(program.removeprefix("-m ")).stem).strip("-_")[:40] or "run"
    return f"{stem}-{secrets.token_hex(2)}"


def write_json(path: Path, value: Any) -> None:
    """Write a file that other processes may read at any time: as a whole, or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(2)}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(json.dumps(value, indent=1) + "\n")
    draft.replace(path)
