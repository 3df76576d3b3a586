"""`skyward doctor`: whether this machine, and machines reached by SSH, can run nodes; the checks of pools, without one.

With `--json` there is one object per host and line: `host`, `engine` (version), `platform`, `cpus`, `memory_gb`,
`disk_gb` (free), `gpus` (names), `driver`, `cuda`, `ahead_s`, `builder`,
`can`, `cannot`, each null or empty where it is not known, and `findings`, each with `what` and `text`.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from skyward.cli.table import show_table
from skyward.providers import SSH
from skyward.providers.checks import table
from skyward.providers.condition import HEADINGS, Condition, as_row, condition_here

ILL = 6  # exit status where something is wrong with a host: the one of providers
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
        here = threads.submit(condition_here, _HERE)
        there = remote.conditions() if remote else ()
    conditions = [here.result(), *there]
    if as_json:
        for condition in conditions:
            click.echo(json.dumps(condition.document))
    else:
        _show(conditions)
    return ILL if any(condition.findings for condition in conditions) else 0


def _show(conditions: list[Condition]) -> None:
    show_table([HEADINGS, *map(as_row, conditions)])
    for condition in conditions:
        if condition.builder:
            lacking = f"; not {', '.join(condition.cannot)}" if condition.cannot else ""
            click.echo(f"\n{condition.host} builds with {condition.builder}: {', '.join(condition.can)}{lacking}")
    if findings := [finding for condition in conditions for finding in condition.findings]:
        click.echo(f"\n{table(findings)}")
