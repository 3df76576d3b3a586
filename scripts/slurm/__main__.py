"""Command line of the Slurm cluster: `python3 -m scripts.slurm up|down`."""

import sys

from scripts.engine.console import command_line

from .commands import down, up
from .place import here

sys.exit(command_line("slurm", up=lambda: up(here()), down=lambda: down(here())))
