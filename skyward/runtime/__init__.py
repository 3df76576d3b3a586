"""Functions for user code on nodes: `instance_info`, `shard`, `gather`, output control."""
