"""EC2's catalogue: the instance types that a pool can run on, where they are offered, and their prices."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from skyward.errors import ProviderError
from skyward.providers.aws.api import Api
from skyward.providers.base import PoolRequest
from skyward.providers.cloud.base import MachineOffer, MachineType, Market, at_once
from skyward.providers.cloud.cost import of_accelerator, suitable

_log = logging.getLogger(__name__)
# families by the common name of their GPU
_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "T4": ("g4dn",), "T4G": ("g5g",), "A10G": ("g5",), "L4": ("g6", "gr6"), "L40S": ("g6e",),
    "K80": ("p2",), "V100": ("p3", "p3dn"), "A100": ("p4d", "p4de"), "A100-80GB": ("p4de",),
    "H100": ("p5",), "H200": ("p5e", "p5en"), "B200": ("p6-b200",), "B300": ("p6-b300",),
}  # fmt: skip
_CPU_FAMILIES = {
    "linux/amd64": ("c7i", "m7i", "r7i", "c7a", "m7a", "r7a", "c6i", "m6i", "r6i", "c6a", "m6a", "r6a"),
    "linux/arm64": ("c8g", "m8g", "r8g", "c7g", "m7g", "r7g", "c6g", "m6g", "r6g"),
}
# selects one of many prices listed for a type: Linux without extras, on shared machines
_PRICE_FILTER = {"operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used"}


def find_types(api: Api, request: PoolRequest) -> list[MachineType]:
    """Return the instance types of the region that are large enough for a pool's nodes; see `suitable`.

    Raises:
        ConfigError: AWS has no such accelerator.
        ProviderError: the region has no such type, or it has too few GPUs or another architecture.
    """
    machine, platform = request.machine, request.platform
    example = "the instance type (machine='p5.48xlarge')"
    families = of_accelerator(_FAMILIES, request, _CPU_FAMILIES[platform], "sky.AWS()", example)
    names = [machine] if machine else [f"{family}.*" for family in families]
    filters = [{"Name": "instance-type", "Values": names}, {"Name": "bare-metal", "Values": ["false"]}]
    listed = list(map(_machine_type, api.all("ec2", "describe_instance_types", "InstanceTypes", Filters=filters)))
    return suitable(listed, request, api.region)


def _machine_type(found: Mapping[str, Any]) -> MachineType:
    gpus = found.get("GpuInfo", {}).get("Gpus", ())
    architectures = found["ProcessorInfo"]["SupportedArchitectures"]
    return MachineType(
        name=found["InstanceType"],
        cpus=found["VCpuInfo"]["DefaultVCpus"],
        memory_gb=found["MemoryInfo"]["SizeInMiB"] / 1024,
        platform="linux/arm64" if "arm64" in architectures else "linux/amd64",
        gpus=sum(gpu["Count"] for gpu in gpus if gpu["Manufacturer"] == "NVIDIA"),
    )


def find_offers(
    api: Api, types: Sequence[MachineType], zones: Sequence[str], markets: Sequence[Market]
) -> list[MachineOffer]:
    """Return the offers of these types in these zones and markets, ordered by type, then by zone.

    Raises:
        ProviderError: no zone has any of the types.
    """
    names = [each.name for each in types]
    asked = {"LocationType": "availability-zone", "Filters": [{"Name": "instance-type", "Values": names}]}
    found = api.all("ec2", "describe_instance_type_offerings", "InstanceTypeOfferings", **asked)
    offered = {(each["InstanceType"], each["Location"]) for each in found}
    places = [(each, zone) for each in types for zone in sorted(zones) if (each.name, zone) in offered]
    if not places:
        raise ProviderError(
            f"No availability zone of {api.region} that has a default subnet offers {', '.join(names)}. Name another "
            "region or type."
        )
    on_demand = _on_demand_prices(api, names) if "on-demand" in markets else {}
    spot = _spot_prices(api, names) if "spot" in markets else {}
    prices = {(each.name, zone, "on-demand"): on_demand.get(each.name) for each, zone in places}
    prices |= {(*place, "spot"): price for place, price in spot.items()}
    return [
        MachineOffer(type=each, market=market, zone=zone, hourly=prices[each.name, zone, market])
        for each, zone in places
        for market in markets
        if (each.name, zone, market) in prices  # a type without a price is not sold on the spot market
    ]


def _on_demand_prices(api: Api, types: Sequence[str]) -> dict[str, float | None]:
    """Return USD per hour by type. If prices are missing, log a warning with the reason."""
    try:
        prices = at_once(lambda name: _on_demand_price(api, name), types)
    except ProviderError as error:
        _log.warning("Prices on demand are not known: %s", error)
        return {}
    return dict(zip(types, prices, strict=True))


def _on_demand_price(api: Api, name: str) -> float | None:
    wanted = {**_PRICE_FILTER, "instanceType": name, "regionCode": api.region}
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    found = api.call("pricing", "get_products", ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
    # only of products that are not capacity reservations
    prices = (
        float(dimension["pricePerUnit"].get("USD", 0))
        for product in map(json.loads, found)
        if product.get("product", {}).get("attributes", {}).get("marketoption", "OnDemand") == "OnDemand"
        for term in product.get("terms", {}).get("OnDemand", {}).values()
        for dimension in term["priceDimensions"].values()
        if dimension["unit"] == "Hrs"
    )
    return next((price for price in prices if price > 0), None)


def _spot_prices(api: Api, types: Sequence[str]) -> Mapping[tuple[str, str], float]:
    """Return the present USD per hour, by type and zone."""
    asked = {"InstanceTypes": list(types), "ProductDescriptions": ["Linux/UNIX", "Linux/UNIX (Amazon VPC)"]}
    pages = api.all("ec2", "describe_spot_price_history", "SpotPriceHistory", StartTime=datetime.now(UTC), **asked)
    # the newest of each comes first; reversed, so that it wins
    return {(each["InstanceType"], each["AvailabilityZone"]): float(each["SpotPrice"]) for each in [*pages][::-1]}
