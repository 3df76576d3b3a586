"""Packages that plugins add to an image: a requirement from a `version` parameter, and accelerate for the Trainer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from skyward.errors import ConfigError

if TYPE_CHECKING:
    from skyward.model.image import Image

LATEST = "latest"
_TRAINER_NEEDS = {"torch", "transformers"}
_OPERATOR = re.compile(r"\s*(===|~=|==|!=|<=|>=|<|>)")


def requirement(package: str, version: str | None, *, where: str) -> str:
    """A package with a version, as pip takes it.

    Args:
        package: its name, extras included.
        version: "latest" or None for any; a bare version such as "2.3.0" for exactly that; a specifier such as
            ">=2.3,<3" as it is.
        where: what errors call the parameter.

    Raises:
        ConfigError: it is no version and no specifier (PEP 440).
    """
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # nodes, which import this too, need not have it

    if version is None or version == LATEST:
        return package
    given: object = version
    specifier = given.strip() if isinstance(given, str) else ""
    if specifier and not _OPERATOR.match(specifier):
        specifier = f"=={specifier}"
    try:
        parsed = SpecifierSet(specifier)
    except InvalidSpecifier:
        parsed = SpecifierSet()
    if not len(parsed):
        raise ConfigError(
            f"{where} takes 'latest', a version such as '2.3.0' or a specifier such as '>=2.3,<3'; found {version!r}."
        )
    return f"{package}{specifier.replace(' ', '')}"


def with_trainer(image: Image) -> Image:
    """Add accelerate, which Hugging Face's Trainer needs, to an image that has torch and transformers.

    To an image with transformers alone it would add a torch from PyPI.
    """
    from skyward.model.image import requirement_name  # nodes, which import this too, have no use for images

    present = {requirement_name(entry) for entry in image.pip}
    return image.pip_install("accelerate") if present >= _TRAINER_NEEDS and "accelerate" not in present else image
