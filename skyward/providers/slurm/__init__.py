"""Nodes as jobs of a Slurm cluster, `sky.Slurm`: submitted together, started as the queue permits."""
