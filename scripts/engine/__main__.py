"""Command line of the engine script: `python3 -m scripts.engine up|down|purge`."""

import sys

from .commands import down, up
from .console import command_line
from .place import here

commands = {"up": lambda: up(here()), "down": lambda: down(here()), "purge": lambda: down(here(), purge=True)}
sys.exit(command_line("engine", **commands))
