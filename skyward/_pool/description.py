"""What a pool is made of, and how a program that runs only to tell it hands that over.

`skyward build` and `skyward run --detach` run a program until it opens a pool (`skyward.runs.describe`). They name a
socket in SKYWARD_DESCRIBE, which the processes that the program starts inherit: whichever opens a pool first sends its
description there and ends. Nothing is created for the pool.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from skyward._pool.config import ADDRESS
from skyward.builder.sources.declared import Declared
from skyward.errors import SkywardError
from skyward.model.image_fields import PLATFORMS
from skyward.system import socket

if TYPE_CHECKING:
    from skyward._pool.pool import ComputePool
    from skyward.model.image import Image
    from skyward.providers.base import Provider

_MACHINES = ("nodes", "accelerator", "cpus", "memory_gb", "machine", "allocation", "max_hourly_cost", "budget")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredPool(Declared):
    """A pool that a program declares or opens.

    Attributes:
        providers: those that are tried in turn; one that does not come with skyward by its name.
        machines: the fields of its `PoolRequest` that decide which machines are rented.
        secrets: names of variables of its program's environment that it passes to workers.
        has_volumes: whether it mounts volumes.
    """

    providers: tuple[Provider | str, ...]
    machines: Mapping[str, Any] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    has_volumes: bool = False

    @property
    def kinds(self) -> list[str]:
        """Names of the classes of its providers."""
        return [each if isinstance(each, str) else type(each).__name__ for each in self.providers]


def describe(pool: ComputePool, name: str, where: str) -> DeclaredPool:
    """Return the description of a pool; it need not be open."""
    settings = pool._settings
    given = getattr(settings.provider, "providers", (settings.provider,))
    ours = [type(each).__module__.startswith("skyward.") for each in given]
    return DeclaredPool(
        name=name,
        where=where,
        root=Path.cwd(),
        image=settings.image,
        images={platform: _image(pool, platform) for platform in PLATFORMS.values()} if settings.plugins else {},
        architecture=settings.architecture,
        providers=tuple(each if our else type(each).__name__ for each, our in zip(given, ours, strict=True)),
        machines={key: getattr(pool._request, key) for key in _MACHINES},
        secrets=tuple(key for key, value in settings.secrets if os.environ.get(key) == value),
        has_volumes=bool(settings.volumes),
    )


def _image(pool: ComputePool, platform: str) -> Image | str:
    """Return a pool's image for a platform, with what its plugins add; the error's text if one of them fails."""
    from skyward.plugins import transform_all

    settings, cluster = pool._settings, pool._settings.cluster
    try:
        planned = replace(cluster, spec=replace(cluster.spec, platform=platform))
        return transform_all(settings.image, settings.plugins, planned)
    except SkywardError as error:
        return str(error)


def hand_over(pool: ComputePool) -> NoReturn:
    """Send the description of a pool that is to be opened, and end this process at once.

    No `except`, `finally`, `atexit` and no other thread of the program runs after that.
    """
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("skyward", "contextlib"):
        frame = frame.f_back
    code = frame.f_code
    name = Path(code.co_filename).stem if code.co_name == "<module>" else code.co_name
    try:
        send("opened", [describe(pool, name, f"{code.co_filename}, line {frame.f_lineno}")])
    except BaseException as error:
        send("failed", f"{type(error).__name__}: {error}")
    finally:
        os._exit(0)


def send(kind: str, value: object) -> None:
    """Send a message to the process that describes this program."""
    data = pickle.dumps((kind, value))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[ADDRESS])
        connection.sendall(data)
