"""`skyward doctor --gpu`: its programs, its table, and what it runs, with stand-ins for a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from skyward.cli import doctor
from skyward.cli import gpu_checks as checks
from skyward.cli import gpu_on_node as on_node
from skyward.cli.main import main
from tests.conftest import ROOT
from tests.nvml import library

TWO = (("0", "NVIDIA H100 80GB HBM3"), ("1", "NVIDIA H100 80GB HBM3"))
STATES = {
    "first": {"state": "seen", "text": "it took 3 s"},
    "second": {"state": "not possible", "text": "This Python has no jax."},
    "third": {"state": "failed", "text": "it took too long"},
}


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Stand-ins for the programs of the checks, on a machine with two GPUs."""
    program = tmp_path / "program.py"
    program.write_text(f"import json, sys\nprint('noise')\nprint(json.dumps({STATES!r}[sys.argv[1]]))\n")
    monkeypatch.setattr(doctor, "_PROGRAM", (sys.executable, str(program)))
    monkeypatch.setattr(doctor, "CHECKS", {name: (f"the {name} one", 60.0) for name in STATES})
    monkeypatch.setattr(doctor, "usable_gpus", lambda: TWO)


@pytest.mark.usefixtures("programs")
def test_the_outcomes_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each check; a failure is exit status 6."""
    assert main(["doctor", "--gpu"]) == 6

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "This machine shows 2 NVIDIA H100 80GB HBM3."
    assert [line.split(maxsplit=1)[0] for line in lines[2:]] == ["CHECK", *STATES]
    assert lines[4].split(maxsplit=1)[1] == "not possible  This Python has no jax."


@pytest.mark.usefixtures("programs")
def test_the_outcomes_are_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One object for each check; nothing failed is exit status 0."""
    monkeypatch.setattr(doctor, "CHECKS", {"second": ("the second one", 60.0)})

    assert main(["doctor", "--gpu", "--json"]) == 0
    expected = {"check": "second", "title": "the second one", **STATES["second"]}
    assert json.loads(capsys.readouterr().out) == expected


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence."""
    monkeypatch.setattr(doctor, "usable_gpus", lambda: None)

    assert main(["doctor", "--gpu"]) == 6
    assert "There is no GPU to check: NVIDIA's driver shows none" in capsys.readouterr().err


def test_a_program_that_ends_without_an_outcome_has_failed() -> None:
    """Its last words are the reason."""
    found = doctor.run_check((sys.executable, "-c", "print('one'); raise SystemExit('no driver')"), 60)

    assert found == doctor.Outcome("failed", "It ended with status 1 and these words: no driver")


def test_a_program_that_does_not_end_is_ended() -> None:
    """At its limit."""
    found = doctor.run_check((sys.executable, "-c", "import time; time.sleep(600)"), 0.5)

    assert found == doctor.Outcome("failed", "It did not end within 0.5 s.")


def test_what_becomes_of_a_check() -> None:
    """It is seen, not possible, or failed with its error and notes."""

    def lacks() -> str:
        raise checks.NotPossibleError("no engine")

    def fails() -> str:
        error = ValueError("3 is not 2")
        error.add_note("After: the limit.")
        raise error

    assert checks.outcome_of(lambda: "3 s") == {"state": "seen", "text": "3 s"}
    assert checks.outcome_of(lacks) == {"state": "not possible", "text": "no engine"}
    assert checks.outcome_of(fails) == {"state": "failed", "text": "ValueError: 3 is not 2 After: the limit."}


def test_each_check_is_there() -> None:
    """The programs know the names of the list."""
    assert all(callable(getattr(checks, name)) for name in doctor.CHECKS)


@pytest.mark.parametrize(
    ("kind", "word"), [("NVIDIA H100 ", "T4 is refused"), ("Tesla T4 ", "A100 is refused"), ("New ", "passes for any")]
)
def test_what_the_driver_shows_reaches_a_pool(kind: str, word: str, tmp_path: Path) -> None:
    """With a stand-in for NVML: names, a node's statistics, and an accelerator that is not there."""
    library(tmp_path, kind)
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "1,0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "skyward.cli.gpu_checks", "found"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, timeout=200)

    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["state"] == "seen", outcome
    assert outcome["text"].startswith(f"2 x {kind}2, ")
    assert outcome["text"].endswith(word)


def test_what_runs_on_nodes_runs_on_a_cpu() -> None:
    """Each function of the checks that takes a device."""
    pytest.importorskip("torch")

    assert on_node.steps("cpu", 1) > 0
    assert on_node.in_half_precision.fn("cpu") == "torch.bfloat16"
    assert on_node.computes.fn("cpu") == 2000
    assert on_node.doubled.fn({"a": on_node.made.fn(3, "cpu")})["a"].sum() == 6


def test_a_call_has_to_end_as_expected() -> None:
    """Another error, or none, fails the check."""

    def ends(_own: object) -> None:
        raise TimeoutError("late")

    checks._ended(ends, checks._says("late"), None)
    with pytest.raises(TimeoutError):
        checks._ended(ends, checks._is_of(KeyError), None)
    with pytest.raises(AssertionError, match="the call returned"):
        checks._ended(lambda _own: None, checks._says("late"), None)
