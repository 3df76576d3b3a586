"""The parameters of a pool, checked before anything is created."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from skyward.errors import ConfigError
from skyward.model import parameters
from skyward.model.image import Image
from skyward.model.image_fields import local_minor, platform_of
from skyward.model.instance import ENV_VAR, AcceleratorInfo
from skyward.model.secrets import Secrets, check_variable, merged
from skyward.model.spec import Accelerator, Cluster, ClusterSpec, Nodes, Volume, Worker, volumes_of
from skyward.records.run import check_kept

if TYPE_CHECKING:
    from skyward.plugins import Plugin
    from skyward.providers.base import Provider
    from skyward.providers.fallback import Selection

ADDRESS = "SKYWARD_DESCRIBE"  # names a socket: a pool that is to be opened is described there instead
Display = Literal["auto", "quiet"]
N = TypeVar("N", bound=float | None)
L = TypeVar("L", bound=str)
C = TypeVar("C", bound=Callable[..., None])
_GIB = 1024**3
_BYTES = {
    **{unit + b: 10**power for power, unit in ((6, "M"), (9, "G"), (12, "T")) for b in ("", "B")},
    **{unit + b: 1024**power for power, unit in ((2, "MI"), (3, "GI"), (4, "TI")) for b in ("", "B")},
    "": 10**9,
}  # by unit in upper case
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_S = 10 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """A pool's parameters in their final form. `memory_gb` is in GiB, as machines and engines count it."""

    provider: Provider
    nodes: Nodes
    accelerator: Accelerator | None
    plugins: tuple[Plugin, ...]
    image: Image
    worker: Worker
    cpus: float | None
    memory_gb: float | None
    architecture: str | None
    env: tuple[tuple[str, str], ...] = field(repr=False)  # may hold secrets
    secrets: tuple[tuple[str, str], ...] = field(repr=False)
    volumes: tuple[Volume, ...]
    lease_s: float
    provision_timeout_s: float
    default_timeout_s: float | None
    display: Display
    name: str | None = None
    keep_s: float | None = None
    share: bool = True
    checkpoints: Path | None = None

    def __post_init__(self) -> None:
        platform_of(self.architecture)  # refuses an unknown one
        shared = self.worker.processes > self.worker.ranks
        if shared and self.nodes.desired > 1 and (names := [p.name for p in self.plugins if p.collective]):
            raise ConfigError(
                f"The plugin {names[0]!r} makes one group of the pool's ranks, but Worker(executor='process') gives a "
                "node several processes that share one rank. Use Worker(per_node=...), which gives each its own, or "
                "threads."
            )

    @property
    def platform(self) -> str:
        """The OCI platform of the nodes, unless the image names one."""
        return platform_of(self.architecture)

    @property
    def cluster(self) -> Cluster:
        """The planned cluster, as plugins see it."""
        python = self.image.python if self.image.python != "auto" else local_minor()
        spec = ClusterSpec(
            nodes=self.nodes.desired,
            accelerator=self.accelerator,
            platform=self.platform,
            python=python,
            workers_per_node=self.worker.ranks,
        )
        return Cluster(spec=spec)


def provider_of(value: Provider | Sequence[Provider] | None, selection: Selection | None) -> Provider:
    """Return the provider of a pool; `sky.Docker()` if none is given."""
    from skyward import providers

    given = tuple(value) if isinstance(value, list | tuple) else (providers.default() if value is None else value,)
    for each in given:
        if not isinstance(each, providers.Provider):
            raise ConfigError(
                f"provider= takes a provider such as sky.Docker() or sky.Local(); found {_instead_of_provider(each)}."
            )
    if isinstance(value, list | tuple):
        return providers.Fallback(given, "cheapest" if selection is None else selection)
    if selection is not None:
        raise ConfigError("selection= chooses among several providers; give provider= a list of them.")
    only: Provider = given[0]
    return only


def _instead_of_provider(found: object) -> str:
    """Describe a value that is not a provider, with the likely intention if it is recognised."""
    from skyward import providers

    if isinstance(found, type) and issubclass(found, providers.Provider):
        return f"the class {found.__name__}: write sky.{found.__name__}(...)"
    if isinstance(found, Image):
        return "an image: write image=sky.Image(...)"
    if isinstance(found, int) and not isinstance(found, bool):
        return f"{found!r}: for a number of nodes write nodes={found!r}"
    if isinstance(found, str):
        known = ("Docker", "Local", "SSH", "AWS", "GCP", "Compose", "Slurm", "Kubernetes")
        names = {name.lower(): name for name in known}
        if meant := names.get(found.lower()):
            return f"{found!r}: write sky.{meant}(...)"
    return repr(found)


