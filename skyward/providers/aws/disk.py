"""How large a machine's root disk is to be, beyond what its own image takes: room for the pool's image."""

from __future__ import annotations

import math

from skyward.model.image import Image
from skyward.model.spec import Cluster

FLOOR_GB = 50  # also where nobody knows the image's size
_OWN_GB = 30  # for what nodes write
_TIMES = 2.5  # unpacked, and while it is brought there packed as well, of which half is usual and all may be


def room_gb(image_bytes: int | None) -> int:
    """Gigabytes for an image of so many bytes unpacked (None: not known), and for what nodes write."""
    return FLOOR_GB if image_bytes is None else max(FLOOR_GB, _OWN_GB + math.ceil(_TIMES * image_bytes / 1e9))


def size_here(image: Image, cluster: Cluster) -> int | None:
    """Bytes of the image on the engine of this machine; None if it has not been built here.

    Raises:
        ImageError: the image cannot be had, which is better known before machines are rented.
        EngineMissingError: there is no engine here.
    """
    from skyward.build import plan_for
    from skyward.engine import Images, find_engine
    from skyward.providers.images import EngineImages

    store = EngineImages(Images(find_engine()))
    plan = plan_for(image, store, python=cluster.spec.python, platform=image.platform or cluster.spec.platform)
    facts = store.inspect(plan.tag)
    return facts.size or None if facts else None
