"""Launching a run: its name, its directory, its driver."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from skyward.errors import ConfigError
from skyward.nodes.process_id import current_user
from skyward.records.run import RunRecord, folder_of, new_id
from skyward.runs.driver import drive


@dataclass(frozen=True, slots=True)
class Launch:
    """A program that is to be run.

    Attributes:
        id: the run's name.
        program: path of a script, or name of a module.
        arguments: of the program.
        is_module: whether it is a module.
        directory: that it runs in.
    """

    id: str
    program: str
    arguments: tuple[str, ...]
    is_module: bool
    directory: Path

    @classmethod
    def of(cls, program: str, arguments: Sequence[str], *, is_module: bool = False, name: str | None = None) -> Launch:
        """A program of this process's working directory.

        Raises:
            ConfigError: there is no such program, or there is a run of that name.
        """
        _check(program, is_module)
        stem = program.rpartition(".")[2] if is_module else program
        fresh = (each for each in iter(partial(new_id, stem), "") if not folder_of(each).exists())
        run_id = next(fresh) if name is None else name
        if folder_of(run_id).exists():
            raise ConfigError(
                f"There is a run {run_id!r} already: see `skyward ps --all`. Choose another name, or leave --name out."
            )
        return cls(run_id, program, tuple(arguments), is_module, Path.cwd())

    @property
    def folder(self) -> Path:
        """The run's directory."""
        return folder_of(self.id)

    @property
    def words(self) -> list[str]:
        """What follows `python`."""
        return [*(["-m"] if self.is_module else []), self.program, *self.arguments]

    def record(self, *, detached: bool = False) -> RunRecord:
        """Its record, begun now."""
        return RunRecord(
            id=self.id,
            program=f"-m {self.program}" if self.is_module else self.program,
            arguments=list(self.arguments),
            started=round(time.time(), 3),
            directory=str(self.directory),
            user=current_user(),
            detached=detached,
        )


def run_here(launch: Launch) -> int:
    """Run it in the foreground; its exit status.

    Raises:
        ConfigError: it cannot be started.
    """
    record = launch.record()
    return drive(launch.folder, record, [sys.executable, *launch.words], environment=os.environ, foreground=True).status


def _check(program: str, is_module: bool) -> None:
    if is_module:
        sys.path.insert(0, str(Path.cwd()))  # where python -m looks first
        try:
            found = find_spec(program.partition(".")[0])  # finding a part of a package would run the package
        except (ImportError, ValueError):
            found = None
        finally:
            sys.path.pop(0)
        if found is None:
            raise ConfigError(f"There is no module {program!r} here: it is neither in {Path.cwd()} nor installed.")
    elif not Path(program).exists():
        raise ConfigError(f"There is no program {program!r} in {Path.cwd()}.")
