"""Programs that run on nodes: before a machine is a node (`claimed`, `standby`), and for commands of its user."""
