"""From `with` to ready on machines reached by SSH, their image being there, stage by stage; as JSON.

make stand
python benchmarks/start.py                     # on the stand's three hosts
python benchmarks/start.py --hosts hosts.json  # on others: {"hosts": [...], "key": ..., "known_hosts": ...}
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import skyward as sky
from skyward._pool.nodes.manager import NodeManager
from skyward._pool.pool import ComputePool
from skyward.delivery import deliver as delivery
from skyward.nodes.ssh_host import Machine
from skyward.providers.ssh import SSH

FLOOR_S = 3.0
STAND = Path(__file__).parent.parent / ".stand" / "hosts.json"
# what a start is made of, in its order; hosts are connected to, made ready and started on side by side
STEPS: tuple[tuple[str, Any, str], ...] = (
    ("connect and check hosts", SSH, "acquire"),
    ("compile image, see that hosts have it", SSH, "prepare"),
    ("start containers, connect to them", NodeManager, "start"),
    ("set workers up", ComputePool, "_set_up"),
)
WITHIN: tuple[tuple[str, Any, str], ...] = (
    ("connect: ssh, first words of the watchdog", Machine, "open"),
    ("connect: make the pool's directory, watch the engine", Machine, "go"),
    ("image: compile", delivery, "plan_for"),
    ("start: one container", Machine, "start"),
)


@contextmanager
def timed(times: dict[str, list[float]]) -> Iterator[None]:
    """Note how long each step takes."""
    before = [(owner, name, getattr(owner, name)) for _, owner, name in (*STEPS, *WITHIN)]

    def around(title: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return original(*given, **more)
            finally:
                times[title].append(time.perf_counter() - began)

        return call

    for title, owner, name in (*STEPS, *WITHIN):
        setattr(owner, name, around(title, getattr(owner, name)))
    try:
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=Path, default=STAND, help="JSON file with hosts, key and known_hosts")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    logging.getLogger("skyward").setLevel(logging.ERROR)
    facts = json.loads(options.hosts.read_text())
    hosts = facts.pop("hosts")
    provider = sky.SSH(*hosts, **facts)

    def start() -> tuple[float, float]:
        pool = sky.ComputePool(provider, nodes=len(hosts), display="quiet")
        began = time.perf_counter()
        with pool:
            ready = time.perf_counter()
        return ready - began, time.perf_counter() - ready

    start()  # builds and sends the image if need be, and loads modules
    times: dict[str, list[float]] = defaultdict(list)
    with timed(times):
        pools = [start() for _ in range(options.repeats)]
    ready = [seconds for seconds, _ in pools]
    figures = {
        "hosts": len(hosts),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "ready_s": {
            "median": round(statistics.median(ready), 2),
            "best": round(min(ready), 2),
            "worst": round(max(ready), 2),
        },
        "floor_s": FLOOR_S,
        "stages_s": {title: round(statistics.median(times[title]), 3) for title, _, _ in STEPS},
        "within_s": {title: round(statistics.median(times[title]), 3) for title, _, _ in WITHIN},
        "stop_s": round(statistics.median(seconds for _, seconds in pools), 2),
    }
    json.dump(figures, sys.stdout, indent=2)
    print()
    if figures["ready_s"]["median"] > FLOOR_S:  # type: ignore[index]
        sys.exit(f"The start takes longer than {FLOOR_S:g} s.")


if __name__ == "__main__":
    main()
