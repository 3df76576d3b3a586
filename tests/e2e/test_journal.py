"""`pool.map(..., journal=)`: a program that runs again calls only what is missing, and uses no other's results."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import skyward as sky
from skyward.errors import ConfigError, JournalError, SerializationError
from skyward.records.results import ResultJournal
from tests.e2e.journal_functions import double, fragile, numbered, odd, trial, where
from tests.printed import Printed

Program = Callable[..., subprocess.Popen[str]]

# a sweep over 60 items of 0.05 s; the second argument of `work` is what a newer version of the program changes
SWEEP = """
import os, sys, time
import skyward as sky

FACTOR = 2

def work(item):
    time.sleep(0.05)
    with open("{folder}/calls", "a") as file:
        file.write(f"{{item}}\\n")
    return item * FACTOR

if __name__ == "__main__":
    with sky.ComputePool(sky.Local(), nodes=2, ttl=2) as pool:
        print("open", flush=True)
        results = pool.map(work, range(60), journal="{folder}/sweep.journal")
    print(results == [item * FACTOR for item in range(60)], flush=True)
"""


@pytest.fixture(scope="module")
def local() -> Iterator[sky.ComputePool]:
    with sky.ComputePool(sky.Local(), nodes=2) as pool:
        yield pool


def _calls(folder: Path) -> list[str]:
    path = folder / "calls"
    return path.read_text().split() if path.exists() else []


def _run(script: Program, text: str) -> tuple[str, str]:
    process = script(text)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out, err


def test_a_sweep_that_is_killed_goes_on_where_it_was(tmp_path: Path, script: Program) -> None:
    """What the journal holds is not called again after kill -9 of the client; a changed program calls everything."""
    text, journal = SWEEP.format(folder=tmp_path), tmp_path / "sweep.journal"
    process = script(text)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    while len(_calls(tmp_path)) < 20:
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    with ResultJournal(journal) as found:
        kept = len(found)
    assert 10 <= kept < 60
    (tmp_path / "calls").unlink()

    out, err = _run(script, text)

    assert out == "open\nTrue\n"
    assert f"journal {journal}: {kept} of 60 results are there" in err
    called = _calls(tmp_path)
    assert 60 - kept <= len(called) <= 60 - kept + 4  # what the lost client's nodes still ran may be noted late
    (tmp_path / "calls").unlink()

    out, err = _run(script, text)

    assert out == "open\nTrue\n"
    assert _calls(tmp_path) == []

    out, err = _run(script, text.replace("FACTOR = 2", "FACTOR = 3"))

    assert out == "open\nTrue\n"
    assert f"journal {journal}: work() has changed: 60 results are of another version of it and not used" in err
    assert len(_calls(tmp_path)) == 60


def test_items_that_are_alike_have_a_result_each(tmp_path: Path, local: sky.ComputePool) -> None:
    """A journal changes nothing of what map returns: three equal items are three calls, kept as three."""
    items = [(str(tmp_path), 1)] * 3
    assert local.map(double, items, journal=tmp_path / "j") == [2, 2, 2]
    assert local.map(double, items[:2], journal=tmp_path / "j") == [2, 2]
    assert _calls(tmp_path) == ["1"] * 3

    assert local.map(double, items * 2, journal=tmp_path / "j") == [2] * 6
    assert _calls(tmp_path) == ["1"] * 6


def test_a_failure_is_raised_and_not_kept(tmp_path: Path, local: sky.ComputePool) -> None:
    """What came before it is kept."""
    (tmp_path / "broken").touch()
    items = [(str(tmp_path), item) for item in range(10)]
    with pytest.raises(ValueError, match="five is broken"):
        local.map(fragile, items, journal=tmp_path / "j")
    where(None) @ local  # each node has ended the call that ran beside the failed one, and its line is written
    with ResultJournal(tmp_path / "j") as journal:
        kept = len(journal)
    assert 1 <= kept <= 9
    (tmp_path / "broken").unlink()
    (tmp_path / "calls").unlink()

    assert local.map(fragile, items, journal=tmp_path / "j") == list(range(10))

    assert len(_calls(tmp_path)) == 10 - kept


def test_results_from_before_a_fix_are_used_on_request(
    tmp_path: Path, local: sky.ComputePool, printed: Printed
) -> None:
    """The message says how; then only the item that failed is called again, once."""
    items = [(str(tmp_path), item) for item in range(9)]
    map_ = partial(local.map, journal=tmp_path / "j")
    assert isinstance(map_(trial(fixed=False), items, return_exceptions=True)[7], ZeroDivisionError)
    (tmp_path / "calls").unlink()
    printed.read()

    for _ in range(2):
        assert map_(trial(fixed=True), items, any_version=True) == list(range(9))
    assert _calls(tmp_path) == ["7"]
    said = printed.read().err
    assert f"journal {tmp_path / 'j'}: 8 of 9 results are there, 8 of them of another version or image\n" in said
    assert "9 of 9 results are there, 8 of them" in said

    assert map_(trial(fixed=True), items) == list(range(9))
    assert len(_calls(tmp_path)) == 9
    assert (
        "1 of 9 results are there; trial() has changed: 8 results are of another version of it and not used; "
        "map(..., any_version=True) uses such results"
    ) in printed.read().err
    with pytest.raises(ConfigError, match="any_version=True needs a journal"):
        local.map(double, items, any_version=True)


def test_what_cannot_be_kept_is_refused(tmp_path: Path, local: sky.ComputePool) -> None:
    with pytest.raises(ConfigError, match=r"numbered\(\) is a generator function"):
        local.map(numbered, [1], journal=tmp_path / "j")
    assert not (tmp_path / "j").exists()
    with pytest.raises(ConfigError, match=r"odd\(\) returned an iterator"):
        local.map(odd, [(str(tmp_path), 1)], journal=tmp_path / "j")
    with pytest.raises(SerializationError, match=r"The result cannot be pickled"):
        local.map(odd, [(str(tmp_path), 2)], journal=tmp_path / "j")
    with pytest.raises(JournalError, match="No such file or directory"):
        local.map(double, [(str(tmp_path), 1)], journal=tmp_path / "no" / "j")
    with ResultJournal(tmp_path / "j") as journal:
        assert len(journal) == 0


def test_results_of_another_image_or_function_are_not_used(tmp_path: Path, local: sky.ComputePool) -> None:
    """An interpreter of this machine is another place than an image."""
    journal = tmp_path / "j"
    first = local.map(where, [None], journal=journal)
    program = (
        "import skyward as sky\nfrom tests.e2e.journal_functions import where\n"
        f"with sky.ComputePool() as pool:\n    print(pool.map(where, [None], journal={str(journal)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert f"journal {journal}: 1 result is of another image and not used" in done.stderr
    assert re.search(r"\[\d+\]", done.stdout)
    assert local.map(where, [None], journal=journal) == first
