"""Compute Engine's catalogue: the machine types that a pool can run on, in which zones, and at which price.

The compute API knows no prices. They are in the public price list of the Cloud Billing API, which has one entry for
each part of a machine (processor, GiB of memory, GPU), market and region, which its description alone tells apart. It
is some megabytes long, so it is read once a day.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skyward.builder.cache import cache_path, read, write
from skyward.errors import ConfigError, ProviderError
from skyward.providers.base import PoolRequest
from skyward.providers.cloud.base import MachineOffer, MachineType, Market
from skyward.providers.cloud.cost import suitable
from skyward.providers.gcp.api import Api
from skyward.system import time
from skyward.system.futures import ThreadPoolExecutor

# by a GPU's common name: the family of machine types that has it, and Google's names for it
_GPUS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "T4": ("n1", ("nvidia-tesla-t4",)), "V100": ("n1", ("nvidia-tesla-v100",)), "P100": ("n1", ("nvidia-tesla-p100",)),
    "P4": ("n1", ("nvidia-tesla-p4",)), "L4": ("g2", ("nvidia-l4",)), "B200": ("a4", ("nvidia-b200",)),
    "A100": ("a2", ("nvidia-tesla-a100", "nvidia-a100-80gb")), "A100-80GB": ("a2", ("nvidia-a100-80gb",)),
    "H100": ("a3", ("nvidia-h100-80gb", "nvidia-h100-mega-80gb")), "H200": ("a3", ("nvidia-h200-141gb",)),
}  # fmt: skip
_ATTACHED = "n1"  # the family whose machines have no GPU by themselves, and get some
_CPUS_PER_GPU = {"T4": 24, "P4": 24, "P100": 16, "V100": 12}  # that such a machine may have at most
_CPU_FAMILIES = {"linux/amd64": "(e2|n2|n2d|n4|c3|c3d|c4)", "linux/arm64": "(t2a|c4a|n4a)"}
_log = logging.getLogger(__name__)
_DAY_S = 86400.0
_FIELDS = "nextPageToken,skus(description,serviceRegions,category/usageType,pricingInfo/pricingExpression/tieredRates)"
_MARKETS: Mapping[str, Market] = {"OnDemand": "on-demand", "Preemptible": "spot"}
_OTHERS = re.compile(r"custom|sole tenancy|reserved|premium|suspended|commitment|dws|calendar", re.IGNORECASE)
_PART = re.compile(r"(?:spot preemptible )?([a-z]\d+[a-z]*) .*\b(core|ram) running in")
_GPU = re.compile(r"(?:spot preemptible )?nvidia (.+?) gpu\b.* running in")


@dataclass(frozen=True, slots=True)
class _Listed:
    """A machine type in a zone, with Google's name for its GPU."""

    type: MachineType
    zone: str
    gpu: str


def attached(request: PoolRequest, type_: MachineType) -> list[dict[str, Any]]:
    """The GPUs that a machine of a type must be given at its launch."""
    if request.accelerator is None or not type_.name.startswith(f"{_ATTACHED}-"):
        return []
    return [{"accelerator_type": _gpu(request)[1][0], "accelerator_count": type_.gpus}]


def find_offers(api: Api, request: PoolRequest, markets: Sequence[Market]) -> list[MachineOffer]:
    """The offers of the region for a pool: in the order of the types, then of the zones.

    Raises:
        ConfigError: Google has no such accelerator.
        ProviderError: the region has no such type.
    """
    zones = sorted(each.name for each in api.all("zones", filter=f'name eq "{api.region}-.*"') if each.status == "UP")
    with ThreadPoolExecutor(max(1, len(zones)), thread_name_prefix="skyward-types") as threads:
        listed = [each for found in threads.map(lambda zone: _types(api, request, zone), zones) for each in found]
    types = suitable(list({each.type.name: each.type for each in listed}.values()), request, api.region)
    prices = find_prices(api)
    return [
        MachineOffer(type=each.type, market=market, zone=each.zone, hourly=_hourly(prices, each, market))
        for wanted in types
        for each in listed
        for market in markets
        if each.type.name == wanted.name
    ]


def _gpu(request: PoolRequest) -> tuple[str, tuple[str, ...]]:
    name = request.accelerator.name if request.accelerator else ""
    if name not in _GPUS:
        raise ConfigError(
            f"sky.GCP() knows no machine with the accelerator {name!r}; it knows {', '.join(sorted(_GPUS))}. Or name "
            "the machine type (machine='a3-highgpu-8g')."
        )
    return _GPUS[name]


