"""One Docker engine on this machine, through the docker SDK: containers run, watched, removed; images pulled."""

from skyward.engine.address import EngineAddress, find_engine
from skyward.engine.client import Engine
from skyward.engine.container import Container, ContainerSpec
from skyward.engine.gpus import visible_gpus
from skyward.engine.images import Images, Removal
from skyward.engine.watch import Ending, Watch

__all__ = [
    "Container",
    "ContainerSpec",
    "Ending",
    "Engine",
    "EngineAddress",
    "Images",
    "Removal",
    "Watch",
    "find_engine",
    "visible_gpus",
]
