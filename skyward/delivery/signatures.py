"""The check of `Image.verify` before anything exists: signatures are kept in registries."""

from __future__ import annotations

from skyward.errors import ConfigError
from skyward.model.image import Image


def check_verifiable(image: Image, registry: str | None) -> None:
    """Check that an image whose signature is to be verified comes from a registry.

    Raises:
        ConfigError: `Image.verify` is given, and no registry.
    """
    if image.verify and registry is None:
        raise ConfigError(
            f"Image(verify={image.verify!r}) requires a signature of the image. Signatures are kept in a "
            "registry, and this provider takes the image from none. Use a provider with registry=, or leave verify= "
            "out."
        )
