"""The IAM permissions that Compute Engine asks for, by the reference page of each method."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

# by method, and path below the project and zone
_CALLS: Mapping[str, tuple[str, ...]] = {
    "GET aggregated/operations": ("globalOperations.list",),
    "GET aggregated/instances": ("instances.list",),
    "GET images/family/[^/]+": ("images.getFromFamily",),
    "GET images/[^/]+": ("images.get",),
    "GET operations": ("{scope}Operations.list",),
    "POST operations/[^/]+/wait": ("{scope}Operations.get",),
    "GET [a-zA-Z]+": ("{kind}.list",),
    "POST firewalls": ("firewalls.create", "networks.updatePolicy"),
    "DELETE firewalls/[^/]+": ("firewalls.delete", "networks.updatePolicy"),
    "DELETE instances/[^/]+": ("instances.delete",),
    "POST instances/bulkInsert": ("instances.create",),
}


def required(method: str, zone: str | None, path: str, body: Mapping[str, Any], project: str) -> set[str]:
    """The permissions for a call in a project."""
    call, scope = f"{method} {path}", "zone" if zone else "global"
    found = next(permissions for pattern, permissions in _CALLS.items() if re.fullmatch(pattern, call))
    more = _to_launch(body["instanceProperties"], project) if path == "instances/bulkInsert" else ()
    return {f"compute.{each.format(scope=scope, kind=path)}" for each in (*found, *more)}


def _to_launch(made: Mapping[str, Any], project: str) -> Iterator[str]:
    for field in ("labels", "metadata", "tags"):
        if made.get(field):
            yield f"instances.set{field.capitalize()}"
    if made.get("serviceAccounts"):
        yield "instances.setServiceAccount"
    for disk in made["disks"]:
        yield "disks.create"
        if disk["initializeParams"].get("labels"):
            yield "disks.setLabels"
        if f"/projects/{project}/" in disk["initializeParams"]["sourceImage"]:
            yield "images.useReadOnly"
    for interface in made["networkInterfaces"]:
        public = bool(interface.get("accessConfigs"))
        for kind in ("network", "subnetwork"):
            if interface.get(kind):
                yield f"{kind}s.use"
                if public:
                    yield f"{kind}s.useExternalIp"
