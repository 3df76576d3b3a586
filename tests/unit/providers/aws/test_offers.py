"""EC2's catalogue: types by accelerator or size, where they are offered, prices."""

from __future__ import annotations

import pytest

from skyward.errors import ConfigError, ProviderError
from skyward.model.spec import Accelerator
from skyward.providers.aws.api import Api
from skyward.providers.aws.catalog import find_offers, find_types
from skyward.providers.base import PoolRequest
from skyward.providers.cloud.base import MachineType
from tests.unit.providers.aws.conftest import Prices

AMD, ARM = "linux/amd64", "linux/arm64"
SMALL = MachineType(name="small", cpus=2, memory_gb=4, platform=AMD)
LARGE = MachineType(name="large", cpus=4, memory_gb=8, platform=AMD)
ZONES = ["a", "b"]
MARKET = Prices(
    on_demand={"small": 1.0, "large": 2.0},
    spot={("small", "a"): 0.5, ("small", "b"): 0.4, ("large", "a"): 1.1, ("large", "b"): 1.2},
    offered={"small": ("a", "b", "far"), "large": ("a", "b")},
)


def types(api: Api, accelerator: str | None, platform: str = AMD, **asked: float | str) -> list[MachineType]:
    wanted = {"platform": platform, "accelerator": Accelerator.of(accelerator), **asked}
    return find_types(api, PoolRequest(pool_id="p1", **wanted))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("accelerator", "first", "gpus"),
    [
        ("T4", "g4dn.xlarge", 1),
        ("T4:4", "g4dn.12xlarge", 4),
        ("L4", "g6.xlarge", 1),
        ("A10G", "g5.xlarge", 1),
        ("A10G:8", "g5.48xlarge", 8),
        ("L40S", "g6e.xlarge", 1),
        ("V100:8", "p3dn.24xlarge", 8),
        ("A100:8", "p4d.24xlarge", 8),
        ("A100", "p4d.24xlarge", 8),  # there is no smaller one
        ("A100-80GB:8", "p4de.24xlarge", 8),
        ("H100:8", "p5.48xlarge", 8),
        ("H100", "p5.4xlarge", 1),
    ],
)
def test_accelerators_have_instance_types(account: Api, accelerator: str, first: str, gpus: int) -> None:
    """By their common names, with as few GPUs to spare as possible."""
    found = types(account, accelerator)

    assert (found[0].name, found[0].gpus) == (first, gpus)
    assert all(each.gpus >= Accelerator.of(accelerator).count for each in found)  # type: ignore[union-attr]


def test_an_arm_gpu_needs_an_arm_image(account: Api) -> None:
    """For the other architecture it is refused, and the message names the types that there are."""
    assert types(account, "T4G", ARM)[0].name == "g5g.xlarge"
    with pytest.raises(ProviderError, match=r"no machine type with T4G:1 for x86_64; found g5g.* arm64"):
        types(account, "T4G", AMD)


def test_plain_machines_are_large_enough_and_not_much_larger(account: Api) -> None:
    """By processors and memory; without either they are small."""
    found = types(account, None, cpus=8, memory_gb=30)

    assert len(found) == 6
    assert all(each.cpus >= 8 and each.memory_gb >= 30 and not each.gpus for each in found)
    assert max(each.cpus for each in found) == 8
    assert {each.platform for each in types(account, None, ARM)} == {ARM}
    assert max(each.cpus for each in types(account, None)) == 2


def test_a_named_type_is_taken_as_it_is(account: Api) -> None:
    """Whatever its size; an unknown name is refused."""
    assert [each.name for each in types(account, None, machine="m6i.large", cpus=2)] == ["m6i.large"]
    with pytest.raises(ProviderError, match=r"with the name m6i\.tiny for x86_64; found none of that name"):
        types(account, None, machine="m6i.tiny")


def test_an_unknown_accelerator_is_refused(account: Api) -> None:
    """The message lists the known ones."""
    with pytest.raises(ConfigError, match=r"'MI300X'; it knows A100, .*machine="):
        types(account, "MI300X")


def test_prices_are_those_of_a_type_and_on_the_spot_market_of_a_zone() -> None:
    """Zones without a subnet of ours do not count."""
    found = find_offers(MARKET, [SMALL, LARGE], ZONES, ["spot", "on-demand"])

    assert {(each.market, each.type.name, each.zone, each.hourly) for each in found} == {
        *(("spot", "small", "b", 0.4), ("spot", "small", "a", 0.5), ("spot", "large", "a", 1.1)),
        *(("spot", "large", "b", 1.2), ("on-demand", "small", "a", 1.0), ("on-demand", "small", "b", 1.0)),
        *(("on-demand", "large", "a", 2.0), ("on-demand", "large", "b", 2.0)),
    }
