"""What the heir of a pool in a swarm does: `python -m skyward.providers.swarm.heir POOL ADDRESS`.

The tasks of a killed client end by their lease, and the engine starts none of them again; but no task may remove its
service.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from skyward.providers.heir import inherit
from skyward.providers.rundir import private_directory, sweep_orphans
from skyward.providers.swarm import estate
from skyward.providers.swarm.manager import Manager, ManagerAddress


def main(pool: str, document: str) -> int:
    """Clear the pool when its client has died, and remove the directory that the client had."""
    order = json.loads(document)
    files = (Path(order[name]) if order.get(name) else None for name in ("key", "known_hosts"))
    address = ManagerAddress.of(order["engine"], *files)
    return inherit(lambda: clear(pool, address))


def clear(pool: str, address: ManagerAddress) -> None:
    """Remove what a pool has in the swarm.

    Raises:
        SkywardError: the manager cannot be reached, or refuses.
    """
    with private_directory() as folder:
        manager = Manager(address, folder)
        try:
            estate.clear(manager.api, pool)
        finally:
            manager.close()
    sweep_orphans()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
