"""What a machine is told at its first start: its host key, who may log in, and when to shut itself down.

Both key pairs are made for one pool. The host key reaches the machine before its sshd starts, so that the very first
connection is to a machine whose key is known. Whatever runs on the machine can read it there: it says "a machine of
this pool", no more.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from skyward.errors import ProviderError

USER = "skyward"  # who logs in, on whichever machine image
MARK = "/run/skyward-guard"  # is there when the guard runs
BOOT_S = 600  # how long a machine waits for its pool's first sign of life
_IDLE_S = 60.0  # and for the next pool when the last one is gone
STATE = f"/run/skyward/{USER}"  # the keeper's directory on these machines; root makes it, that user alone enters it
# The guard is root, and the files are a user's. So names and ages of files count, never what is in them.
GUARD = r"""#!/bin/sh
# Shuts the machine down when no live pool holds a lease on it.
LC_ALL=C folder=$1 mark=$2 left=$3 idle=$4
now() { cut -d. -f1 /proc/uptime; }
live() {  # whether a keeper's directory (see providers/keeper.py) has a lease that its client's silence has not passed
    clock=$(date +%s)
    for noted in "$folder"/*/lease.*; do
        limit=${noted##*/lease.} alive=${noted%/*}/alive
        case $limit in '' | 0?* | *[!0-9]* | ??????????*) continue ;; esac
        [ -f "$alive" ] && [ ! -L "$alive" ] && heard=$(date -r "$alive" +%s 2>/dev/null) || continue
        [ $((clock - heard - 30)) -le "$limit" ] && return 0
    done
    return 1
}
last=$(now)
: >"$mark"
while sleep 1; do
    if live; then last=$(now) left=$idle; fi
    [ $(($(now) - last)) -gt "$left" ] || continue
    shutdown -h now || poweroff -f
    sleep 60
done
"""
_GUARD_FILE = "/usr/local/sbin/skyward-guard"
_UNIT_FILE = "/etc/systemd/system/skyward-guard.service"
_UNIT = """[Unit]
Description=Shuts the machine down when no live pool holds a lease on it

[Service]
ExecStartPre=/usr/bin/install -d -m 0700 -o {user} {state}
ExecStart=/bin/sh {guard} {state}/pools {mark} {boot} {idle}
Restart=always

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True, slots=True)
class Keys:
    """A pool's keys, in a directory that only its owner can open.

    Attributes:
        folder: where they are.
    """

    folder: Path

    @property
    def file(self) -> Path:
        """The private key to log in with."""
        return self.folder / "key"

    @property
    def known_hosts(self) -> Path:
        """The only host keys to trust."""
        return self.folder / "known_hosts"

    @property
    def _host_key(self) -> Path:
        return self.folder / "host_key"

    def make(self) -> None:
        """Make both key pairs.

        Raises:
            ProviderError: the system has no ssh-keygen.
        """
        for path in (self.file, self._host_key):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "skyward", "-f", str(path)]
            try:
                subprocess.run(words, check=True, capture_output=True, stdin=subprocess.DEVNULL)
            except (OSError, subprocess.CalledProcessError) as error:
                raise ProviderError(
                    f"A key for the pool's machines cannot be made ({error}). It takes OpenSSH's client (Debian: "
                    "openssh-client)."
                ) from error

    def user_data(self, lease_s: float) -> str:
        """What cloud-init does on a machine at its first start; takes the private host key from here.

        Args:
            lease_s: how long the pool's nodes outlive its client.
        """
        private, public = self._host_key.read_text(), self._public(self._host_key)
        self._host_key.unlink()
        times = {"boot": BOOT_S, "idle": int(min(lease_s, _IDLE_S))}
        unit = _UNIT.format(guard=_GUARD_FILE, mark=MARK, user=USER, state=STATE, **times)
        user = {"name": USER, "groups": ["docker"], "shell": "/bin/sh", "lock_passwd": True}
        config = {
            "users": [{**user, "ssh_authorized_keys": [self._public(self.file)]}],
            "ssh_deletekeys": True,
            "ssh_keys": {"ed25519_private": private, "ed25519_public": public},
            "write_files": [
                {"path": _GUARD_FILE, "permissions": "0755", "content": GUARD},
                {"path": _UNIT_FILE, "permissions": "0644", "content": unit},
            ],
            "runcmd": [
                ["systemctl", "enable", "--now", "skyward-guard.service"],
                "systemctl disable --now --no-block ecs 2>/dev/null || true",  # nobody gives this agent anything to do
            ],
        }
        return "#cloud-config\n" + json.dumps(config)  # JSON is YAML

    def trust(self, addresses: Iterable[str]) -> None:
        """Write down that machines at these addresses have the pool's host key."""
        kind, key = self._public(self._host_key).split()[:2]
        self.known_hosts.write_text("".join(f"{address} {kind} {key}\n" for address in addresses))

    def _public(self, path: Path) -> str:
        return path.with_name(f"{path.name}.pub").read_text().strip()
