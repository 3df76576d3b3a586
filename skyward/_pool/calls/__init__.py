"""Calls on their way: `runner.py` (from the caller, and waiting for them), `task.py` (state of one), `stream.py`."""
