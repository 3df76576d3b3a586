"""What a kept node's last client leaves behind besides worker processes, and its removal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from skyward.model.instance import WORK_FOLDER


def cleaner(reset: str, run_dir: Path) -> Callable[[], str]:
    """Return the function that removes a client's traces according to `RunnerSettings.reset`, and returns a problem or
    "".
    """
    if reset == "container":
        return container_cleaner()
    return folder_cleaner(run_dir / WORK_FOLDER) if reset else str


def folder_cleaner(folder: Path) -> Callable[[], str]:
    """Return a function that empties a working directory, all that a node has to itself if it is a plain process.

    Processes left behind are killed first.
    """
    from shutil import rmtree  # most nodes need neither this nor the cleaning of containers

    from skyward.runner.entry.container import end_descendants

    def clean() -> str:
        end_descendants()
        for path in folder.iterdir():
            try:
                rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            except OSError as error:
                return f"{path} cannot be removed ({error.strerror})."
        return ""

    return clean


def container_cleaner() -> Callable[[], str]:
    """Return a function that restores this process's container to its present state.

    It covers processes, files, mounts and shared memory.
    """
    from skyward.runner.entry import container

    known, mounts = container.files(), set(container.mounts())

    def clean() -> str:
        try:
            container.end_processes()
            container.remove_files(known, keep=())
            container.remove_ipc()
        except container.NotCleanError as error:
            return str(error)
        left = sorted(set(container.mounts()) - mounts)
        return f"{left[0]} is still mounted." if left else ""

    return clean
