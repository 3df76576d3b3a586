"""`sky.plugins.joblib` and `sky.plugins.sklearn`: `Parallel`, and scikit-learn's `n_jobs`, on the pool's nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skyward.errors import PluginError
from skyward.model.image import Image, requirement_name
from skyward.model.spec import Cluster
from skyward.plugins._joblib_node import share_of_cpus
from skyward.plugins._packages import requirement
from skyward.plugins.base import Plugin

if TYPE_CHECKING:
    from skyward._pool.pool import ComputePool


def joblib(version: str | None = None) -> Plugin:
    """While the pool is open, `joblib.Parallel` runs on its nodes in the thread that opened it.

    `n_jobs=-1` means all slots of the pool, a smaller number so many calls at once. What the calls run in parallel
    themselves is sequential. Needs joblib here as well, of the nodes' version.

    Args:
        version: of joblib on the nodes: a version ("1.5.1") or a specifier (">=1.5"); None for any.

    Raises:
        ConfigError: it is neither.
    """
    packages = (requirement("joblib", version, where="sky.plugins.joblib: version"),)
    return _plugin("joblib", packages)


def sklearn(version: str | None = None) -> Plugin:
    """scikit-learn on the nodes, and all of it that takes `n_jobs` runs there while the pool is open.

    Adds joblib as well, with whatever version the image asks for. Needs scikit-learn here too, of the nodes' version.

    Args:
        version: of scikit-learn on the nodes: a version ("1.7.0") or a specifier (">=1.7"); None for any.

    Raises:
        ConfigError: it is neither.
    """
    packages = (requirement("scikit-learn", version, where="sky.plugins.sklearn: version"), "joblib")
    return _plugin("sklearn", packages)


def _plugin(name: str, packages: tuple[str, ...]) -> Plugin:
    return (
        Plugin.create(name)
        .with_image_transform(_Packages(packages))
        .with_around_app(share_of_cpus)
        .with_around_client(_parallel_on)
    )


@dataclass(frozen=True)
class _Packages:
    """The transform: requirements, except that a bare name adds nothing where the image asks for that package."""

    requirements: tuple[str, ...]

    def __call__(self, image: Image, cluster: Cluster) -> Image:  # noqa: ARG002 - the same on all nodes
        known = {requirement_name(entry) for entry in image.pip}
        return image.pip_install(*(entry for entry in self.requirements if entry not in known))


@contextmanager
def _parallel_on(pool: ComputePool, cluster: Cluster) -> Iterator[None]:  # noqa: ARG001 - as hooks are called
    try:
        from skyward.plugins._joblib_backend import parallel_on
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "joblib":
            raise
        raise PluginError(
            "joblib is needed on this side too: install joblib, of the version the nodes have."
        ) from error
    with parallel_on(pool):
        yield
