"""Programs that run on nodes: before a node is one (`claimed`, `standby`), and for commands of its user."""
