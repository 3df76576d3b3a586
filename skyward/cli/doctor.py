"""`skyward doctor`: runs the host checks of pools without a pool, on this machine and on machines reached by SSH.

With `--gpu` it runs a list of checks on this machine's GPU instead, each in a separate program with a time limit.

With `--json` there is one object per host and line: `host`, `engine` (version), `platform`, `cpus`, `memory_gb`,
`disk_gb` (free), `gpus` (names), `driver`, `cuda`, `ahead_s`, `builder`, `can`, `cannot`, `ssh` (the SSH client), each
null or empty if unknown, and `findings`, each with `what` and `text`. For a Slurm cluster it has `host`, `slurm`
(version), `platform`, `partitions`, `image_modes` (what is missing for each; "" if nothing is) and `findings`. With
`--gpu` there is one per check: `check`, `title`, `state` ("seen", "failed", "not possible") and `text`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click

from skyward.cli.output import show_table
from skyward.cli.places import slurm_option, ssh_option
from skyward.cli.runs import key_options
from skyward.errors import ProviderError, SkywardError
from skyward.nodes.local_host import shown, usable_gpus
from skyward.providers import SSH
from skyward.ssh.connection import client_version
from skyward.ssh.preflight import HEADINGS, Finding, HostReport, as_row, local_host_report, table

UNHEALTHY = 6  # exit status if something is wrong with a host: that of provider errors
_HERE = "this machine"
SEEN, FAILED, IMPOSSIBLE = "seen", "failed", "not possible"
_PROGRAM = (sys.executable, "-m", "skyward.cli.gpu_checks")
# check -> its subject, and its time limit in seconds
CHECKS = {
    "found": ("what the driver shows is what pools believe", 120.0),
    "places": ("one GPU for a node, and for two of its ranks", 240.0),
    "containers": ("a GPU in a container", 600.0),
    "training": ("DDP, AMP, torch.compile; steps beside torchrun", 300.0),
    "tensors": ("CUDA tensors as arguments and results", 240.0),
    "jax": ("JAX on the GPU, and in two ranks that share it", 300.0),
    "ends": ("calls that end while a kernel runs; memory afterwards", 400.0),
    "absent": ("a rank that does not come to a collective", 240.0),
    "figures": ("times of calls and of reading the GPU", 240.0),
}


@click.command()
@ssh_option
@slurm_option
@key_options
@click.option("--gpu", is_flag=True, help="Instead try what pools do with this machine's GPU, for some minutes.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per host, or check.")
def command(
    hosts: tuple[str, ...],
    logins: tuple[str, ...],
    key: Path | None,
    known_hosts: Path | None,
    gpu: bool,
    as_json: bool,
) -> int:
    """Show whether hosts can run nodes, and why others cannot.

    Looks at the Docker engine here and at the machines named with --ssh, all at once, and changes nothing on any. Of
    Slurm clusters it says how images can run there (image_mode=), and makes the folder that pools use. Exit status 6
    if something is wrong.

    With --gpu pools are opened here and calls are made on the GPU, with this Python's own torch and jax; each check is
    seen, failed or not possible on this machine.
    """
    if gpu:
        return 0 if check_gpu(as_json=as_json) else UNHEALTHY
    remote = SSH(*hosts, key=key, known_hosts=known_hosts) if hosts else None
    with ThreadPoolExecutor(1) as threads:
        here = threads.submit(local_host_report, _HERE)
        there = remote.host_reports() if remote else ()
    client = client_version() if remote else None
    reports = [here.result(), *(replace(report, ssh=client) for report in there)]
    clusters = [_cluster_report(login, key, known_hosts) for login in logins]
    if as_json:
        for document in (*(report.document for report in reports), *clusters):
            click.echo(json.dumps(document))
    else:
        _show(reports)
        for each in clusters:
            _show_cluster(each)
    is_well = not any(report.findings for report in reports) and not any(each["findings"] for each in clusters)
    return 0 if is_well else UNHEALTHY


def _cluster_report(login: str, key: Path | None, known_hosts: Path | None) -> Mapping[str, Any]:
    """Return the report on a Slurm cluster as a JSON-compatible mapping."""
    from skyward.providers import Slurm
    from skyward.providers.slurm.login import ask

    provider = Slurm() if login == "-" else Slurm(login, key=key, known_hosts=known_hosts)
    host = provider.address.name
    try:
        with provider.connected() as connection:
            facts = ask(connection, provider.folder, f"{sys.version_info.major}.{sys.version_info.minor}")
    except SkywardError as error:
        empty: dict[str, Any] = {"slurm": None, "platform": None, "partitions": [], "image_modes": {}}
        return {"host": host, **empty, "findings": [{"what": "slurm", "text": str(error)}]}
    findings = []
    if all(facts.modes.values()):
        findings = [{"what": "image_mode", "text": f"No image can run there: {'; '.join(facts.modes.values())}."}]
    return {
        "host": host,
        "slurm": facts.version,
        "platform": facts.platform,
        "partitions": [each.name for each in facts.partitions],
        "image_modes": dict(facts.modes),
        "findings": findings,
    }


def _show_cluster(found: Mapping[str, Any]) -> None:
    if found["slurm"]:
        modes = "; ".join(f"{mode}: {missing or 'yes'}" for mode, missing in found["image_modes"].items())
        click.echo(f"\nSlurm {found['slurm']} of {found['host']}, partitions {', '.join(found['partitions'])}")
        click.echo(f"  image_mode {modes}")
    if found["findings"]:
        click.echo(f"\n{table([Finding(found['host'], **each) for each in found['findings']])}")


def _show(reports: list[HostReport]) -> None:
    show_table([HEADINGS, *map(as_row, reports)])
    for report in reports:
        if report.builder:
            lacking = f"; not {', '.join(report.cannot)}" if report.cannot else ""
            click.echo(f"\n{report.host} builds with {report.builder}: {', '.join(report.can)}{lacking}")
    if findings := [finding for report in reports for finding in report.findings]:
        click.echo(f"\n{table(findings)}")
    if clients := {report.ssh for report in reports if report.ssh}:
        click.echo(f"\nMachines are reached by {', '.join(clients)}.")


class Outcome(NamedTuple):
    """Outcome of a check: "seen", "failed" or "not possible", and the figures or the reason."""

    state: str
    text: str


def check_gpu(*, as_json: bool) -> bool:
    """Run all checks and print their outcomes, as JSON each as soon as it is known; return whether none failed.

    Raises:
        ProviderError: there is no GPU.
    """
    usable = usable_gpus()
    if not usable:
        raise ProviderError("There is no GPU to check: NVIDIA's driver shows none on this machine to this user.")
    outcomes: dict[str, Outcome] = {}
    for name, (title, limit_s) in CHECKS.items():
        click.echo(f"{name}: {title}", err=True)
        outcomes[name] = run_check((*_PROGRAM, name), limit_s)
        if as_json:
            click.echo(json.dumps({"check": name, "title": title, **outcomes[name]._asdict()}))
    if not as_json:
        click.echo(f"This machine shows {shown([name for _, name in usable])}.\n")
        show_table([("CHECK", "OUTCOME", "FIGURES OR REASON"), *((name, *each) for name, each in outcomes.items())])
    return not any(outcome.state == FAILED for outcome in outcomes.values())


def run_check(command: tuple[str, ...], limit_s: float) -> Outcome:
    """Run the program of a check, whose last line is its outcome, and end it at its time limit."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    ) as program:
        try:
            text, _ = program.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGTERM)  # lets it close its pools
            try:
                program.communicate(timeout=15)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(program.pid, signal.SIGKILL)
            return Outcome(FAILED, f"It did not end within {limit_s:g} s.")
    last = text.rstrip().rpartition("\n")[2]
    try:
        return Outcome(**json.loads(last))
    except (ValueError, TypeError):
        return Outcome(FAILED, f"It ended with status {program.returncode} and these words: {last[:300] or 'none'}")
