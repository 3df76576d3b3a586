"""One Docker engine: containers through the docker SDK, images through its HTTP API.

Read `address.py` (which engine, and whether it is alive), `client.py` (`Engine`: create, attach, watch and remove
containers), then `container.py`. Images need no SDK: `images.py`. `failures.py` translates errors;
`transport.py` adapts connections to the SDK.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from skyward.engine.address import EngineAddress, find_engine

if TYPE_CHECKING:
    from skyward.engine.client import Engine
    from skyward.engine.container import Container, ContainerSpec, Ending, Watch
    from skyward.engine.images import Images

__all__ = [
    "Container",
    "ContainerSpec",
    "Ending",
    "Engine",
    "EngineAddress",
    "Images",
    "Watch",
    "find_engine",
]

# loaded on first use, as checking for an image needs no containers
_HOMES = {
    "Engine": "client",
    **dict.fromkeys(("Container", "ContainerSpec", "Ending", "Watch"), "container"),
    "Images": "images",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
