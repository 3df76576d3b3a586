"""What nodes print is kept: `skyward logs` shows it after any end, bounded and without secrets. Logging of nodes."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from skyward.records import pools
from skyward.records.run import runs_folder
from tests import journals
from tests.e2e import logs_functions as functions
from tests.printed import Printed
from tests.waiting import wait_until

NewPool = Callable[..., sky.ComputePool]


def _logs(*words: str) -> list[dict[str, Any]]:
    """The entries that `skyward logs --json` shows."""
    command = [sys.executable, "-m", "skyward", "logs", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[logging.LogRecord]]:
    """What a handler of the logger "skyward.output" gets."""
    taken: list[logging.LogRecord] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", taken.append)
    logger, before = logging.getLogger("skyward.output"), logging.getLogger("skyward.output").propagate
    logger.addHandler(handler)
    logger.propagate = False
    yield taken
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    logger.propagate = before


def test_no_secret_is_shown_or_kept(new_pool: NewPool, printed: Printed) -> None:
    """Printed whole and in two pieces, below Python, logged, in an exception and its traceback."""
    secret = "correct-horse-77"
    with new_pool(secrets={"HUSH": secret, "SHORT": "the"}) as pool:
        with pytest.raises(ValueError, match=r"^\*\*\* is wrong\b") as caught:
            sky.compute(functions.tell_secret)() >> pool
        printed.until(out="[0] ***\n[0] ***\n", err="it is ***")
    assert secret not in str(caught.value.__cause__) and "ValueError: *** is wrong" in str(caught.value.__cause__)
    seen = printed.read()
    assert secret not in seen.out + seen.err and "the secret ***" in seen.out  # too short to be masked
    kept = b"".join(path.read_bytes() for path in runs_folder().rglob("*.jsonl"))
    assert secret.encode() not in kept and b"it is ***" in kept


def test_records_of_logging_reach_handlers(new_pool: NewPool, handled: list[logging.LogRecord]) -> None:
    """From the level on that the client's program has set, with node, rank and call."""
    logging.getLogger("skyward.output").setLevel(logging.INFO)
    with new_pool(nodes=2) as pool:
        sky.compute(functions.log)(4) @ pool
        wait_until(lambda: len(handled) >= 6)
    found: list[Any] = sorted(handled, key=lambda record: (record.node, -record.levelno))
    levels = [logging.ERROR, logging.WARNING, logging.INFO]
    assert [(r.node, r.rank, r.name, r.getMessage()) for r in found] == [
        (node, node, "train", f"at {level}") for node in (0, 1) for level in levels
    ]
    assert all(record.call for record in found)


def test_the_record_of_much_output_is_bounded(
    new_pool: NewPool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The oldest goes, which is said; the last line is there."""
    monkeypatch.setattr(pools, "NODES_BYTES", 4 * 1024**2)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("SKYWARD_RUN", str(runs_folder() / "much"))
    (runs_folder() / "much").mkdir(parents=True)
    with new_pool(display="quiet") as pool:
        sky.compute(functions.print_much)(12) >> pool
    size = sum(path.stat().st_size for path in (runs_folder() / "much" / "nodes").iterdir())
    assert 2 * 1024**2 < size <= 4 * 1024**2
    texts = "".join(entry.fields["text"] for entry in journals.read(runs_folder() / "much" / "nodes"))
    kept = [int(line) for line in texts.splitlines() if len(line) == 999]
    assert kept == list(range(kept[0], 12_000)) and kept[0] > 6000


def test_the_record_of_a_client_that_was_killed(tmp_path: Path) -> None:
    """It has what came before, and is said to be gone."""
    program = tmp_path / "killed.py"
    program.write_text(
        "import skyward as sky\n"
        "from tests.e2e import logs_functions as functions\n"
        "with sky.ComputePool(sky.Local(), ttl=5) as pool:\n"
        "    print(pool.id, flush=True)\n"
        "    sky.compute(functions.say_and_wait)('before the end') >> pool\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    client = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True, env=environment)
    assert client.stdout
    pool = client.stdout.readline().strip()
    wait_until(lambda: any("before the end" in entry["text"] for entry in _logs(pool)))
    client.send_signal(signal.SIGKILL)
    client.communicate()

    shown = subprocess.run([sys.executable, "-m", "skyward", "logs", pool], capture_output=True, text=True, check=True)
    assert shown.stdout == "[0] before the end\n" and "ended without a result" in shown.stderr
