"""Nodes as jobs of a Slurm cluster, `sky.Slurm`: submitted at once, started as the queue allows, gone in the end."""
