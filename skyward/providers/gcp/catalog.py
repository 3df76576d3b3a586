"""Compute Engine's catalogue: the machine types that a pool can run on, their zones, and their prices.

The compute API has no prices. They are in the public price list of the Cloud Billing API, which has one entry for each
part of a machine (processor, GiB of memory, GPU), market and region, distinguished only by its description. The list
has several megabytes, so it is read once a day.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from skyward.builder.folders import cache_path, read, write
from skyward.errors import ProviderError
from skyward.providers.base import PoolRequest
from skyward.providers.cloud.base import MachineOffer, MachineType, Market, at_once
from skyward.providers.cloud.cost import of_accelerator, suitable
from skyward.providers.gcp.api import Api
from skyward.system import time

# by the common name of a GPU: the family of machine types that has it, and Google's names for it
_GPUS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "T4": ("n1", ("nvidia-tesla-t4",)), "V100": ("n1", ("nvidia-tesla-v100",)), "P100": ("n1", ("nvidia-tesla-p100",)),
    "P4": ("n1", ("nvidia-tesla-p4",)), "L4": ("g2", ("nvidia-l4",)), "B200": ("a4", ("nvidia-b200",)),
    "A100": ("a2", ("nvidia-tesla-a100", "nvidia-a100-80gb")), "A100-80GB": ("a2", ("nvidia-a100-80gb",)),
    "H100": ("a3", ("nvidia-h100-80gb", "nvidia-h100-mega-80gb")), "H200": ("a3", ("nvidia-h200-141gb",)),
}  # fmt: skip
_ATTACHED = "n1"  # the family of machines to which GPUs are attached
_CPUS_PER_GPU = {"t4": 24, "p4": 24, "p100": 16, "v100": 12}  # maximum for such a machine
_CPU_FAMILIES = {"linux/amd64": "(e2|n2|n2d|n4|c3|c3d|c4)", "linux/arm64": "(t2a|c4a|n4a)"}
_log = logging.getLogger(__name__)
_DAY_S = 86400.0
_FIELDS = "description,serviceRegions,category/usageType,pricingInfo/pricingExpression/tieredRates"
_MARKETS: Mapping[str, Market] = {"OnDemand": "on-demand", "Preemptible": "spot"}
_OTHERS = re.compile(r"custom|sole tenancy|reserved|premium|suspended|commitment|dws|calendar", re.IGNORECASE)
_PART = re.compile(r"(?:spot preemptible )?([a-z]\d+[a-z]*) .*\b(core|ram) running in")
_GPU = re.compile(r"(?:spot preemptible )?nvidia (.+?) gpu\b.* running in")


class _Listed(NamedTuple):
    """A machine type in a zone, with Google's name for its GPU."""

    type: MachineType
    zone: str
    gpu: str


def attached(request: PoolRequest, type_: MachineType) -> list[dict[str, Any]]:
    """Return the GPUs that have to be attached to a machine of a type at its launch."""
    _, gpus = _gpu(request)
    if not gpus or not type_.name.startswith(f"{_ATTACHED}-"):
        return []
    return [{"accelerator_type": gpus[0], "accelerator_count": type_.gpus}]


def find_offers(api: Api, request: PoolRequest, markets: Sequence[Market]) -> list[MachineOffer]:
    """Return the offers of the region for a pool, ordered by type, then by zone.

    Raises:
        ConfigError: Google has no such accelerator.
        ProviderError: the region has no such type.
    """
    zones = sorted(each.name for each in api.all("zones", filter=f'name eq "{api.region}-.*"') if each.status == "UP")
    listed = [each for found in at_once(lambda zone: _types(api, request, zone), zones) for each in found]
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
    """Return family and names of the pool's GPU; empty if it requests none."""
    example = "the machine type (machine='a3-highgpu-8g')"
    return of_accelerator(_GPUS, request, ("", ()), "sky.GCP()", example)


def _types(api: Api, request: PoolRequest, zone: str) -> list[_Listed]:
    """Return the machine types of a zone: the one named by the pool, else those with its GPUs, else those without."""
    family, gpus = _gpu(request)
    name = request.machine or f"{family or _CPU_FAMILIES[request.platform]}-[a-z]+(-[0-9]+g?)+"
    most, count = 0, 0
    if family == _ATTACHED:
        for each in api.all("accelerator_types", zone=zone, filter=f'name eq "{gpus[0]}"'):
            most = each.maximum_cards_per_instance
        count = next((number for number in (1, 2, 4, 8) if request.gpus <= number <= most), 0)
    found = []
    for each in api.all("machine_types", zone=zone, filter=f'name eq "{name}"'):
        own = next(iter(each.accelerators), None)
        gpu, has = (own.guest_accelerator_type, own.guest_accelerator_count) if own else ("", 0)
        if count and each.guest_cpus <= count * _CPUS_PER_GPU[gpus[0].removeprefix("nvidia-tesla-")]:
            gpu, has = gpus[0], count
        if each.name == request.machine or (gpu in gpus if gpus else not gpu and not each.is_shared_cpu):
            platform = "linux/arm64" if each.architecture == "ARM64" else "linux/amd64"
            size = {"cpus": each.guest_cpus, "memory_gb": each.memory_mb / 1024, "gpus": has}
            found.append(_Listed(MachineType(name=each.name, platform=platform, **size), zone, gpu))
    return found


def _hourly(prices: Mapping[str, float], each: _Listed, market: Market) -> float | None:
    """Return USD per hour of a machine, whose processors, memory and GPUs are priced separately; None if unknown."""
    family, kind, *_ = each.type.name.split("-")
    if family == "a3":
        family = {"megagpu": "a3plus", "ultragpu": "a3ultra"}.get(kind, family)
    parts = {f"{family} core": each.type.cpus, f"{family} ram": each.type.memory_gb}
    if each.gpu:
        parts[_gpu_key(each.gpu.removeprefix("nvidia-"))] = each.type.gpus
    known = [prices[key] * count for part, count in parts.items() if (key := f"{market} {part}") in prices]
    return sum(known) if len(known) == len(parts) else None


def find_prices(api: Api) -> Mapping[str, float]:
    """Return USD per hour by market and part: "spot n1 core", "spot n1 ram" (of a GiB), "spot t4".

    Unlisted parts are missing. If there are no prices, a warning gives the reason.
    """
    kept = cache_path("gcp-prices", f"{api.region}.json")
    try:
        found = json.loads(read(kept) or "{}")
        if 0 <= time.time() - found.get("at", 0) < _DAY_S:
            return dict(found["usd"])
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # incomplete, or of another version: it is created again
    try:
        listed = [each for each in api.price_list(_FIELDS) if api.region in each.get("serviceRegions", ())]
    except ProviderError as error:
        _log.warning("Prices are not known: %s Enable cloudbilling.googleapis.com in project %s.", error, api.project)
        return {}
    prices = dict(entry for sku in listed if (entry := _entry(sku)))
    if prices:
        write(kept, json.dumps({"at": time.time(), "usd": prices}))
    return prices


def _entry(sku: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return key and price of an entry of the list; None if it is not for a part of a plain machine."""
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
    """Return an equal key for "nvidia-h100-mega-80gb" and "Nvidia H100 80GB Plus", whose words differ in order."""
    words = re.split(r"[ -]", name.lower().replace("plus", "mega"))
    return " ".join(sorted(word for word in words if word != "tesla"))
