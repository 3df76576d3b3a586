"""Entry point of `python -m skyward.runner`, the main program of a node's container."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

from skyward.errors import ConfigError, explained
from skyward.model.instance import CHANNEL_VAR, EXIT_CONFIG, EXIT_FAILED, RUN_DIR_VAR, SETTINGS_VAR
from skyward.runner.children import Child
from skyward.runner.config import (
    RunnerSettings,
    WorkerStart,
    rank_environment,
    read_place,
    take_key,
)


def main() -> int:
    """Read the settings of this node, start its workers, then run as its agent."""
    try:
        place = read_place()
        settings = RunnerSettings.from_json(_variable(SETTINGS_VAR))
        run_dir = Path(_variable(RUN_DIR_VAR))
        key = take_key(run_dir)
        channel = os.environ.pop(CHANNEL_VAR, "")
    except ConfigError as error:
        print(f"skyward: {error}", file=sys.stderr)  # noqa: T201 - for the program that started this node
        return EXIT_CONFIG
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # of macOS, whose kernel allows fewer than it says
        files = min(most, 1 << 20) if most > 0 else 1 << 20  # data loaders pass tensors by descriptor
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    children = [
        Child(
            WorkerStart(
                index=i,
                generation=0,
                slots=settings.slots,
                run_dir=str(run_dir),
                key=key.hex(),
                channel=channel,
            ),
            rank_environment(place, i, os.environ, settings.processes),
        )
        for i in range(settings.processes)
    ]
    from skyward.runner.agent import Agent, say  # imported while the workers start, as it takes about as long

    try:
        return Agent(place.node, settings, run_dir, key, children, bytes.fromhex(channel)).run()
    except RuntimeError as error:
        if (told := explained(error)) is error:
            raise
        say(f"Node {place.node} ends: {told}")
        return EXIT_FAILED


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise ConfigError(f"{name} is not set: a runner is started by a pool, which sets it.")
    return value


if __name__ == "__main__":
    sys.exit(main())
