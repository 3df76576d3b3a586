"""Detached runs: starts the driver of a program, as a process or at the place that the program's pools determine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from shutil import rmtree

from skyward._pool.description import DeclaredPool
from skyward.builder.events import Report
from skyward.errors import ConfigError, ProviderError
from skyward.nodes.run_directory import private_directory
from skyward.providers.at import ssh_at
from skyward.providers.ssh import SSH
from skyward.records.run import FOLDER_VARIABLE, MODULE, RunRecord, folder_of
from skyward.runs.describe import first_pool
from skyward.runs.driver import PROGRAM_FOLDER, STARTED, write_launch

_NOT_HANDED = (FOLDER_VARIABLE, "SKYWARD_DOCKER_CLI")  # specific to this process and this machine
_OF_VOLUMES = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"),
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
)
_RENTING = frozenset({"AWS", "GCP"})


def detach(
    run: RunRecord, variables: Sequence[str], keep_s: float | None, report: Report, place: str | None = None
) -> RunRecord:
    """Start the driver of a program in the background; return once it has confirmed that the program runs.

    Args:
        run: of the program. It is run here until it opens its first pool, whose provider and image decide.
        variables: names of environment variables that the program needs where it runs, besides those of `secrets=`.
        keep_s: how long rented machines stay after the run's end for its results; None for an hour.
        report: receives progress.
        place: "local" for a process here, which is started without running the program first; or the SSH address of
            the driver's host. None for that of the first pool.

    Raises:
        ConfigError: there is no such variable, nothing is rented that could be kept, or the program cannot be detached.
        ProviderError: the driver ended before the program ran.
    """
    if missing := [name for name in variables if name not in os.environ]:
        raise ConfigError(f"--env {missing[0]}: there is no such variable in the environment of this command.")
    if place == "local":
        return _as_process(run)
    pool = first_pool(run.program.removeprefix(MODULE), run.arguments, is_module=run.is_module)
    providers = pool.providers if place is None else (ssh_at(place),)
    kinds = [each if isinstance(each, str) else type(each).__name__ for each in providers]
    rents = kinds[0] in _RENTING
    if keep_s is not None and not rents:
        raise ConfigError("--keep is for rented machines, and the first pool of this program rents none.")
    if {*kinds} <= {"Local", "Docker"}:
        return _as_process(run)
    if len(providers) > 1 or kinds[0] not in ("SSH", *_RENTING):
        raise ConfigError(
            f"{pool.where}: a run whose first pool is on {' or '.join(f'sky.{kind}' for kind in kinds)} cannot be "
            "detached by itself. Say where to run it, with --on local or --on user@host."
        )
    (provider,) = providers
    assert not isinstance(provider, str)
    from skyward.runs import container, on_machines

    with private_directory() as base:
        folder = base / "run"
        folder.mkdir(mode=0o700)
        program = on_machines.Detached(
            run=run,
            pool=pool,
            folder=folder,
            words=container.pack(run, pool, folder / PROGRAM_FOLDER),
            variables=_variables(variables, pool),
            report=report,
        )
        if rents:
            return on_machines.on_rented_machines(program, provider, keep_s)
        assert isinstance(provider, SSH)
        return on_machines.on_first_host(program, provider)


def _variables(wanted: Sequence[str], pool: DeclaredPool) -> dict[str, str]:
    """Return the variables that the program needs elsewhere: those asked for, its pool's secrets, skyward settings."""
    settings = [name for name in os.environ if name.startswith("SKYWARD_") and name not in _NOT_HANDED]
    if pool.has_volumes:
        settings += [name for name in os.environ if name in _OF_VOLUMES]
    return {name: os.environ[name] for name in (*settings, *pool.secrets, *wanted)}


def _as_process(run: RunRecord) -> RunRecord:
    """Start the driver as a process in a new session, out of reach of this terminal and process group."""
    record, folder = replace(run, detached=True), folder_of(run.id)
    write_launch(folder, record, run.words, {})
    said = folder / "driver.log"
    command = [sys.executable, "-P", "-m", "skyward.runs.driver", str(folder)]  # -P: no modules of this directory
    with open(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
    assert process.stdout
    try:
        with process.stdout as confirmation:
            if confirmation.readline().strip() == STARTED.encode():
                return record
    except BaseException:  # Ctrl-C: the run would go on unknown to the user
        process.terminate()
        raise
    status, told = process.wait(), said.read_text(errors="replace").strip()
    rmtree(folder)
    raise ProviderError(f"The driver of {run.id} ended with status {status} before the program ran. {told}")
