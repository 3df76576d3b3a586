"""Detached runs: starts the driver of a program, as a process or at the place that the program's pools determine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree

from skyward.builder.events import Report
from skyward.builder.sources.imports import find_module
from skyward.builder.sources.script import DeclaredPool, declared_pools, pools_in_script
from skyward.engine import find_engine
from skyward.errors import ConfigError, ProviderError
from skyward.records.run import FOLDER_VARIABLE, RunRecord
from skyward.runs.container import Detached, as_container, pack
from skyward.runs.driver import STARTED, Launch, write_launch

_NOT_HANDED = (FOLDER_VARIABLE, "SKYWARD_DOCKER_CLI")  # specific to this process and this machine
_OF_VOLUMES = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"),
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
)
_RENTING = frozenset({"AWS", "GCP"})


def detach(launch: Launch, variables: Sequence[str], keep_s: float | None, report: Report) -> RunRecord:
    """Start the driver of a program in the background; return once it has confirmed that the program runs.

    Args:
        launch: the program.
        variables: names of environment variables that the program needs where it runs, besides those of `secrets=`.
        keep_s: how long rented machines stay after the run's end for its results; None for an hour.
        report: receives progress.

    Raises:
        ConfigError: there is no such variable, nothing is rented that could be kept, or it is not known in advance
            where the program's pools run.
        ProviderError: the driver ended before the program ran.
    """
    if missing := [name for name in variables if name not in os.environ]:
        raise ConfigError(f"--env {missing[0]}: there is no such variable in the environment of this command.")
    source = _source(launch)
    pools = declared_pools(source)
    names = {use.name for pool in pools for use in pool.providers}
    rents = bool(names & _RENTING)
    if keep_s is not None and not rents:
        raise ConfigError("--keep is for rented machines, and the pools of this program rent none.")
    if names <= {"Local"}:
        return _as_process(launch)
    elsewhere = [use for pool in pools for use in pool.providers if use.name != "Local"]
    for other in elsewhere:
        if other.name not in ("Docker", "SSH", *_RENTING):
            raise ConfigError(
                f"{other.where}: a run with a pool of sky.{other.name} cannot be detached; with pools of sky.Local, "
                "sky.Docker, sky.SSH, sky.AWS or sky.GCP it can. Run it without --detach, in a terminal "
                "that stays (tmux)."
            )
        if other.name != elsewhere[0].name:
            raise ConfigError(
                f"{other.where}: the pools of a detached run are on this machine or on others, and one is at "
                f"{elsewhere[0].where}. Run them as two programs, or without --detach."
            )
    handed = _variables(variables, pools)
    if rents and (local := next((use for pool in pools for use in pool.providers if use.name == "Local"), None)):
        raise ConfigError(f"{local.where}: a detached run on rented machines has no pool of sky.Local beside them.")
    images = pools_in_script(source)
    files = pack(launch, source, images)
    program = Detached(launch=launch, images=images, files=files, variables=handed, report=report)
    first = elsewhere[0]
    if first.name == "Docker":
        address = find_engine(first.kwargs.get("base_url") or next(iter(first.args), None))
        return as_container(program, address)
    from skyward.runs import on_machines

    if rents:
        return on_machines.on_rented_machines(program, pools, keep_s)
    return on_machines.on_first_host(program, on_machines.one_provider(elsewhere))


def _variables(wanted: Sequence[str], pools: Sequence[DeclaredPool]) -> dict[str, str]:
    """Return the variables that the program needs elsewhere: those asked for, its pools' secrets, skyward settings."""
    secrets = [name for pool in pools for name in pool.secrets]
    if missing := [name for name in secrets if name not in os.environ]:
        raise ConfigError(f"The program's pools give {missing[0]} to their workers (secrets=), which is not set here.")
    settings = [name for name in os.environ if name.startswith("SKYWARD_") and name not in _NOT_HANDED]
    if any(pool.has_volumes for pool in pools):
        settings += [name for name in os.environ if name in _OF_VOLUMES]
    return {name: os.environ[name] for name in (*settings, *secrets, *wanted)}


def _source(launch: Launch) -> Path:
    """Return the file of the program."""
    if not launch.is_module:
        return launch.directory / launch.program
    path = (str(launch.directory), *sys.path)
    found = find_module(f"{launch.program}.__main__", path) or find_module(launch.program, path)
    if found is None or found.file is None or found.file.suffix != ".py":
        raise ConfigError(f"The module {launch.program} has no source file, so its pools cannot be found.")
    return found.file


def _as_process(launch: Launch) -> RunRecord:
    """Start the driver as a process in a new session, out of reach of this terminal and process group."""
    record = launch.record(detached=True)
    folder = launch.folder
    write_launch(folder, record, launch.words)
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
    raise ProviderError(f"The driver of {launch.id} ended with status {status} before the program ran. {told}")
