"""`skyward doctor`: runs the host checks of pools without a pool, on this machine and on machines reached by SSH.

With `--json` there is one object per host and line: `host`, `engine` (version), `platform`, `cpus`, `memory_gb`,
`disk_gb` (free), `gpus` (names), `driver`, `cuda`, `ahead_s`, `builder`, `ssh` (the SSH client), each
null or empty if unknown, and `findings`, each with `what` and `text`. For a Slurm cluster it has `host`, `slurm`
(version), `platform`, `partitions`, `image_modes` (what is missing for each; "" if nothing is) and `findings`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import click

from skyward.cli.output import show_table
from skyward.cli.places import at_option
from skyward.errors import ConfigError, SkywardError
from skyward.providers import SSH, Slurm
from skyward.providers.at import provider_at
from skyward.ssh.connection import client_version
from skyward.ssh.preflight import HEADINGS, Finding, HostReport, as_row, local_host_report, table

UNHEALTHY = 6  # exit status if something is wrong with a host: that of provider errors
_HERE = "this machine"


@click.command()
@at_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object per host.")
def command(at: tuple[str, ...], as_json: bool) -> int:
    """Show whether hosts can run nodes, and why others cannot.

    Looks at the Docker engine here and at the machines named with --at, all at once, and changes nothing on any. Of
    Slurm clusters it says how images can run there (image_mode=), and makes the folder that pools use. Exit status 6
    if something is wrong.
    """
    found = [provider_at(each) for each in at]
    hosts = [each for each in found if isinstance(each, SSH)]
    logins = [each for each in found if isinstance(each, Slurm)]
    if len(hosts) + len(logins) != len(at):
        raise ConfigError(f"skyward doctor looks at machines and clusters, ssh://host or slurm://login; found {at}.")
    with ThreadPoolExecutor(1 + len(hosts)) as threads:
        here = threads.submit(local_host_report, _HERE)
        there = [report for answer in threads.map(SSH.host_reports, hosts) for report in answer]
    client = client_version() if hosts else None
    reports = [here.result(), *(replace(report, ssh=client) for report in there)]
    clusters = [_cluster_report(each) for each in logins]
    if as_json:
        for document in (*(report.document for report in reports), *clusters):
            click.echo(json.dumps(document))
    else:
        _show(reports)
        for each in clusters:
            _show_cluster(each)
    is_well = not any(report.findings for report in reports) and not any(each["findings"] for each in clusters)
    return 0 if is_well else UNHEALTHY


def _cluster_report(provider: Slurm) -> Mapping[str, Any]:
    """Return the report on a Slurm cluster as a JSON-compatible mapping."""
    from skyward.providers.slurm.login import ask

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
        "partitions": [name for name in facts.partitions if name],
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
            click.echo(f"\n{report.host} builds images with {report.builder}")
    if findings := [finding for report in reports for finding in report.findings]:
        click.echo(f"\n{table(findings)}")
    if clients := {report.ssh for report in reports if report.ssh}:
        click.echo(f"\nMachines are reached by {', '.join(clients)}.")
