"""How a runner is told what to be: environment, key file, and the document its agent hands to each worker."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from skyward.errors import ConfigError
from skyward.model.instance import ENV_VAR, InstanceInfo
from skyward.wire.messages import KEY_BYTES

SETTINGS_VAR = "SKYWARD_RUNNER"
RUN_DIR_VAR = "SKYWARD_RUN_DIR"
CHANNEL_VAR = "SKYWARD_CHANNEL"  # hexadecimal; see `handshake.connect`. Not set where clients come by no channel
KEY_FILE = "key"
DISMISS = signal.SIGUSR1  # ends a node for good: with a status by which its pool knows not to replace it
EXIT_DISMISSED = 4
GPUS_VAR = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """The pool's wishes for one node's runner, injected as `SKYWARD_RUNNER` (JSON).

    Attributes:
        processes: worker processes on this node.
        slots: calls at once in each of them.
        lease_s: seconds without an authenticated client after which the runner ends itself.
    """

    processes: int = 1
    slots: int = 1
    lease_s: float = 600.0

    def to_json(self) -> str:
        """The text for `SKYWARD_RUNNER`."""
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> RunnerSettings:
        """Read `SKYWARD_RUNNER`; raises ConfigError when it is not such a document."""
        try:
            settings = cls(**json.loads(text))
            if settings.processes < 1 or settings.slots < 1 or settings.lease_s <= 0:
                raise ValueError(f"{text}: processes and slots must be at least 1, lease_s above 0")
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{SETTINGS_VAR} is not a runner's settings ({error}); it is set by the pool.") from None
        return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStart:
    """What an agent hands to a worker over their private socket, before anything else.

    Attributes:
        index: index of the worker process on its node.
        generation: how often this worker has been started before.
        slots: calls at once.
        run_dir: directory for its listening socket.
        key: the node's key, hexadecimal.
        channel: what names the encrypted channel that clients come through, hexadecimal; empty if there is none.
    """

    index: int
    generation: int
    slots: int
    run_dir: str
    key: str
    channel: str = ""


def read_place() -> InstanceInfo:
    """The node's place, from `COMPUTE_POOL`; raises ConfigError when it is missing or broken."""
    text = os.environ.get(ENV_VAR)
    if not text:
        raise ConfigError(f"{ENV_VAR} is not set: a runner is started by a pool, which tells it its place there.")
    return InstanceInfo.from_json(text)


def rank_environment(place: InstanceInfo, worker: int, environment: Mapping[str, str]) -> dict[str, str]:
    """What sets a worker process of a node with several ranks apart: its place, and its part of the node's GPUs.

    Nothing on nodes with one rank, whose processes all have the node's place. GPUs are dealt out in neighbouring
    blocks; where there are fewer than ranks, several ranks share one. A `CUDA_VISIBLE_DEVICES` in the node's
    environment says which there are.
    """
    if place.workers_per_node == 1:
        return {}
    variables = {ENV_VAR: replace(place, worker=worker).to_json()}
    given = environment.get(GPUS_VAR)
    gpus = list(map(str, range(place.accelerators))) if given is None else list(map(str.strip, given.split(",")))
    if place.accelerators and any(gpus):
        first, after = (len(gpus) * rank // place.workers_per_node for rank in (worker, worker + 1))
        variables[GPUS_VAR] = ",".join(gpus[first : max(after, first + 1)])
    return variables


def take_key(run_dir: Path) -> bytes:
    """Read the node's key and remove the file at once, so that user code cannot find it."""
    path = run_dir / KEY_FILE
    try:
        key = path.read_bytes()
        path.unlink()
    except OSError as error:
        raise ConfigError(f"The node's key is not at {path} ({error.strerror}); it is put there by the pool.") from None
    if len(key) != KEY_BYTES:
        raise ConfigError(f"The node's key at {path} has {len(key)} bytes instead of {KEY_BYTES}.")
    return key
