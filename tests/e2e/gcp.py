"""Google Cloud for tests: `tests.gcp_api` is the API, and each machine that it launches is one of the stand's hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.stand.place import Stand
from tests.e2e.cloud import Instance, Machines, reapers_of
from tests.gcp_api import ComputeApi


class Google:
    """The API, and what it has launched.

    Attributes:
        api: the API.
        machines: the machines that run.
    """

    def __init__(self, stand: Stand, folder: Path) -> None:
        self.machines = Machines(stand)
        self.api = ComputeApi(folder)
        self.api.on_launch, self.api.on_delete = self._launched, self.machines.end

    def running(self) -> list[Instance]:
        """The machines that have not ended."""
        return list(self.machines.running.values())

    def left(self) -> list[str]:
        """All that the project still has."""
        return [*self.api.instances, *self.api.firewalls, *self.api.begun()]

    def reapers(self) -> list[int]:
        """The reapers of this process and of other clients."""
        return reapers_of("gcp", self.api.url)

    def close(self) -> None:
        """End everything."""
        self.api.close()
        self.machines.close()

    def _launched(self, made: dict[str, Any]) -> None:
        text = next(each["value"] for each in made["metadata"]["items"] if each["key"] == "user-data")
        machine = self.machines.add(made["name"], made["labels"]["skyward-pool"], text, self._stopped)
        made["networkInterfaces"][0]["networkIP"] = machine.address

    def _stopped(self, name: str) -> None:
        """A machine has shut itself down: at Google it is there until somebody deletes it."""
        self.api.set_status(name, "TERMINATED")
        self.machines.end(name)
