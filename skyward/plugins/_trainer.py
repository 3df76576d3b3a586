"""What Hugging Face's Trainer needs beside transformers and torch."""

from __future__ import annotations

from skyward.model.image import Image, requirement_name

_NEEDED_BY = {"torch", "transformers"}


def with_trainer(image: Image) -> Image:
    """Add accelerate to an image that has both; with transformers alone it would only bring a torch of its own."""
    present = {requirement_name(entry) for entry in image.pip}
    return image.pip_install("accelerate") if present >= _NEEDED_BY and "accelerate" not in present else image
