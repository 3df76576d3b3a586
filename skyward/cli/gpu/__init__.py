"""`skyward doctor --gpu`: runs a list of checks on this machine's GPU, each in a program of its own with a limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import NamedTuple

import click

from skyward.cli.output import show_table
from skyward.errors import ProviderError
from skyward.nodes.gpus import shown, usable_gpus

SEEN, FAILED, IMPOSSIBLE = "seen", "failed", "not possible"
_PROGRAM = (sys.executable, "-m", "skyward.cli.gpu.checks")
# check -> what it looks at, and how many seconds it may take
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


class Outcome(NamedTuple):
    """What became of a check: "seen", "failed" or "not possible", and the figures or the reason."""

    state: str
    text: str


def check_gpu(*, as_json: bool) -> bool:
    """Run all checks and print their outcomes, each as it comes where they are JSON; whether none failed.

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
    """Run the program of a check, whose last line says what became of it, and end it at its limit."""
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
                os.killpg(program.pid, signal.SIGTERM)  # its pools close
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
