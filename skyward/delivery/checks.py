"""The disk space that an image needs on rented machines."""

from __future__ import annotations

import math

from skyward.model.image import Image
from skyward.model.spec import Cluster

FLOOR_GB = 50  # also if the size of the image is unknown
_SCRATCH_GB = 30  # for files written by nodes
_IMAGE_FACTOR = 2.5  # the image unpacked, and its compressed layers (40 to 100 % of that) during a pull or load


def room_gb(image_bytes: int | None) -> int:
    """Return the gigabytes needed by an image of that size unpacked (None if unknown) and by files of nodes."""
    return (
        FLOOR_GB if image_bytes is None else max(FLOOR_GB, _SCRATCH_GB + math.ceil(_IMAGE_FACTOR * image_bytes / 1e9))
    )


def built_size(image: Image, cluster: Cluster) -> int | None:
    """Return the size of the image on this machine's engine in bytes; None if it has not been built there.

    Raises:
        ImageError: the image cannot be compiled, which should be known before machines are rented.
        EngineMissingError: this machine has no engine.
    """
    from skyward.builder.plans import plan_for
    from skyward.builder.store import EngineImages
    from skyward.engine import Images, find_engine

    store = EngineImages(Images(find_engine()))
    plan = plan_for(image, store, python=cluster.spec.python, platform=image.platform or cluster.spec.platform)
    facts = store.inspect(plan.tag)
    return facts.size or None if facts else None
