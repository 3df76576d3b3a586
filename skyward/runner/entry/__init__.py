"""Programs that start before a node: `standby` for compose files, `swarm_task` for Swarm, `slurm_job` for Slurm."""
