"""The nodes of a pool, and what becomes of one that is lost.

`node_client.py` notices that a node or a worker has ended, and why; `worker_client.py` knows which of its calls had
begun; `dispatcher.py` and `scheduler.py` settle them; `manager.py` gets another node for the slot in `node_table.py`,
tells the other nodes its address and has its workers set up (`starting.py`).
"""