def image_of(value: Image | None) -> Image:
    """Return the pool's image; `sky.Image()` if none is given.

    Raises:
        ConfigError: the value is not an image, the image is for another Python version, or an included file is missing
            or may not be sent.
    """
    given: object = value
    if given is not None and not isinstance(given, Image):
        meant = f": to start from that image write sky.Image(base={given!r})" if isinstance(given, str) else ""
        found = "the class Image: write sky.Image(...)" if given is Image else f"{value!r}{meant}"
        raise ConfigError(f"image= takes a sky.Image(...); found {found}.")
    # a user's module may construct, but not open, a pool on a node, where the client's files do not exist
    if value is not None and value.includes and ENV_VAR not in os.environ:
        from skyward.builder.files.included import included_files

        included_files(value.includes, value.excludes, Path.cwd())
    image = value or Image()
    if image.python != "auto":
        from skyward.image import check_python

        check_python(image, local_minor())
    return image


def one_of(name: str, value: L, *known: L) -> L:
    """Return the value of a parameter, which must be one of the known words."""
    if value not in known:
        raise ConfigError(f"{name} must be {' or '.join(map(repr, known))}; found {value!r}.")
    return value


def folder_of(name: str, value: str | Path | None) -> Path | None:
    """Return the absolute path of the directory that a parameter names; it may not exist yet."""
    if value is None:
        return None
    given: object = value
    if not isinstance(given, str | Path):
        raise ConfigError(f"{name}= names a directory; found {given!r}.")
    folder = Path(value).expanduser().absolute()
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{name}= names a directory; {folder} is not one.")
    check_kept(folder, f"{name}=")
    return folder


def accelerator_info(accelerator: Accelerator | None) -> AcceleratorInfo | None:
    """Return the description of an accelerator that is passed to nodes."""
    if accelerator is None:
        return None
    return AcceleratorInfo(
        type=accelerator.name,
        count=accelerator.count,
        memory_gb=accelerator.memory_gb,
        is_trainium=accelerator.is_trainium,
    )


def worker_of(worker: Worker | None, concurrency: int | None, accelerator: Accelerator | None) -> Worker:
    """Return the worker, from one of its two parameters, for nodes with this accelerator."""
    if worker is not None and concurrency is not None:
        raise ConfigError("Give either worker=Worker(concurrency=...) or concurrency=, not both.")
    given: object = worker
    if given is not None and not isinstance(given, Worker):
        meant = f": for as many calls at once on a node write concurrency={given}" if isinstance(given, int) else ""
        raise ConfigError(f"worker= takes a sky.Worker(...); found {given!r}{meant}.")
    return (worker or Worker(concurrency=1 if concurrency is None else concurrency)).on(accelerator)


def plugins_of(value: object, volumes: tuple[Volume, ...] = ()) -> tuple[Plugin, ...]:
    """Return the pool's plugins, checked; the plugin that mounts its volumes, if any, comes first."""
    from skyward.plugins import check

    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"plugins= takes a list such as [sky.plugins.torch()]; found {value!r}.")
    plugins = tuple(value)
    if volumes:
        from skyward.plugins._volumes import mounting

        plugins = (mounting(volumes), *plugins)
    check(plugins)
    return plugins


def volumes_on(provider: Provider, value: object) -> tuple[Volume, ...]:
    """Return the pool's volumes.

    Raises:
        ConfigError: the value is not a volume, or the provider's nodes may not mount file systems.
    """
    volumes = volumes_of(value or None)
    if volumes and not provider.capabilities.mounts:
        unable = [each for each in getattr(provider, "providers", (provider,)) if not each.capabilities.mounts]
        names = " and ".join(f"sky.{type(each).__name__}" for each in unable)
        raise ConfigError(f"{names} nodes cannot mount volumes. Use sky.Docker, sky.SSH or a cloud.")
    return volumes


