"""Calls on all ranks that fail together, and the group of ranks.

`call.py` supervises one such call, `diagnosis.py` finds why it failed or hangs; `worker_group.py` then restarts all
ranks, which enter the plugins together (`nodes/starting.py`).
"""
