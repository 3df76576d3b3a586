"""What machines cost in USD per hour: on demand from AWS' price list, spot from the latest prices of the zones."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from skyward.errors import ProviderError
from skyward.providers.aws.api import Api
from skyward.system.futures import ThreadPoolExecutor

_log = logging.getLogger(__name__)
# one price is left of the many that the list has for a type: Linux without extras, on shared machines
_PLAIN = {"operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used"}


def on_demand(api: Api, types: Sequence[str]) -> dict[str, float]:
    """Prices by type; those that AWS does not tell are missing, and a warning says why."""
    try:
        with ThreadPoolExecutor(max(1, len(types)), thread_name_prefix="skyward-price") as threads:
            prices = list(threads.map(lambda name: _on_demand(api, name), types))
    except ProviderError as error:
        _log.warning("Prices on demand are not known: %s", error)
        return {}
    return {name: price for name, price in zip(types, prices, strict=True) if price is not None}


def _on_demand(api: Api, name: str) -> float | None:
    wanted = {**_PLAIN, "instanceType": name, "regionCode": api.region}
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    found = api.call("pricing", "get_products", ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
    for product in map(json.loads, found):
        if product.get("product", {}).get("attributes", {}).get("marketoption", "OnDemand") != "OnDemand":
            continue  # capacity that is reserved in advance
        for term in product.get("terms", {}).get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                price = float(dimension["pricePerUnit"].get("USD", 0))
                if price > 0 and dimension["unit"] == "Hrs":
                    return price
    return None


def spot(api: Api, types: Sequence[str]) -> Mapping[tuple[str, str], float]:
    """Present prices by type and zone."""
    asked = {"InstanceTypes": list(types), "ProductDescriptions": ["Linux/UNIX", "Linux/UNIX (Amazon VPC)"]}
    pages = api.all("ec2", "describe_spot_price_history", "SpotPriceHistory", StartTime=datetime.now(UTC), **asked)
    prices: dict[tuple[str, str], float] = {}
    for found in pages:  # the newest first
        prices.setdefault((found["InstanceType"], found["AvailabilityZone"]), float(found["SpotPrice"]))
    return prices
