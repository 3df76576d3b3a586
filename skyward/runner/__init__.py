"""The process inside a node: agent, workers, slots, the lease. Standard library and cloudpickle only."""
