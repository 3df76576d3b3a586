"""The images of a detached run: those of its pools, made before it starts, and the one that its driver runs in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement

from skyward.builder.sources.declared import Declared
from skyward.delivery.deliver import Delivered
from skyward.delivery.prepared import Prepared, description
from skyward.errors import ConfigError
from skyward.image.origins import with_origin
from skyward.model.image import Image
from skyward.model.spec import Cluster, ClusterSpec
from skyward.model.targets import local_minor, platform_of
from skyward.plugins.declared import declared_image

_EXTRAS = ("ssh",)  # drivers have no SSH client of the system
Deliver = Callable[[Image, Cluster], Delivered]


def deliver_images(images: Sequence[Declared], deliver: Deliver) -> dict[str, Prepared]:
    """Deliver the images of pools; what was delivered, by their descriptions.

    Args:
        images: as the program declares them.
        deliver: brings one to where it is run.
    """
    found: dict[str, Prepared] = {}
    for declared in images:
        image, cluster = compiled_for(declared)
        delivered = deliver(image, cluster)
        found[description(image, cluster.spec)] = Prepared.of(delivered.tag, delivered.user, delivered.reference)
    return found


def deliver_driver(images: Sequence[Declared], deliver: Deliver) -> Delivered:
    """Deliver the image of the driver: the first pool's, with the packages that skyward's client needs.

    It has the program's packages in the versions that its functions have, and skyward's own code, as each image does.

    Args:
        images: as the program declares them.
        deliver: brings it to where the driver runs.

    Raises:
        ConfigError: skyward is not installed here as a package, so what it needs is not known.
    """
    image, cluster = compiled_for(images[0])
    plain = replace(image, includes=(), bake=False, lock=None, verify=None)
    return deliver(with_origin(plain, plain.pip_install(*_client_requirements()), "skyward's client"), cluster)


def compiled_for(declared: Declared) -> tuple[Image, Cluster]:
    """The image of a pool with what its plugins add, and what it is compiled for."""
    platform = declared.image.platform or platform_of(declared.architecture)
    python = local_minor() if declared.image.python == "auto" else declared.image.python
    image = declared_image(declared, platform=platform, python=python)
    return image, Cluster(spec=ClusterSpec(platform=platform, python=python))


def _client_requirements() -> list[str]:
    try:
        lines = requires("skyward") or []
    except PackageNotFoundError:
        raise ConfigError(
            "skyward is not installed here as a package, so what the driver of a detached run needs is not known. "
            "Install it with pip or uv."
        ) from None
    found = []
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        if requirement.name == "uv":  # 60 MB, which only locks of images take
            continue
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *_EXTRAS)):
            requirement.marker = None
            found.append(str(requirement))
    return found
