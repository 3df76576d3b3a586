"""`sky.plugins.huggingface`: Hugging Face's libraries in the image, and a token for its hub on the workers."""

from __future__ import annotations

from skyward.errors import ConfigError
from skyward.model.image import Image, requirement_name
from skyward.model.spec import Cluster
from skyward.plugins._packages import with_trainer
from skyward.plugins.base import Plugin

PACKAGES = ("datasets", "tokenizers", "transformers")
_ENV = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",  # it warns at every fork of a data loader otherwise
}


def huggingface(token: str | None = None) -> Plugin:
    """Transformers, datasets and tokenizers; with the torch plugin also accelerate, so that the Trainer trains on all.

    The token is sent to the workers when the pool starts, over the pool's own connections, as the variable HF_TOKEN,
    which the hub's libraries read first: no request is made to log in. It is in no image, file, command line or
    container setting.

    Args:
        token: of an account of the hub, for gated and private repositories; None for what is public.

    Raises:
        ConfigError: the token is empty or no text.
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
    present = {requirement_name(entry) for entry in image.pip}  # perhaps with a version
    variables = {name: value for name, value in _ENV.items() if name not in image.env}
    image = image.pip_install(*(package for package in PACKAGES if package not in present)).with_env(variables)
    return with_trainer(image)
