"""Google Cloud for tests: `tests.gcp_api` is the API, and each machine that it launches is one of the stand's hosts."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

from scripts.engine.console import SetupError
from scripts.stand.place import Stand
from tests.e2e import cloud
from tests.gcp_api import ComputeApi


class Google:
    """The API, and the machines that run.

    Attributes:
        api: the API.
        machines: those that have not ended, by name.
        boots: whether machines get any further than being there.
    """

    def __init__(self, stand: Stand, folder: Path) -> None:
        self._stand = stand
        self._lock = threading.Lock()
        self._numbers = iter(range(100, 250))
        self.boots = True
        self.machines: dict[str, cloud.Instance] = {}
        self.api = ComputeApi(folder)
        self.api.on_launch, self.api.on_delete = self._launched, self.power_off

    def close(self) -> None:
        """End everything."""
        self.api.close()
        for name in list(self.machines):
            self.power_off(name)
        for host in self._stand.hosts:
            host.run("userdel", "-r", "skyward", check=False)

    def left(self) -> list[str]:
        """All that the project still has."""
        return [*self.api.instances, *self.api.firewalls, *self.api.begun()]

    def power_off(self, name: str) -> None:
        """End a machine's host, as when Google deletes or takes it."""
        with self._lock:
            machine = self.machines.pop(name, None)
        if machine is not None:
            machine.power_off()

    def _launched(self, made: dict[str, Any]) -> None:
        pool, name = made["labels"]["skyward-pool"], made["name"]
        with self._lock:
            taken = [each.host for each in self.machines.values() if each.pool == pool]
            host = next(each for each in self._stand.hosts if each not in taken)
            address = f"{self._stand.subnet}.{next(self._numbers)}"
            made["networkInterfaces"][0]["networkIP"] = address
            text = next(each["value"] for each in made["metadata"]["items"] if each["key"] == "user-data")
            config = json.loads(text.removeprefix("#cloud-config\n"))
            machine = cloud.Instance(f"i-{name}", host, address, config, pool, lambda _: self._stopped(name))
            self.machines[name] = machine
        if self.boots:
            threading.Thread(target=self._boot, args=(name, machine), daemon=True).start()

    def _boot(self, name: str, machine: cloud.Instance) -> None:
        try:
            machine.boot()
        except (OSError, SetupError, subprocess.CalledProcessError):
            if name in self.machines:
                raise  # otherwise it was deleted meanwhile

    def _stopped(self, name: str) -> None:
        """A machine has shut itself down: at Google it is there until somebody deletes it."""
        self.api.set_status(name, "TERMINATED")
        self.power_off(name)
