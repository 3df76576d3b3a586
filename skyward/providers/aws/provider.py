"""`sky.AWS`: machines rented from EC2 for one pool, reached by SSH, and given back at its end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import ClassVar

from skyward.model.parameters import suggesting
from skyward.providers.aws.api import Api, check_installed
from skyward.providers.aws.catalog import find_offers, find_types
from skyward.providers.aws.launch import NO_ROOM, Ec2Launcher, Network, find_image, find_network
from skyward.providers.aws.resources import Resources
from skyward.providers.base import PoolRequest
from skyward.providers.cloud.base import FirstStart, MachineOffer, Market, Notice
from skyward.providers.cloud.client_address import client_cidr
from skyward.providers.cloud.provider import CloudProvider

# `tries` and `token` keep their values from call to call; a token is good for 300 s
_READ_NOTICE = """
if [ "${tries:-0}" -eq 0 ]; then
    token=$(ask -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' http://$address/latest/api/token) || return
    tries=100
fi
tries=$((tries - 1))
ask -H "X-aws-ec2-metadata-token: $token" http://$address/latest/meta-data/spot/instance-action
"""
_STOP_ECS_AGENT = "systemctl disable --now --no-block ecs 2>/dev/null || true"  # part of AWS' image, and not used here


@suggesting("sky.AWS")
@dataclass(frozen=True, kw_only=True)
class AWS(CloudProvider):
    """Machines of EC2: `sky.AWS("us-east-1")`, with `ComputePool(accelerator="A100", allocation=..., machine=...)`.

    Takes boto3 (`pip install 'skyward[aws]'`) and credentials where boto3 finds them; AWS_PROFILE counts. Machines are
    launched in the region's default network, all of one type and in one zone. From outside, only the client reaches
    them, by SSH.

    Attributes:
        region: None for the one that AWS' configuration names.
        disk_gb: size of a machine's disk in GB; None for what the machine image and the pool's image take, see
            docs/aws.md.
        use_private_ip: reach the machines at their private addresses, from within their network; they get no others.
        registry: repository through which images reach the machines; None to send them over the SSH connections.
        build: "local" builds images on the engine here, "remote" on the first machine.
        user: the user that functions run as in their containers; see `sky.Docker`, where the caller's own user then
            means the machine's.
        privileges: capabilities that their programs can have; see `sky.Docker`.
        ami: machine image to boot, with cloud-init, systemd and Docker; None for AWS' own with Docker, and for GPUs
            with NVIDIA's driver and toolkit.
        instance_profile: what the machines may do at AWS; None for nothing.

    Raises:
        ConfigError: a value is wrong.
    """

    name: ClassVar[str] = "aws"
    ami: str | None = None
    instance_profile: str | None = None

    def check_installed(self) -> None:
        """Refuse to make a pool without boto3."""
        check_installed()

    def cloud(self) -> Ec2:
        """The API of EC2, with these settings."""
        return Ec2(Api(self.region), self)


class Ec2(Resources):
    """EC2 in one region, for the generic code of `providers/cloud`."""

    name = "AWS"
    no_room = NO_ROOM

    def __init__(self, api: Api, settings: AWS) -> None:
        super().__init__(api, private=settings.use_private_ip)
        self._settings = settings

    @property
    def region(self) -> str:
        """The region.

        Raises:
            ConfigError: boto3 is missing, or no region is configured.
        """
        return self.api.region

    @property
    def first_start(self) -> FirstStart:
        """Read spot notices with version 2 of the metadata service; containers reach that with a profile only."""
        has_profile = self._settings.instance_profile is not None
        return FirstStart(
            read_notice=_READ_NOTICE,
            parse_notice=_parse_notice,
            open_metadata=has_profile,
            commands=[_STOP_ECS_AGENT],
        )

    @cached_property
    def _network(self) -> Network:
        return find_network(self.api)

    def offers(self, request: PoolRequest, markets: Sequence[Market]) -> Sequence[MachineOffer]:
        """The offers for a pool."""
        zones = list(self._network.subnets)
        return find_offers(self.api, find_types(self.api, request), zones, markets)

    def launcher(self, request: PoolRequest, room_gb: int) -> Ec2Launcher:
        """Look up machine image, network, and the address of this client."""
        settings, network = self._settings, self._network
        image = find_image(self.api, request.platform, request.accelerator, settings.ami, settings.disk_gb, room_gb)
        client = network.cidr if settings.use_private_ip else client_cidr("sky.AWS")
        profile, private = settings.instance_profile, settings.use_private_ip
        return Ec2Launcher(self.api, request.pool_id, image, network, client, profile, private)


def _parse_notice(text: str) -> Notice:
    found = json.loads(text)
    return Notice(action=str(found["action"]), at=datetime.fromisoformat(found["time"]).astimezone(UTC))
