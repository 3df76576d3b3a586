"""Pools: `ComputePool`, scheduling, the life of nodes and of collective calls. Knows no provider by name.

The path of a call: `pool.py` (`run`), `calls/runner.py`, `calls/task.py`, `dispatcher.py` with `scheduler.py`,
`nodes/worker_client.py`, the worker. Its answer: `nodes/node_client.py` (reader), `dispatcher.py`, `calls/task.py`.
"""
