"""A runner's settings: its environment, its key file, and the settings that the agent sends to each worker."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from skyward.errors import ConfigError
from skyward.model.instance import ENV_VAR, KEY_FILE, SETTINGS_VAR, InstanceInfo
from skyward.wire.messages import KEY_BYTES

GPUS_VAR = "CUDA_VISIBLE_DEVICES"
_JAX_MEMORY = (
    *("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"),
    *("XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_ALLOCATOR"),
)
_TENSORFLOW_GROWS = "TF_FORCE_GPU_ALLOW_GROWTH"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """A pool's settings for the runner of one node, passed as `SKYWARD_RUNNER` (JSON).

    Attributes:
        lease_s: seconds without an authenticated client after which the runner ends itself.
        processes: number of worker processes on this node.
        slots: number of concurrent calls in each of them.
        reset: what is restored for the next client of a kept pool: the "container", or the working "directory" if the
            node is a process; "" if no other client takes the node over.
    """

    lease_s: float
    processes: int = 1
    slots: int = 1
    reset: Literal["", "container", "directory"] = ""

    def to_json(self) -> str:
        """Return the text for `SKYWARD_RUNNER`."""
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> RunnerSettings:
        """Parse `SKYWARD_RUNNER`; raises ConfigError if it is invalid."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{SETTINGS_VAR} is not a runner's settings ({error}); it is set by the pool.") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStart:
    """Settings that an agent sends to a worker over their private socket, before anything else.

    Attributes:
        index: index of the worker process on its node.
        generation: how often this worker has been started before.
        slots: number of concurrent calls.
        run_dir: directory for its listening socket.
        key: the node's key, hexadecimal.
        channel: identifier of the encrypted channel that clients connect through, hexadecimal; empty if there is none.
    """

    index: int
    generation: int
    slots: int
    run_dir: str
    key: str
    channel: str = ""


def read_place() -> InstanceInfo:
    """Return the node's place from `COMPUTE_POOL`; raises ConfigError if it is missing or invalid."""
    text = os.environ.get(ENV_VAR)
    if not text:
        raise ConfigError(f"{ENV_VAR} is not set: a runner is started by a pool, which sets it.")
    return InstanceInfo.from_json(text)


def rank_environment(
    place: InstanceInfo, worker: int, environment: Mapping[str, str], processes: int = 1
) -> dict[str, str]:
    """Return the variables of one worker process on a node with several ranks: its place and its share of the GPUs.

    On nodes with one rank all processes have the node's place and all of its GPUs. GPUs are assigned in contiguous
    blocks; if there are fewer than ranks, several ranks share one. `CUDA_VISIBLE_DEVICES` in the node's environment
    lists the available ones. Processes that share a GPU are configured not to take all of its memory.
    """
    if place.workers_per_node == 1:
        return _memory_part(processes, environment) if place.accelerators else {}
    variables = {ENV_VAR: replace(place, worker=worker).to_json()}
    given = environment.get(GPUS_VAR)
    gpus = list(map(str, range(place.accelerators))) if given is None else list(map(str.strip, given.split(",")))
    if place.accelerators and any(gpus):
        starts = [len(gpus) * rank // place.workers_per_node for rank in range(place.workers_per_node + 1)]
        first, after = starts[worker], starts[worker + 1]
        variables[GPUS_VAR] = ",".join(gpus[first : max(after, first + 1)])
        variables |= _memory_part(starts[:-1].count(first), environment)
    return variables


def _memory_part(processes: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which this number of processes share a GPU's memory.

    By default JAX reserves three quarters of it at once, and TensorFlow all; PyTorch takes what it needs.
    """
    if processes < 2:
        return {}
    part = {} if any(name in environment for name in _JAX_MEMORY) else {_JAX_MEMORY[0]: f"{0.75 / processes:.3f}"}
    return {**part, **{name: "true" for name in (_TENSORFLOW_GROWS,) if name not in environment}}


def take_key(run_dir: Path) -> bytes:
    """Read the node's key and remove the file at once, so that user code cannot find it."""
    path = run_dir / KEY_FILE
    try:
        key = path.read_bytes()
        path.unlink()
    except OSError as error:
        raise ConfigError(f"The node's key is not at {path} ({error.strerror}); it is put there by the pool.") from None
    if len(key) != KEY_BYTES:  # an empty key is one that anybody has
        raise ConfigError(f"The node's key at {path} has {len(key)} bytes instead of {KEY_BYTES}.")
    return key
