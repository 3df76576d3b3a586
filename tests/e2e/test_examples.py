"""The example that `make demo` runs, and the one in the README, as a user runs them: each in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.documents import README, example_and_output

ROOT = Path(__file__).parents[2]
FIRST_RESULT_S = 6.0  # twice what is promised on a quiet machine of two cores


class Ran(NamedTuple):
    """What one run of a program printed."""

    out: str
    err: str

    @property
    def table(self) -> dict[str, tuple[int, float]]:
        """Samples and accuracy by model."""
        rows = re.findall(r"^(node \d|combined) +(\d+) +(?:[\d.]+ +)?(\d\.\d+)$", self.out, re.MULTILINE)
        return {name: (int(samples), float(accuracy)) for name, samples, accuracy in rows}

    @property
    def stages_s(self) -> dict[str, float]:
        """Seconds by stage, as the last line says them."""
        *_, last = self.out.splitlines()
        found = re.findall(r"([a-z][a-z ]*?) (\d+\.\d+) s", last.replace("; from pool", ", pool"))
        return {name: float(seconds) for name, seconds in found}


def run(*arguments: str, limit_s: float = 240) -> Ran:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Ran(done.stdout, done.stderr)


def check_digits(ran: Ran) -> None:
    """Both nodes trained on a part of their own, and the combined model is good on digits nobody trained on."""
    table = ran.table
    assert set(table) == {"node 0", "node 1", "combined"}
    assert table["node 0"][0] + table["node 1"][0] == table["combined"][0] == 1347
    assert all(0.9 < accuracy < 1 for _, accuracy in table.values())
    assert table["combined"][1] > 0.93
    for node in (0, 1):
        assert re.search(rf"^\[{node}\] trained on {table[f'node {node}'][0]} of the digits", ran.out, re.MULTILINE)


@pytest.mark.alone
def test_digits_on_containers_twice(record_property: Callable[[str, object], None]) -> None:
    """The second run builds nothing, prints all stages, and has its first result within seconds of the pool's start."""
    check_digits(run("examples/digits.py"))

    first_result_s = float("inf")
    for _ in range(4):
        again = run("examples/digits.py")
        check_digits(again)
        assert "building" not in again.err
        assert list(again.stages_s) == ["image", "start", "run", "stop", "pool start to first result"]
        took_s = again.stages_s["pool start to first result"]
        parts_s = sum(again.stages_s[name] for name in ("image", "start", "run"))
        assert parts_s <= took_s + 0.02  # each figure is rounded
        first_result_s = min(first_result_s, took_s)
        if first_result_s < FIRST_RESULT_S:  # a slow run has met with what else the machine does
            break
    record_property("first_result_s", first_result_s)
    print(f"from pool start to first result: {first_result_s:.2f} s")
    assert first_result_s < FIRST_RESULT_S


def test_the_readme_example_on_containers(tmp_path: Path) -> None:
    """What the README shows is what it prints, lines of different nodes in any order."""
    code, output = example_and_output(README)
    program = tmp_path / "mean.py"
    program.write_text(code)

    ran = run(str(program))

    assert sorted(ran.out.splitlines()) == sorted(output.splitlines())
    assert ran.out.splitlines()[-1] == output.splitlines()[-1]
