"""Hosts that a detached run was given with its launch: the driver reaches them with the key of this run alone.

The program names hosts as the user's SSH configuration does. The driver has no such configuration: a file in the run's
directory says at which address each is, as whom to log in, and which host key to expect.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from skyward.model.ssh import SshHost
from skyward.records.run import FOLDER_VARIABLE, write_json

KEY_FILE, KNOWN_HOSTS_FILE = "key", "known_hosts"
_FILE = "hosts.json"


def write_handed(folder: Path, hosts: Mapping[str, SshHost]) -> None:
    """Leave a driver its hosts, by the names that the program has for them; key and host keys lie beside the file."""
    write_json(folder / _FILE, {name: [host.host, host.user, host.port] for name, host in hosts.items()})


def handed_hosts() -> Mapping[str, SshHost]:
    """The hosts of the detached run that this process belongs to; none outside of one."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return read_handed(Path(folder)) if folder else {}


@lru_cache(maxsize=8)
def read_handed(folder: Path) -> Mapping[str, SshHost]:
    """The hosts that were left in a run's directory."""
    file = folder / _FILE
    if not file.is_file():
        return {}
    key, known = str(folder / KEY_FILE), str(folder / KNOWN_HOSTS_FILE)
    return {
        name: SshHost(host=host, user=user, port=port, key=key, known_hosts=known)
        for name, (host, user, port) in json.loads(file.read_text()).items()
    }
