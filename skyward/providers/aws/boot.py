"""What a machine is told at its first start: its first host key, who may log in, and when to shut itself down.

The key to log in with is made for one pool, the first host key for one launch. That one reaches the machine before its
sshd starts, so that the very first connection is to a machine whose key is known. It is for this connection alone: see
host_key.py. What the machine does with EC2's metadata service is in metadata.py.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from skyward.errors import ProviderError
from skyward.providers.aws import host_key, metadata

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
class FirstKey:
    """The host key that the machines of one launch have until their client has come to them; see host_key.py.

    Attributes:
        known_hosts: a file that names it, for the first connection to each of them alone.
        public: as a line of text.
        private: goes into user data.
    """

    known_hosts: Path
    public: str
    private: str = field(repr=False)

    def trust(self, addresses: Iterable[str]) -> None:
        """Write down that machines at these addresses have it."""
        _write_known(self.known_hosts, dict.fromkeys(addresses, " ".join(self.public.split()[:2])))


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
        """The host keys that machines have made themselves: the only ones to trust after the first connection."""
        return self.folder / "known_hosts"

    def make(self) -> None:
        """Make the key to log in with; no host key is known yet.

        Raises:
            ProviderError: the system has no ssh-keygen.
        """
        _make_key(self.file)
        self.known_hosts.touch()

    def first_key(self, launch: int) -> FirstKey:
        """A host key for the machines of a launch, which has this number. Its private half is in no file.

        Raises:
            ProviderError: the system has no ssh-keygen.
        """
        path = self.folder / f"first-{launch}"
        _make_key(path)
        private, public = path.read_text(), _public(path)
        path.unlink()
        known_hosts = path.with_suffix(".known_hosts")
        known_hosts.touch()
        return FirstKey(known_hosts, public, private)

    def user_data(self, first: FirstKey, lease_s: float, *, open_metadata: bool = False) -> str:
        """What cloud-init does on a machine at its first start.

        Args:
            first: the host key to have at first.
            lease_s: how long the pool's nodes outlive its client.
            open_metadata: let containers reach the metadata service, and so what the instance profile allows.
        """
        times = {"boot": BOOT_S, "idle": int(min(lease_s, _IDLE_S))}
        unit = _UNIT.format(guard=_GUARD_FILE, mark=MARK, user=USER, state=STATE, **times)
        user = {"name": USER, "groups": ["docker"], "shell": "/bin/sh", "lock_passwd": True}
        services = {
            "skyward-guard": (_GUARD_FILE, GUARD, unit),
            "skyward-host-key": (host_key.FILE, host_key.SCRIPT, host_key.service(USER)),
            "skyward-metadata": (metadata.FILE, metadata.SCRIPT, metadata.service(open_metadata)),
        }
        config = {
            "users": [{**user, "ssh_authorized_keys": [_public(self.file)]}],
            "ssh_deletekeys": True,
            "ssh_keys": {"ed25519_private": first.private, "ed25519_public": first.public},
            "write_files": [
                file
                for name, (path, script, unit) in services.items()
                for file in (
                    {"path": path, "permissions": "0755", "content": script},
                    {"path": f"/etc/systemd/system/{name}.service", "permissions": "0644", "content": unit},
                )
            ],
            "runcmd": [
                *(["systemctl", "enable", "--now", f"{name}.service"] for name in services),
                "systemctl disable --now --no-block ecs 2>/dev/null || true",  # nobody gives this agent anything to do
            ],
        }
        return "#cloud-config\n" + json.dumps(config)  # JSON is YAML

    def trust(self, keys: Mapping[str, str]) -> None:
        """Write down the only host keys to trust: by address, those that the machines have made."""
        _write_known(self.known_hosts, keys)


def _make_key(path: Path) -> None:
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "skyward", "-f", str(path)]
    try:
        subprocess.run(words, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ProviderError(
            f"A key for the pool's machines cannot be made ({error}). It takes OpenSSH's client (Debian: "
            "openssh-client)."
        ) from error


def _public(path: Path) -> str:
    return path.with_name(f"{path.name}.pub").read_text().strip()


def _write_known(path: Path, keys: Mapping[str, str]) -> None:
    """Write a file of known hosts, which no reader sees half-written."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text("".join(f"{address} {key}\n" for address, key in sorted(keys.items())))
    fresh.replace(path)
