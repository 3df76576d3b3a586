"""The ranks of a pool: which worker processes a call for all of them reaches, and what messages call them."""

from __future__ import annotations

from skyward.model.spec import Worker


def ranks_of(nodes: int, worker: Worker) -> dict[int, str]:
    """The numbers of the worker processes that are ranks, in their order, each with its name in messages.

    With `Worker(executor="process")` the processes of a node are one rank, which its first process stands for.
    """
    if worker.processes != worker.ranks:
        return {node * worker.processes: f"node {node}" for node in range(nodes)}
    return {rank: f"rank {rank} (node {rank // worker.ranks})" for rank in range(nodes * worker.ranks)}
