"""An account of AWS in this process, and one whose answers a test writes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
from moto import mock_aws

from skyward.providers.aws.api import Api
from skyward.providers.aws.provider import AWS

REGION = "us-east-1"


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """A region as moto has it: real instance types, a default network, public machine images; no price list."""
    for name in ("boto3", "botocore", "urllib3", "moto"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(AWS, "client_cidr", lambda *_: "203.0.113.7/32")
    with mock_aws():
        yield _api()


@cache
def _api() -> Api:
    """One for all tests: its clients take half a second to make, and know nothing of the account."""
    return Api(REGION)


class Prices(Api):
    """An API that knows prices, and where types are offered, and nothing else.

    Args:
        on_demand: USD per hour by type.
        spot: USD per hour by type and zone.
        offered: zones by type.
    """

    def __init__(
        self,
        on_demand: Mapping[str, float],
        spot: Mapping[tuple[str, str], float],
        offered: Mapping[str, tuple[str, ...]],
    ) -> None:
        super().__init__(REGION)
        self.on_demand, self.spot, self.offered = on_demand, spot, offered

    def call(self, service: str, action: str, **arguments: Any) -> Mapping[str, Any]:
        if action == "get_products":
            asked = {each["Field"]: each["Value"] for each in arguments["Filters"]}
            assert (service, asked["regionCode"], asked["tenancy"]) == ("pricing", REGION, "Shared")
            price = self.on_demand.get(asked["instanceType"])
            products = [_product("0.0000"), _product("0.01", "CapacityBlock"), _product(str(price))]
            return {"PriceList": [] if price is None else products}
        if action == "describe_spot_price_history":
            found = [
                {"InstanceType": name, "AvailabilityZone": zone, "SpotPrice": str(price * factor)}
                for (name, zone), price in self.spot.items()
                for factor in (1, 2)  # an older price comes after
            ]
            return {"SpotPriceHistory": found}
        assert action == "describe_instance_type_offerings"
        found = [{"InstanceType": name, "Location": zone} for name, zones in self.offered.items() for zone in zones]
        return {"InstanceTypeOfferings": found}


def _product(price: str, option: str = "OnDemand") -> str:
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": price}}
    product = {"attributes": {"marketoption": option}}
    return json.dumps({"product": product, "terms": {"OnDemand": {"x": {"priceDimensions": {"y": dimension}}}}})
