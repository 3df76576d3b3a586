"""`make slurm`: a login node and three compute nodes with Slurm on one Linux machine, from the distribution's packages.

Imports the standard library, `scripts.engine` and `scripts.stand` only.
"""
