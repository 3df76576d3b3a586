"""`sky.GCP`: machines rented from Google's Compute Engine for one pool, reached by SSH, and given back at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

from skyward.errors import ProviderError
from skyward.model.parameters import suggesting
from skyward.providers.base import PoolRequest
from skyward.providers.cloud.base import FirstStart, MachineOffer, Market, Notice
from skyward.providers.cloud.client_address import client_cidr
from skyward.providers.cloud.provider import CloudProvider
from skyward.providers.gcp.api import Api, check_installed
from skyward.providers.gcp.catalog import find_offers
from skyward.providers.gcp.launch import NO_ROOM, GcpLauncher
from skyward.providers.gcp.resources import Resources

_UBUNTU = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-"
_GPU_IMAGE = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2404-nvidia-580"
_NOTICE_S = 30  # that Google leaves a spot machine
_READ_NOTICE = f"""
found=$(ask -H 'Metadata-Flavor: Google' http://$address/computeMetadata/v1/instance/preempted) || return
[ "$found" != TRUE ] || echo $(($(date +%s) + {_NOTICE_S}))
"""
_INSTALL_DOCKER = (
    "command -v docker >/dev/null || "
    "{ apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy install docker.io; }"
)
# Google's agent would put host keys of its own in the place of the first one, and accounts of the project beside ours
_AGENT = {
    "/etc/default/instance_configs.cfg": "[Daemons]\naccounts_daemon = false\n[InstanceSetup]\nset_host_keys = false\n"
}


@suggesting("sky.GCP")
@dataclass(frozen=True, kw_only=True)
class GCP(CloudProvider):
    """Machines of Compute Engine: `sky.GCP("us-central1")`, with `ComputePool(accelerator="L4", allocation=...)`.

    Takes google-cloud-compute (`pip install 'skyward[gcp]'`) and Application Default Credentials. All machines of a
    pool are of one type and in one zone. From outside, only the client reaches them, by SSH. For `region`, `disk_gb`,
    `use_private_ip`, `registry`, `build`, `user` and `privileges` see `sky.AWS`.

    Attributes:
        region: a region of the credentials' project, or "PROJECT/REGION"; None for that of CLOUDSDK_COMPUTE_REGION.
        network: the network whose subnet in the region the machines join.
        image: what machines boot from, as "projects/P/global/images/family/F", with cloud-init, systemd and apt or
            Docker; None for Ubuntu, and for GPUs for Google's Deep Learning VM with NVIDIA's driver and toolkit.
        service_account: e-mail address of the machines' service account; None for no credentials.

    Raises:
        ConfigError: a value is wrong.
    """

    name: ClassVar[str] = "gcp"
    network: str = "default"
    image: str | None = None
    service_account: str | None = None

    def check_installed(self) -> None:
        """Refuse to make a pool without Google's library."""
        check_installed()

    def cloud(self) -> ComputeEngine:
        """The API of Compute Engine, with these settings."""
        return ComputeEngine(Api(self.region), self)


class ComputeEngine(Resources):
    """Compute Engine in one region, for the generic code of `providers/cloud`."""

    name = "Google Cloud"
    no_room = NO_ROOM

    def __init__(self, api: Api, settings: GCP) -> None:
        super().__init__(api, private=settings.use_private_ip)
        self._settings = settings

    @property
    def region(self) -> str:
        """Project and region, by which any process can name them, or a ConfigError that none is named."""
        return f"{self.api.project}/{self.api.region}"

    @property
    def first_start(self) -> FirstStart:
        """Keep Google's name server (53) and clock (123) open, which have the address of the metadata service."""
        return FirstStart(
            read_notice=_READ_NOTICE,
            parse_notice=lambda text: Notice(action="preempt", at=datetime.fromtimestamp(int(text), UTC)),
            open_metadata=self._settings.service_account is not None,
            open_ports=(53, 123),
            files=_AGENT,
            commands=[_INSTALL_DOCKER],
        )

    def offers(self, request: PoolRequest, markets: Sequence[Market]) -> Sequence[MachineOffer]:
        """The offers for a pool."""
        return find_offers(self.api, request, markets)

    def launcher(self, request: PoolRequest, room_gb: int) -> GcpLauncher:
        """Look up machine image, network, and the address of this client."""
        settings, api = self._settings, self.api
        subnets = api.all("subnetworks", region=api.region, filter=f'network eq ".*/networks/{settings.network}"')
        subnet = next(subnets, None)
        if subnet is None:
            raise ProviderError(
                f"The network {settings.network!r} of project {api.project} has no subnet in {api.region}. Name "
                "another (sky.GCP(network=...)), or make it (`gcloud compute networks create default`)."
            )
        arm = "arm64" if request.platform == "linux/arm64" else "amd64"
        own = f"{_UBUNTU}{arm}" if request.accelerator is None else _GPU_IMAGE
        project, name = (settings.image or own).removeprefix("projects/").split("/global/images/")
        family = name.removeprefix("family/")
        found = (
            api.call("images", "get_from_family", project=project, family=family)
            if name != family
            else (api.call("images", "get", project=project, image=name))
        )
        if settings.disk_gb is not None and settings.disk_gb < found.disk_size_gb:
            raise ProviderError(f"disk_gb={settings.disk_gb} is too small: the image takes {found.disk_size_gb} GB.")
        return GcpLauncher(
            api=api,
            request=request,
            image=found.self_link,
            disk_gb=settings.disk_gb or found.disk_size_gb + room_gb,
            subnet=subnet,
            client=subnet.ip_cidr_range if settings.use_private_ip else client_cidr("sky.GCP"),
            account=settings.service_account,
            private=settings.use_private_ip,
            secure_boot=settings.image is None and request.accelerator is None,
        )
