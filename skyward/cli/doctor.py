"""`skyward doctor`: the checks of hosts that pools make, without a pool: of this machine and machines reached by SSH.

With `--json` there is one object per host and line: `host`, `engine` (version), `platform`, `cpus`, `memory_gb`,
`disk_gb` (free), `gpus` (names), `driver`, `cuda`, `ahead_s`, `builder`, `can`, `cannot`, `ssh` (the SSH client), each
null or empty where it is not known, and `findings`, each with `what` and `text`.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import click

from skyward.cli.output import show_table
from skyward.providers import SSH
from skyward.ssh.connection import client_version
from skyward.ssh.host_report import HEADINGS, HostReport, as_row, local_host_report
from skyward.ssh.preflight import table

UNHEALTHY = 6  # exit status where something is wrong with a host: that of provider errors
_HERE = "this machine"
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--ssh", "hosts", multiple=True, metavar="HOST", help="Also this machine, as sky.SSH() names it.")
@click.option("--key", type=_FILE, help="Private key for --ssh.")
@click.option("--known-hosts", type=_FILE, help="The only host keys to trust for --ssh.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per host.")
def command(hosts: tuple[str, ...], key: Path | None, known_hosts: Path | None, as_json: bool) -> int:
    """Show whether hosts can run nodes, and what is wrong with those that cannot.

    Looks at the Docker engine here and at the machines named with --ssh, all at once, and changes nothing on any. Exit
    status 6 if something is wrong.
    """
    remote = SSH(*hosts, key=key, known_hosts=known_hosts) if hosts else None
    with ThreadPoolExecutor(1) as threads:
        here = threads.submit(local_host_report, _HERE)
        there = remote.host_reports() if remote else ()
    client = client_version() if remote else None
    reports = [here.result(), *(replace(report, ssh=client) for report in there)]
    if as_json:
        for report in reports:
            click.echo(json.dumps(report.document))
    else:
        _show(reports)
    return UNHEALTHY if any(report.findings for report in reports) else 0


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
