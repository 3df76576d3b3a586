"""`sky.plugins.joblib` and `sky.plugins.sklearn`: `Parallel`, and scikit-learn's `n_jobs`, on the pool's nodes.

Nodes run batches of calls, restore the client's warning filters, and limit threads to a share of the CPUs. Standard
library only at import: images and joblib are imported where they are used.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from skyward.errors import PluginError
from skyward.model.instance import SETTINGS_VAR, InstanceInfo
from skyward.plugins._ranks import cpus, nodes_here
from skyward.plugins.base import Plugin, add_missing, versioned
from skyward.runner.config import RunnerSettings

if TYPE_CHECKING:
    from skyward.model.call import OpenPool
    from skyward.model.spec import Cluster

# read at import by the libraries whose threads joblib limits in its own processes
_THREADS = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS", "NUMEXPR_NUM_THREADS",
)  # fmt: skip

Item = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]


def joblib(version: str | None = None) -> Plugin:
    """While the pool is open, `joblib.Parallel` runs on its nodes in the thread that opened it.

    `n_jobs=-1` means all slots of the pool, a smaller number limits the concurrent calls. Nested parallelism inside the
    calls is sequential. Needs joblib here as well, in the nodes' version.

    Args:
        version: of joblib on the nodes: a version ("1.5.1") or a specifier (">=1.5"); None for any.

    Raises:
        ConfigError: it is neither.
    """
    return _plugin("joblib", "joblib", version)


def sklearn(version: str | None = None) -> Plugin:
    """scikit-learn on the nodes; everything in it that takes `n_jobs` runs there while the pool is open.

    Adds joblib as well, in the version that the image requires, if any. Needs scikit-learn here too, in the nodes'
    version.

    Args:
        version: of scikit-learn on the nodes: a version ("1.7.0") or a specifier (">=1.7"); None for any.

    Raises:
        ConfigError: it is neither.
    """
    return _plugin("sklearn", "scikit-learn", version, "joblib")


def _plugin(name: str, package: str, version: str | None, *others: str) -> Plugin:
    packages = (versioned(package, version, where=f"sky.plugins.{name}: version"), *others)
    return (
        Plugin.create(name)
        .with_image_transform(lambda image, _cluster: add_missing(image, *packages))
        .with_around_app(share_of_cpus)
        .with_around_client(_parallel_on)
    )


@contextmanager
def _parallel_on(pool: OpenPool, cluster: Cluster) -> Iterator[None]:  # noqa: ARG001 - as hooks are called
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


def run_batch(items: Sequence[Item], nesting_level: int, versions: tuple[tuple[str, str], ...]) -> list[Any]:
    """Run the calls of a batch one after the other; nested parallelism is sequential here.

    Args:
        items: functions with their arguments.
        nesting_level: of the backend that `Parallel` uses inside these calls.
        versions: of the client's packages, by the name of their module.

    Returns:
        The results.
    """
    from joblib import parallel_config
    from joblib.parallel import SequentialBackend

    _compare(versions)
    with parallel_config(backend=SequentialBackend(nesting_level=nesting_level), n_jobs=None):
        return [fn(*args, **kwargs) for fn, args, kwargs in items]


@lru_cache(maxsize=1)
def _compare(versions: tuple[tuple[str, str], ...]) -> None:
    """Warn once if this node has another version of a package whose objects are sent: errors do not name the cause."""
    for name, theirs in versions:
        ours = getattr(sys.modules.get(name), "__version__", theirs)
        if ours.split(".")[:2] != theirs.split(".")[:2]:
            sys.stderr.write(
                f"skyward: this node has {name} {ours}, the client has {theirs}. Objects of one may not work in the "
                f"other: give the plugin the client's version, as in sky.plugins.{name}(version={theirs!r}).\n"
            )


def restored_filters(entries: tuple[bytes, ...]) -> list[Any]:
    """Return the client's warning filters, without those whose category cannot be imported here."""
    found = []
    for entry in entries:
        with suppress(Exception):  # its category is a class that this node does not have, and never warns with
            found.append(pickle.loads(entry))
    return found


@contextmanager
def share_of_cpus(info: InstanceInfo) -> Iterator[None]:
    """Limit numerical libraries to this call's share of the CPUs (the plugin's `around_app` hook).

    Variables set by the image, the pool's `env` or the node are unchanged.
    """
    settings = RunnerSettings.from_json(os.environ[SETTINGS_VAR])
    threads = max(1, cpus(nodes_here(info)) // (settings.processes * settings.slots))
    for name in _THREADS:
        os.environ.setdefault(name, str(threads))
    yield