def _types(api: Api, request: PoolRequest, zone: str) -> list[_Listed]:
    """The machine types of a zone by the pool's name for one, else with its GPUs, else the plain ones."""
    wanted = _gpu(request) if request.accelerator is not None else ("", ())
    family = wanted[0] or _CPU_FAMILIES[request.platform]
    name = request.machine or f"{family}-[a-z]+(-[0-9]+g?)+"
    most, count, cpus = 0, 0, 0
    if family == _ATTACHED:
        for each in api.all("accelerator_types", zone=zone, filter=f'name eq "{wanted[1][0]}"'):
            most = each.maximum_cards_per_instance
        count = next((number for number in (1, 2, 4, 8) if request.gpus <= number <= most), 0)
        cpus = count * _CPUS_PER_GPU[request.accelerator.name] if request.accelerator else 0
    found = []
    for each in api.all("machine_types", zone=zone, filter=f'name eq "{name}"'):
        own = next(iter(each.accelerators), None)
        gpu, gpus = (own.guest_accelerator_type, own.guest_accelerator_count) if own else ("", 0)
        if count and each.guest_cpus <= cpus:
            gpu, gpus = wanted[1][0], count
        if each.name == request.machine or (gpu in wanted[1] if wanted[1] else not gpu and not each.is_shared_cpu):
            found.append(_Listed(_machine_type(each, gpus), zone, gpu))
    return found


def _machine_type(found: Any, gpus: int) -> MachineType:
    is_arm = found.architecture == "ARM64"
    return MachineType(
        name=found.name,
        cpus=found.guest_cpus,
        memory_gb=found.memory_mb / 1024,
        platform="linux/arm64" if is_arm else "linux/amd64",
        gpus=gpus,
    )


def _hourly(prices: Prices, each: _Listed, market: Market) -> float | None:
    """USD per hour of a machine: its processors, memory and GPUs are priced one by one."""
    family, kind, *_ = each.type.name.split("-")
    if family == "a3" and kind in ("megagpu", "ultragpu"):
        family = {"megagpu": "a3plus", "ultragpu": "a3ultra"}[kind]
    parts = [
        (prices.part(market, family, "core"), each.type.cpus),
        (prices.part(market, family, "ram"), each.type.memory_gb),
    ]
    if each.gpu:
        parts.append((prices.gpu(market, each.gpu), each.type.gpus))
    known = [price * count for price, count in parts if price is not None]
    return sum(known) if len(known) == len(parts) else None


@dataclass(frozen=True, slots=True)
class Prices:
    """USD per hour by market and part; a part that is not listed has no price."""

    usd: Mapping[str, float]

    def part(self, market: Market, family: str, part: str) -> float | None:
        """Of one processor ("core") or GiB ("ram") of a family of machine types."""
        return self.usd.get(f"{market} {family} {part}")

    def gpu(self, market: Market, name: str) -> float | None:
        """Of one GPU, by Google's name of it."""
        return self.usd.get(f"{market} {_gpu_key(name.removeprefix('nvidia-'))}")


def find_prices(api: Api) -> Prices:
    """The prices of the region. A warning says why there are none."""
    kept = cache_path("gcp-prices", f"{api.region}.json")
    try:
        found = json.loads(read(kept) or "{}")
        if 0 <= time.time() - found.get("at", 0) < _DAY_S:
            return Prices(found["usd"])
    except (ValueError, KeyError, AttributeError):
        pass  # half written, or of another version: it is made anew
    try:
        prices = dict(_listed(api))
    except ProviderError as error:
        _log.warning("Prices are not known: %s Enable cloudbilling.googleapis.com in project %s.", error, api.project)
        return Prices({})
    if prices:
        write(kept, json.dumps({"at": time.time(), "usd": prices}))
    return Prices(prices)


def _listed(api: Api) -> Iterator[tuple[str, float]]:
    query = {"pageSize": "5000", "fields": _FIELDS}
    while True:
        page = api.price_list(**query)
        for sku in page.get("skus", ()):
            if api.region in sku.get("serviceRegions", ()) and (entry := _entry(sku)):
                yield entry
        if not page.get("nextPageToken"):
            return
        query["pageToken"] = page["nextPageToken"]


def _entry(sku: Mapping[str, Any]) -> tuple[str, float] | None:
    """Key and price of an entry of the list; None where it is no part of a plain machine."""
    text, market = sku["description"], _MARKETS.get(sku["category"]["usageType"])
    if market is None or _OTHERS.search(text):
        return None
    part, gpu = _PART.match(text.lower()), _GPU.match(text.lower())
    if not (part or gpu):
        return None
    price = sku["pricingInfo"][0]["pricingExpression"]["tieredRates"][-1]["unitPrice"]
    key = f"{part[1]} {part[2]}" if part else _gpu_key(gpu[1]) if gpu else ""
    return f"{market} {key}", int(price.get("units", 0)) + price.get("nanos", 0) / 1e9


def _gpu_key(name: str) -> str:
    """The same for "nvidia-h100-mega-80gb" and "Nvidia H100 80GB Plus": the words come in another order."""
    words = re.split(r"[ -]", name.lower().replace("plus", "mega"))
    return " ".join(sorted(word for word in words if word != "tesla"))
