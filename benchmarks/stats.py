"""What it costs a node to be measured once a second: the agent's share of a processor, in percent.

`python -m benchmarks.stats [SECONDS]` prints JSON for a node of processes and one in a container: processor time that
the agent takes in that many seconds with nobody watching, and while `pool.stats()` is asked once a second.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import skyward as sky


@sky.compute
def agent_cpu_s() -> float:
    """Processor time of the agent of this worker, which is its parent, so far."""
    import os

    fields = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def share(pool: sky.ComputePool, seconds: int, *, asks: bool) -> float:
    """The agent's part of a processor, in percent, over so many seconds."""
    if asks:
        pool.stats()  # what is loaded for the first question is no part of it
    before = agent_cpu_s() >> pool
    for _ in range(seconds):
        start = time.monotonic()
        if asks:
            pool.stats()
        time.sleep(max(0.0, start + 1 - time.monotonic()))
    return 100 * ((agent_cpu_s() >> pool) - before) / seconds


def main() -> None:
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    figures = {}
    for provider in (sky.Local(), sky.Docker()):
        with sky.ComputePool(provider, display="quiet") as pool:
            figures[provider.name] = {
                "unasked_percent": round(share(pool, seconds, asks=False), 3),
                "asked_percent": round(share(pool, seconds, asks=True), 3),
            }
    print(json.dumps({"seconds": seconds, "share_of_a_core": figures}, indent=1))


if __name__ == "__main__":
    main()
