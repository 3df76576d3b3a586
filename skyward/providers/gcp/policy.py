"""The least permissions that `sky.GCP` needs, as a custom role of IAM.

Which permissions a call takes is listed on its page of the reference, for example
https://cloud.google.com/compute/docs/reference/rest/v1/instances/bulkInsert#iam-permissions
"""

from __future__ import annotations

from typing import Any

_COMPUTE = (
    # what there is, and at which place
    *("zones.list", "machineTypes.list", "acceleratorTypes.list", "subnetworks.list"),
    *("images.get", "images.getFromFamily", "images.useReadOnly"),  # for `image=` in the project; Google's are public
    # machines, with a disk each
    *("instances.create", "instances.delete", "instances.list", "instances.setLabels", "instances.setMetadata"),
    *("instances.setServiceAccount", "instances.setTags", "disks.create", "disks.setLabels"),
    *("subnetworks.use", "subnetworks.useExternalIp"),
    # who reaches them; rules are a part of their network
    *("firewalls.create", "firewalls.delete", "firewalls.get", "firewalls.list", "firewalls.update"),
    "networks.updatePolicy",
    # whether what was begun has ended
    *("globalOperations.get", "globalOperations.list", "zoneOperations.get", "zoneOperations.list"),
)


def policy() -> dict[str, Any]:
    """The role's document, as `gcloud iam roles create --file` takes it."""
    return {
        "title": "skyward",
        "description": "What sky.GCP needs to rent machines for pools, and nothing else.",
        "stage": "GA",
        "includedPermissions": sorted(f"compute.{each}" for each in _COMPUTE),
    }
