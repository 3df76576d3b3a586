"""The providers of a script's pools, found by reading it; nothing of it is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skyward.builder.sources.declared import ProviderUse
from skyward.builder.sources.static_eval import Interpreter, PoolCall, Reading, Source, Unknown
from skyward.errors import ConfigError
from skyward.model.spec import volumes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredPool:
    """A pool of a script.

    Attributes:
        where: file and line, for messages.
        providers: where its nodes may be, in the order in which they are tried.
        secrets: the variables of the client whose values it gives to workers.
        has_volumes: whether it mounts volumes.
        is_verified: whether the signature of its image is checked.
        machines: the parameters that say which machines are rented for it, as far as they are given.
    """

    where: str
    providers: tuple[ProviderUse, ...]
    secrets: tuple[str, ...]
    has_volumes: bool
    is_verified: bool
    machines: Mapping[str, Any]

    def unknown_machines(self) -> str | None:
        """The name of a parameter of `machines` that only a run of the script can tell; None if there is none."""
        return next((name for name, value in self.machines.items() if _is_unknown(value)), None)


def declared_pools(path: Path) -> list[DeclaredPool]:
    """The pools that a script, or what it imports from beside it, opens; in the order in which they are met.

    Raises:
        ConfigError: the script cannot be read, or where a pool runs is known only when the script runs.
    """

    def on_pool(call: PoolCall, reading: Reading) -> None:
        call.result = _pool(call, reading)

    found: list[DeclaredPool] = []
    for call in Interpreter(Source(path), on_pool).run().pools:
        if call.result not in found:
            found.append(call.result)
    return found


def _pool(call: PoolCall, reading: Reading) -> DeclaredPool:
    given = call.arguments
    where = f"{call.module.source.path}, {call.module.source.place(call.node.lineno)}"
    first = given.args[0] if given.args else given.kwargs.get("provider")
    if given.rest is not None or reading.patched:
        raise ConfigError(f"{where}: what this pool is made of is known only when the program runs. {_REMEDY}")
    secrets = given.kwargs.get("secrets") or ()
    if isinstance(secrets, Unknown):
        raise ConfigError(f"{where}: the names in secrets= are known only when the program runs. {_REMEDY}")
    names = [key if isinstance(key, str) else "" for key in secrets] if not isinstance(secrets, dict) else []
    volumes = given.kwargs.get("volumes") or given.kwargs.get("volume")
    return DeclaredPool(
        where=where,
        providers=tuple(_providers(first, where)),
        secrets=tuple(name for name in names if name),
        has_volumes=isinstance(volumes, Unknown) or bool(volumes_of(volumes)),
        is_verified=given.kwargs.get("verify") is not None,
        machines={name: given.kwargs[name] for name in _MACHINES if name in given.kwargs},
    )


def _is_unknown(value: Any) -> bool:
    return isinstance(value, Unknown) or (isinstance(value, list | tuple) and any(map(_is_unknown, value)))


def _providers(value: Any, where: str) -> list[ProviderUse]:
    if value is None:
        return [ProviderUse(name="Docker", where=where)]
    if isinstance(value, list | tuple):
        return [use for each in value for use in _providers(each, where)]
    if not isinstance(value, ProviderUse):
        raise ConfigError(f"{where}: where this pool runs is known only when the program runs. {_REMEDY}")
    if value.name == "Fallback":
        return [use for each in value.args for use in _providers(each, where)]
    return [value]


# parameters of a pool that say which machines are rented for it
_MACHINES = (
    *("nodes", "accelerator", "cpu", "vcpus", "memory", "memory_gb", "architecture", "machine", "allocation"),
    *("max_hourly_cost", "budget"),
)
_REMEDY = (
    "A detached run has to know it before it starts: write the provider with constants, such as sky.SSH('gpu1'), or "
    "run the program without --detach."
)
