"""Command line of the Kubernetes for tests: `python3 -m scripts.kube build|up|down`."""

import sys

from scripts.engine.console import command_line

from .commands import build, down, up
from .place import here

sys.exit(command_line("kube", build=lambda: build(here()), up=lambda: up(here()), down=lambda: down(here())))
