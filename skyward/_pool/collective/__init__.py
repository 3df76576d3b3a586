"""Calls on all ranks that fail together, and the ranks as a group.

`call.py` looks after one such call, `diagnosis.py` finds why it failed or does not go on;
`worker_group.py` then starts all ranks afresh, which enter the plugins together (`nodes/starting.py`).
"""
