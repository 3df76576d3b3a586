"""Command line of the stand: `python3 -m scripts.stand up|down`."""

import sys

from scripts.engine.console import command_line

from .commands import down, up
from .place import here

sys.exit(command_line("stand", up=lambda: up(here()), down=lambda: down(here())))
