"""What a caller asks of a pool, checked as a whole before anything is created."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from skyward.errors import ConfigError
from skyward.model.accelerator import Accelerator
from skyward.model.image import Image
from skyward.model.instance import ENV_VAR, AcceleratorInfo
from skyward.model.secrets import Secrets, check_variable, merged
from skyward.model.spec import Cluster, ClusterSpec, Nodes, Worker
from skyward.model.targets import local_minor
from skyward.model.volume import Volume, volumes_of

if TYPE_CHECKING:
    from skyward.plugins import Plugin
    from skyward.providers.base import Provider, Terms
    from skyward.providers.choice import Selection

Display = Literal["auto", "quiet"]
Results = Literal["any", "data"]
N = TypeVar("N", bound=float | None)
_GIB = 1024**3
_BYTES = {
    **{unit + b: 10**power for power, unit in ((6, "M"), (9, "G"), (12, "T")) for b in ("", "B")},
    **{unit + b: 1024**power for power, unit in ((2, "MI"), (3, "GI"), (4, "TI")) for b in ("", "B")},
    "": 10**9,
}  # by the unit in capitals
# parameters of elastic pools; none of today's providers can honour them
_OF_ELASTIC_POOLS = frozenset(
    {"autoscale_cooldown", "autoscale_idle_timeout", "max_provision_attempts", "provision_retry_delay"}
    | {"reconcile_tick_interval", "ssh_retry_interval", "ssh_timeout"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """A pool's parameters in their final form. `memory_gb` is in GiB, as machines and engines count it."""

    provider: Provider
    nodes: Nodes
    accelerator: Accelerator | None
    plugins: tuple[Plugin, ...]
    image: Image
    worker: Worker
    cpus: float | None
    memory_gb: float | None
    platform: str
    env: tuple[tuple[str, str], ...] = field(repr=False)  # may hold secrets
    secrets: tuple[tuple[str, str], ...] = field(repr=False)
    volumes: tuple[Volume, ...]
    lease_s: float
    provision_timeout_s: float
    default_timeout_s: float | None
    display: Display
    results: Results = "any"

    def __post_init__(self) -> None:
        shared = self.worker.processes > self.worker.ranks
        if shared and self.nodes.desired > 1 and (names := [p.name for p in self.plugins if p.collective]):
            raise ConfigError(
                f"The plugin {names[0]!r} makes one group of the pool's ranks, but Worker(executor='process') gives a "
                "node several processes that share one rank. Use Worker(per_node=...), which gives each its own, or "
                "threads."
            )

    @property
    def cluster(self) -> Cluster:
        """The plan that plugins see."""
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
    """The provider of a pool; containers of the engine on this machine when none is given."""
    from skyward import providers

    given = tuple(value) if isinstance(value, list | tuple) else (providers.default() if value is None else value,)
    for each in given:
        if not hasattr(each, "acquire"):
            raise ConfigError(f"provider= takes a provider such as sky.Docker() or sky.Local(); found {each!r}.")
    if isinstance(value, list | tuple):
        return providers.Choice(given, "cheapest" if selection is None else selection)
    if selection is not None:
        raise ConfigError("selection= chooses among several providers; give provider= a list of them.")
    only: Provider = given[0]
    return only


def on_terms(provider: Provider, terms: Terms) -> Provider:
    """The provider for a pool on these terms.

    Raises:
        ConfigError: they ask for something about rented machines, and the provider rents none.
    """
    if (on := getattr(provider, "on", None)) is not None:
        rented: Provider = on(terms)
        return rented
    if (asked := terms.of_rented_machines) is not None:
        raise ConfigError(f"{asked}= is for providers of rented machines; sky.{type(provider).__name__} rents none.")
    return provider


def image_of(value: Image | None, verify: str | None = None) -> Image:
    """The image of a pool, and the key that must have signed it; a plain one when none is given.

    Raises:
        ConfigError: it is none, or what it includes is missing or not to be sent; there is no such key.
    """
    if value is not None and not isinstance(value, Image):
        raise ConfigError(f"image= takes a sky.Image(...); found {value!r}.")
    # on a node a module of the user's may make a pool that is never opened there, and the client's files are not there
    if value is not None and value.includes and ENV_VAR not in os.environ:
        from skyward.build.included import included_files

        included_files(value.includes, value.excludes, Path.cwd())
    image = value or Image()
    key = verify or image.verify
    if key is not None and ENV_VAR not in os.environ and not Path(key).expanduser().is_file():
        raise ConfigError(f"verify= names the file of a public key; there is no {key!r}.")
    return replace(image, verify=key) if key != image.verify else image


def display_of(value: str) -> Display:
    """How much a pool shows."""
    if value not in ("auto", "quiet"):
        raise ConfigError(f"display must be 'auto' or 'quiet'; found {value!r}.")
    return "auto" if value == "auto" else "quiet"


