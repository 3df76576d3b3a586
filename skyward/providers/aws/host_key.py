"""The host key that a machine makes for itself, in the place of the one that its user data told it.

Who can read user data (the account's identities that may call DescribeInstanceAttribute) knows the first host key. It
is there for one connection: over that the client learns the key that the machine has made, trusts only that from then
on, and says so; the machine's sshd then forgets the first one.
"""

from __future__ import annotations

import re
from typing import Final

KEY: Final = "/etc/ssh/ssh_host_ed25519_key"  # where cloud-init puts the first one
PLACE: Final = "/run/skyward-host-key"
PUBLIC: Final = f"{PLACE}/public"  # of the new key
TRUSTED: Final = f"{PLACE}/client/trusted"  # the client makes this file; nobody reads it
FILE: Final = "/usr/local/sbin/skyward-host-key"
SCRIPT: Final = r"""#!/bin/sh
# Makes a host key, shows its public half, and gives it to sshd when the client trusts it.
key=$1 place=$2 user=$3
[ ! -e "$key.own" ] || exit 0  # a machine that was started again keeps the key that it has made
umask 077
rm -f "$key.next" "$key.next.pub"
ssh-keygen -q -t ed25519 -N '' -C skyward -f "$key.next" || exit 1
rm -rf "$place/public" "$place/client"
install -d -m 755 "$place" && install -d -m 700 -o "$user" "$place/client" || exit 1
install -m 644 "$key.next.pub" "$place/.public" && mv "$place/.public" "$place/public" || exit 1
until [ -e "$place/client/trusted" ]; do sleep 0.2; done
mv -f "$key.next.pub" "$key.pub"
mv -f "$key.next" "$key" || exit 1
: >"$key.own"
systemctl reload sshd 2>/dev/null || systemctl reload ssh
"""
_LINE = re.compile(r"(ssh-ed25519 [A-Za-z0-9+/]{68})( .*)?")


def service(user: str) -> str:
    """The systemd unit, for a client that logs in as this user."""
    return f"""[Unit]
Description=Gives the machine a host key that it has made itself

[Service]
ExecStart=/bin/sh {FILE} {KEY} {PLACE} {user}

[Install]
WantedBy=multi-user.target
"""


def public_key(said: str) -> str | None:
    """The public key, as `known_hosts` has it, that stands in the last line of what a machine said; None without."""
    found = _LINE.fullmatch((said.strip().splitlines() or [""])[-1].strip())
    return found[1] if found else None
