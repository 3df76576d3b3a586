"""The first start of a machine as cloud-init's user data, and the guard that shuts it down after its pool.

The user data holds the first host key, the user who may log in, and three systemd services: the guard, the exchange of
the host key (`keys`), and the rule that closes the metadata service to containers (`metadata`).
"""

from __future__ import annotations

import json
from typing import Final

from skyward.providers.cloud import keys, metadata
from skyward.providers.cloud.keys import FirstHostKey
from skyward.providers.cloud.protocol import FirstStart

USER: Final = "skyward"  # who logs in, whatever the machine image
MARK: Final = "/run/skyward-guard"  # exists while the guard runs
STATE: Final = f"/run/skyward/{USER}"  # the watchdog's directory; root makes it, and only that user can enter it
_BOOT_S = 600  # how long a machine waits for its pool's first sign of life
_IDLE_S = 60.0  # how long it waits for another pool after the last one
# The guard is root, and the files are a user's: it looks at names and ages of files, never at their content.
GUARD: Final = r"""#!/bin/sh
# Shuts the machine down when no live pool holds a lease on it, and when its pool's budget is spent.
LC_ALL=C folder=$1 mark=$2 left=$3 idle=$4 budget=$5
now() { cut -d. -f1 /proc/uptime; }
number() { case $1 in '' | 0?* | *[!0-9]* | ??????????*) return 1 ;; esac; }
live() {  # whether a watchdog's directory (see ssh/watchdog.py) has a lease that its client has renewed in time
    clock=$(date +%s)
    for noted in "$folder"/*/lease.*; do
        limit=${noted##*/lease.} alive=${noted%/*}/alive
        number "$limit" || continue
        [ -f "$alive" ] && [ ! -L "$alive" ] && heard=$(date -r "$alive" +%s 2>/dev/null) || continue
        [ $((clock - heard - 30)) -le "$limit" ] && return 0
    done
    return 1
}
spent() {  # whether the budget is spent: as the client has said last, by the machine's uptime, else as at the launch
    first=
    for noted in "$folder"/*/until.*; do
        at=${noted##*/until.}
        number "$at" || continue
        if [ -z "$first" ] || [ "$at" -lt "$first" ]; then first=$at; fi
    done
    first=${first:-$launch}
    [ "$first" ] && [ "$(now)" -ge "$first" ]
}
last=$(now) launch=
if number "$budget"; then
    for noted in "$mark".until.*; do launch=${noted##*.}; done  # noted before this guard was started again
    number "$launch" || launch=$((last + budget))
    : >"$mark.until.$launch"
fi
: >"$mark"
while sleep 1; do
    if live; then last=$(now) left=$idle; fi
    spent || [ $(($(now) - last)) -gt "$left" ] || continue
    shutdown -h now || poweroff -f
    sleep 60
done
"""
_UNIT = """[Unit]
Description={about}

[Service]
{lines}

[Install]
WantedBy=multi-user.target
"""


def user_data(
    login_public: str, first: FirstHostKey, lease_s: float, start: FirstStart, budget_s: float | None = None
) -> str:
    """The configuration for cloud-init.

    Args:
        login_public: public half of the key that the client logs in with.
        first: the host key that the machine starts with.
        lease_s: how long the pool's nodes outlive its client.
        start: what is particular to the cloud.
        budget_s: how long the machine may run at all, unless its client says otherwise later; None for no limit.
    """
    user = {"name": USER, "groups": ["docker"], "shell": "/bin/sh", "lock_passwd": True}
    services = (_guard(lease_s, budget_s), _host_key(), _metadata(start))
    more = [{"path": path, "permissions": "0644", "content": text} for path, text in start.files.items()]
    config = {
        "users": [{**user, "ssh_authorized_keys": [login_public]}],
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": first.private, "ed25519_public": first.public},
        "write_files": [*more, *(file for _, files in services for file in files)],
        "runcmd": [*(["systemctl", "enable", "--now", f"{name}.service"] for name, _ in services), *start.commands],
    }
    return "#cloud-config\n" + json.dumps(config)  # JSON is YAML


def _guard(lease_s: float, budget_s: float | None) -> tuple[str, list[dict[str, str]]]:
    install = f"ExecStartPre=/usr/bin/install -d -m 0700 -o {USER} {STATE}"
    arguments = f"{STATE}/pools {MARK} {_BOOT_S} {int(min(lease_s, _IDLE_S))}"
    if budget_s is not None:
        arguments += f" {int(budget_s)}"
    about = "Shuts the machine down when no live pool holds a lease on it"
    return _service("skyward-guard", about, GUARD, arguments, "Restart=always", before=install)


def _host_key() -> tuple[str, list[dict[str, str]]]:
    about = "Gives the machine a host key that it has generated itself"
    return _service("skyward-host-key", about, keys.SCRIPT, keys.script_arguments(USER))


def _metadata(start: FirstStart) -> tuple[str, list[dict[str, str]]]:
    about = "Closes the metadata service to containers and reads notices of the cloud"
    script = metadata.script(start.read_notice, start.open_ports)
    arguments = f"{metadata.DIRECTORY} {'open' if start.open_metadata else 'closed'}"
    return _service("skyward-metadata", about, script, arguments, "Restart=always\nRestartSec=2\nDelegate=yes")


def _service(
    name: str, about: str, script: str, arguments: str, after: str = "", before: str = ""
) -> tuple[str, list[dict[str, str]]]:
    """A systemd service that runs a script: its name, and its files."""
    path = f"/usr/local/sbin/{name}"
    lines = "\n".join(filter(None, (before, f"ExecStart=/bin/sh {path} {arguments}", after)))
    unit = _UNIT.format(about=about, lines=lines)
    return name, [
        {"path": path, "permissions": "0755", "content": script},
        {"path": f"/etc/systemd/system/{name}.service", "permissions": "0644", "content": unit},
    ]
