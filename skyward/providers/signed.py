"""Images whose signature a pool wants to see have to come from a registry: signatures are there."""

from __future__ import annotations

from skyward.errors import ConfigError
from skyward.model.image import Image


def refuse_unsigned(image: Image, way: str) -> None:
    """See that nobody asked for a signature of an image that comes from no registry.

    Args:
        image: what is to run.
        way: how it gets to the nodes, to complete "it goes to the nodes ...".

    Raises:
        ConfigError: somebody did.
    """
    if image.verify:
        raise ConfigError(
            f"verify={image.verify!r} names the key that must have signed the image in a registry, and here it goes to "
            f"the nodes {way}. Use a provider with registry=, or leave verify= out."
        )
