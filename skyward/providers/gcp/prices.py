"""Prices of Compute Engine in one region, from the public price list of the Cloud Billing API; kept for a day.

The compute API knows no prices. The list has one entry for each part of a machine (processor, GiB of memory, GPU),
market and region, which its description alone tells apart. It is some megabytes long, so it is read once a day.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from skyward.builder.cache import cache_path, read, write
from skyward.errors import ProviderError
from skyward.providers.cloud.protocol import Market
from skyward.providers.gcp.api import Api
from skyward.system import time

_log = logging.getLogger(__name__)
_DAY_S = 86400.0
_FIELDS = "nextPageToken,skus(description,serviceRegions,category/usageType,pricingInfo/pricingExpression/tieredRates)"
_MARKETS: Mapping[str, Market] = {"OnDemand": "on-demand", "Preemptible": "spot"}
_OTHERS = re.compile(r"custom|sole tenancy|reserved|premium|suspended|commitment|dws|calendar", re.IGNORECASE)
_PART = re.compile(r"(?:spot preemptible )?([a-z]\d+[a-z]*) .*\b(core|ram) running in")
_GPU = re.compile(r"(?:spot preemptible )?nvidia (.+?) gpu\b.* running in")


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
