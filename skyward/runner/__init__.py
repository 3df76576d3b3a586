"""The processes of a node: agent and workers with their slots, and the lease. Standard library and cloudpickle only."""
