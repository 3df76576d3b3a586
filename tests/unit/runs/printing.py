"""A program that records itself as a run, prints numbered lines into its journal, and ends as it is told.

python printing.py FOLDER LINES PAUSE_S END [HELD...], where END is its exit status, or "kill" to end without a word.
HELD are numbers of lines; before it prints one of these it waits for a line of its input.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from skyward.nodes.process_id import current_user
from skyward.records import journal
from skyward.records.run import RunRecord, hold, note, watch_down


def main(folder: Path, lines: int, pause_s: float, end: str, held: frozenset[int] = frozenset()) -> None:
    """Be the run."""
    hold(folder)
    RunRecord(
        id=folder.name,
        program="printing.py",
        started=time.time(),
        directory=str(Path.cwd()),
        user=current_user(),
    ).write(folder)
    watch_down(folder, lambda number: os.kill(os.getpid(), number))
    print("started", flush=True)
    for number in range(lines):
        if number in held:
            sys.stdin.readline()
        stream = "err" if number % 4 == 3 else "out"
        entry = {"t": time.time(), "stream": stream, "text": f"line {number}\n"}
        journal.extend(folder / "output", entry, 1 << 30)
        time.sleep(pause_s)
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    note(folder, "ended", status=int(end), reason=None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], frozenset(map(int, sys.argv[5:])))
