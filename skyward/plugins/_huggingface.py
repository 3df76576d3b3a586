"""`sky.plugins.huggingface`: Hugging Face's libraries in the image, and a token for its hub on the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skyward.errors import ConfigError
from skyward.plugins.base import Plugin, add_missing

if TYPE_CHECKING:
    from skyward.model.image import Image
    from skyward.model.spec import Cluster

PACKAGES = ("datasets", "tokenizers", "transformers")
_TRAINER_NEEDS = {"torch", "transformers"}  # Hugging Face's class of that name, besides accelerate
_ENV = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",  # otherwise it warns at every fork of a data loader
}


def huggingface(token: str | None = None) -> Plugin:
    """Transformers, datasets and tokenizers; with the torch plugin also accelerate, so that the Trainer uses all ranks.

    The token is sent to the workers when the pool starts, over the pool's own connections, as the variable HF_TOKEN,
    which the hub's libraries read first: no login request is made. It is in no image, file, command line or container
    setting.

    Args:
        token: of an account on the hub, for gated and private repositories; None for public ones.

    Raises:
        ConfigError: the token is empty or not a string.
    """
    given: object = token
    if given is not None and (not isinstance(given, str) or not given.strip()):
        raise ConfigError(
            "sky.plugins.huggingface: token takes the text of a token, or None; found "
            + ("an empty text." if isinstance(given, str) else f"a {type(given).__name__}.")
        )
    plugin = Plugin.create("huggingface").with_image_transform(_add_packages)
    return plugin if token is None else plugin.with_secrets(HF_TOKEN=token.strip())


def _add_packages(image: Image, _cluster: Cluster) -> Image:
    return with_trainer(add_missing(image, *PACKAGES).with_env({**_ENV, **image.env}))


def with_trainer(image: Image) -> Image:
    """Add accelerate, which Hugging Face's Trainer needs, to an image that has torch and transformers.

    In an image with transformers alone, it would pull in torch from PyPI.
    """
    from skyward.model.image import requirement_name  # nodes, which import this module too, do not need images

    present = {requirement_name(entry) for entry in image.pip}
    return add_missing(image, "accelerate") if present >= _TRAINER_NEEDS else image
