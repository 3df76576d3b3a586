"""Pools: `ComputePool`, scheduling, nodes and collective calls. Independent of particular providers.

The path of a call: `pool.py` (`run`), `calls.py`, `task.py`, `dispatcher.py` with `scheduler.py`,
`nodes/worker_client.py`, the worker. Its answer: `nodes/node_client.py` (reader), `dispatcher.py`, `task.py`.
"""
