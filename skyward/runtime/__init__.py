"""What user code calls inside a node: `instance_info`, `shard`, `gather`, output control."""
