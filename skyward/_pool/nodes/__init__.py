"""The nodes of a pool, and the handling of lost ones.

`node_client.py` detects the end of a node or a worker and its reason; `worker_client.py` determines which of its calls
had begun; `dispatcher.py` and `scheduler.py` settle them; `manager.py` starts another node for the slot in
`node_table.py`, sends its address to the other nodes and requests the set-up of its workers (`starting.py`).
"""