def memory_of(memory: str | float | None) -> float | None:
    """Return GiB of memory per node, from "32GB" or 32 (1 GB is 10**9 bytes, 1 GiB 1024**3)."""
    amount, unit = None if isinstance(memory, str) else memory, ""
    if isinstance(memory, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", memory)
        if match is None or match[2].upper() not in _BYTES:
            raise ConfigError(f"memory= takes an amount such as '32GB', '512MB' or '4GiB'; found {memory!r}.")
        amount, unit = float(match[1]), match[2].upper()
    amount = positive("memory", amount)
    return None if amount is None else amount * _BYTES[unit] / _GIB


def name_of(name: str | None, keep: str | float | None) -> str | None:
    """Check and return `name=`, under which a kept pool is found again."""
    if name is None:
        if keep is not None:
            raise ConfigError("keep= is for a pool with a name, by which the next client finds it: give name= as well.")
        return None
    from skyward.records.kept_pool import pool_folder

    given: object = name
    if not isinstance(given, str):
        raise ConfigError(f"name= takes a string; found {given!r}.")
    pool_folder(name)
    return name


def seconds_of(name: str, value: str | float | None) -> float | None:
    """Return a duration in seconds, from a number or a string such as "90s", "30m", "2h" or "1d"."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", value)
        if match is None:
            raise ConfigError(f"{name}= takes seconds, or a string such as '90s', '30m' or '2h'; found {value!r}.")
        value = float(match[1]) * _SECONDS[match[2]]
    if value is not None and (not _is_positive(value) or value > _LONGEST_S):
        raise ConfigError(f"{name}= must be above 0 seconds and at most {_LONGEST_S / 86400:g} days; found {value!r}.")
    return value


def positive(name: str, value: N) -> N:
    """Return the value; raise ConfigError unless it is None or a number above 0."""
    if value is not None and not _is_positive(value):
        unit = " of seconds" if "timeout" in name or name == "ttl" else ""
        raise ConfigError(f"{name}= takes a number{unit} above 0; found {value!r}.")
    return value


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def env_of(env: Mapping[Any, Any] | None) -> tuple[tuple[str, str], ...]:
    """Return the run-time environment as sorted pairs; values must be text."""
    given: object = env
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"env= takes a mapping from names to strings, such as {{'A': '1'}}; found {given!r}.")
    for name, value in (env or {}).items():
        check_variable(name, "env")
        if not isinstance(value, str) or "\0" in value:
            text = "" if isinstance(value, str) else f": write {name!r}: {str(value)!r}"
            raise ConfigError(f"env: the value of {name} must be text without NUL; found {type(value).__name__}{text}.")
    return tuple(sorted((env or {}).items()))


def secrets_of(given: object, plugins: Sequence[Plugin], env: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Return the names and values of the secrets of the caller and the plugins.

    Raises:
        ConfigError: a variable is not set, has two values, or is in `env` as well, where it would not be secret.
    """
    sources = [("secrets", Secrets.of(() if given is None else given))]
    sources += [(f"Plugin {plugin.name!r}: secrets", plugin.secrets) for plugin in plugins]
    if ENV_VAR not in os.environ:  # a user's module may construct, but not open, a pool on a node
        what = "Plugin {!r}: secrets of the pool"
        makers = [(what.format(each.name), each.pool_secrets) for each in plugins if each.pool_secrets is not None]
        sources += [(what, Secrets.of(make(), what)) for what, make in makers]
    values = merged(sources, os.environ)
    if shown := sorted(values.keys() & (env or {}).keys()):
        raise ConfigError(
            f"{', '.join(shown)} is among the pool's secrets and in env=, which is visible to whoever may use the "
            "engine; take it out of env=."
        )
    return tuple(values.items())


def checked_names(init: C) -> C:
    """Decorate a pool's constructor so that it raises ConfigError for unknown parameters."""
    known = [name for name in init.__annotations__ if name not in ("others", "return")]

    @functools.wraps(init)
    def checked(*args: Any, **given: Any) -> None:
        for value in args[2:]:
            meant = "nodes" if isinstance(value, int | tuple | Nodes) else "image" if isinstance(value, Image) else ""
            remedy = f"Pass {value!r} as {meant}={value!r}." if meant else f"Pass {value!r} by its name, as in nodes=2."
            raise ConfigError(f"ComputePool takes one positional argument, the provider. {remedy}")
        parameters.refuse_unknown("ComputePool", given, known)
        init(*args, **given)

    return cast(C, checked)
