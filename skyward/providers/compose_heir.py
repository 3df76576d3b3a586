"""What the heir of a pool does that brought a compose file up: `python -m ... POOL FILE PROJECT`.

The containers would end by themselves a minute after their client, but they, and their network, would stay to be seen.
"""

from __future__ import annotations

import sys
from pathlib import Path

from skyward.providers.compose_project import Project
from skyward.providers.containers import POOL, remove_all
from skyward.providers.heir import inherit


def main(pool: str, file: str, name: str) -> int:
    """Bring the file down when the pool's client has died."""
    project = Project(Path(file), name)
    return inherit(lambda: clear(project, pool))


def clear(project: Project, pool: str) -> None:
    """Bring a project down if it is this pool that has brought it up; if its file is gone, remove the pool's nodes.

    Raises:
        ProviderError: compose failed.
        EngineError: the engine is gone or refuses.
    """
    if not project.file.exists():
        remove_all(project.engine, pool)
        return
    with project.alone():  # not before the client's own `up` has ended, which outlives it
        if any(each["Labels"].get(POOL) == pool for each in project.containers()):
            project.down()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