def results_of(value: str) -> Results:
    """What a pool reads of its nodes."""
    if value not in ("any", "data"):
        raise ConfigError(f"results must be 'any' or 'data'; found {value!r}.")
    return "data" if value == "data" else "any"


def accelerator_info(accelerator: Accelerator | None) -> AcceleratorInfo | None:
    """What nodes are told of their accelerators."""
    if accelerator is None:
        return None
    return AcceleratorInfo(
        type=accelerator.name,
        count=accelerator.count,
        memory_gb=accelerator.memory_gb,
        is_trainium=accelerator.is_trainium,
    )


def worker_of(worker: Worker | None, concurrency: int | None, accelerator: Accelerator | None) -> Worker:
    """The worker shape meant by two parameters of which one may be given, on nodes with this accelerator."""
    if worker is not None and concurrency is not None:
        raise ConfigError("Give either worker=Worker(concurrency=...) or concurrency=, not both.")
    return (worker or Worker(concurrency=1 if concurrency is None else concurrency)).on(accelerator)


def plugins_of(value: object, volumes: tuple[Volume, ...] = ()) -> tuple[Plugin, ...]:
    """The pool's plugins, checked; those that mount its volumes come first."""
    from skyward.plugins import check

    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"plugins= takes a list such as [sky.plugins.torch()]; found {value!r}.")
    plugins = tuple(value)
    if volumes:
        from skyward.plugins._volumes import mounting

        plugins = (mounting(volumes), *plugins)
    check(plugins)
    return plugins


def volumes_on(provider: Provider, value: object, other: object) -> tuple[Volume, ...]:
    """The pool's volumes, from its two spellings.

    Raises:
        ConfigError: they are none, or the provider's nodes cannot mount anything.
    """
    if value and other:
        raise ConfigError("volumes= and volume= mean the same; give one of them.")
    volumes = volumes_of(value or other or None)
    if volumes and not getattr(provider, "can_mount", False):
        raise ConfigError(
            f"volumes= takes nodes that may mount, which those of {provider.name} may not: use sky.Docker, sky.SSH or "
            "sky.AWS."
        )
    return volumes


def memory_of(memory: str | float | None, memory_gb: float | None) -> float | None:
    """GiB of memory per node, from `memory="32GB"` or `memory_gb=32`: a GB has 10**9 bytes, a GiB 1024**3."""
    if memory is not None and memory_gb is not None:
        raise ConfigError("Give either memory= or memory_gb=, not both.")
    amount, unit = memory_gb, "GB"
    if memory is not None:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(memory))
        if match is None or match[2].upper() not in _BYTES:
            raise ConfigError(f"memory= takes an amount such as '32GB', '512MB' or '4GiB'; found {memory!r}.")
        amount, unit = float(match[1]), match[2].upper()
    amount = positive("memory", amount)
    return None if amount is None else amount * _BYTES[unit] / _GIB


def either(name: str, first: float | None, other: str, second: float | None) -> float | None:
    """The one of two spellings that was given."""
    if first is not None and second is not None:
        raise ConfigError(f"{name}= and {other}= mean the same; give one of them.")
    return first if first is not None else second


def positive(name: str, value: N) -> N:
    """The value, refused unless it is a number above 0 (or None)."""
    if value is not None and not _is_positive(value):
        raise ConfigError(f"{name} must be a number above 0; found {value!r}.")
    return value


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and value > 0


def env_of(env: Mapping[Any, Any] | None) -> tuple[tuple[str, str], ...]:
    """The run-time environment as sorted pairs; values must be text."""
    for name, value in (env or {}).items():
        check_variable(name, "env")
        if not isinstance(value, str) or "\0" in value:
            raise ConfigError(f"env: the value of {name} must be text without NUL; found {type(value).__name__}.")
    return tuple(sorted((env or {}).items()))


def secrets_of(given: object, plugins: Sequence[Plugin], env: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """The values of the secrets that the caller and the plugins name, as pairs.

    Raises:
        ConfigError: a variable is not set, has two values, or is in `env` as well, where it would not be secret.
    """
    sources = [("secrets", Secrets.of(() if given is None else given))]
    sources += [(f"Plugin {plugin.name!r}: secrets", plugin.secrets) for plugin in plugins]
    values = merged(sources, os.environ)
    if shown := sorted(values.keys() & (env or {}).keys()):
        raise ConfigError(
            f"{', '.join(shown)} is among the pool's secrets and in env=, which is visible to whoever may use the "
            "engine; take it out of env=."
        )
    return tuple(values.items())


def refuse_unknown(others: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise for parameters this pool does not have; none is ignored."""
    for name in others:
        if name in _OF_ELASTIC_POOLS:
            raise ConfigError(f"{name}= is not supported: no provider of today can honour it.")
        from difflib import get_close_matches  # 5 ms that a command line without mistakes saves

        close = get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}=?" if close else "."
        raise ConfigError(f"ComputePool has no parameter {name!r}{hint}")
