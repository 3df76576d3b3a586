"""A registry that the hosts reach: a second one on the files of `make engine`'s, at this machine's end of the network.

What is pushed to the one is there to be pulled from the other. The private engine speaks plain http with all of them.
"""

from scripts.engine import processes, registry

from .place import Stand


def up(stand: Stand) -> None:
    """Start it; nothing where `make engine` has made no registry."""
    if registry.binary() is None or not (stand.engine.root / "registry").is_dir():
        return
    address = f"{stand.gateway}:5000"
    files = stand.root / "registry.yml", stand.root / "registry.pid", stand.log("registry")
    registry.serve(stand.engine, address, *files)
    stand.note(registry=address)


def down(stand: Stand) -> None:
    """Stop it."""
    pid = processes.ours(stand.root / "registry.pid", stand.root / "registry.yml")
    if pid is not None:
        processes.stop(pid, patience_s=5)
