"""The service of a machine that closes the cloud's metadata service to containers, and reads the cloud's notices there.

The metadata service at 169.254.169.254 gives user data and the machine's credentials to whoever asks on the machine.
Containers use the machine's network and may run as root, so neither address nor user tells them from the machine's own
services. Their control group does, and they cannot leave it without SYS_ADMIN. A root service therefore makes the
firewall accept what comes from its own control group and refuse everything else. It alone can ask for notices, and
writes them into a file, which `preemption` reads.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

DIRECTORY: Final = "/run/skyward-metadata"
READY: Final = f"{DIRECTORY}/ready"  # exists once the metadata service is closed, or is meant to stay open
NO_NOTICES: Final = f"{DIRECTORY}/blind"  # exists where the firewall cannot match control groups: nobody reads notices
NOTICE: Final = f"{DIRECTORY}/notice"  # in the cloud's own words
_SCRIPT: Final = r"""#!/bin/sh
# Closes the metadata service to everything but this script unless told "open", and reads the cloud's notices.
place=$1 access=$2 address=169.254.169.254
group=$(sed -n 's/^0:://p' /proc/self/cgroup)
group=${group%/}/skyward-metadata

enter_group() {
    root=
    while read -r _ at kind _; do [ "$kind" = cgroup2 ] && root=$at && break; done </proc/mounts
    if [ -z "$root" ]; then
        root=/run/skyward-cgroup
        mkdir -p "$root" && mount -t cgroup2 none "$root"
    fi
    mkdir -p "$root$group" && echo $$ >"$root$group/cgroup.procs"
}
refuse() {  # the rules below are inserted above this one, so that it holds also while this script starts again
    "$1" -w -C OUTPUT -d "$2" -j REJECT 2>/dev/null || "$1" -w -I OUTPUT -d "$2" -j REJECT
}
pass_ports() {  # above the rule that refuses
    for port in @OPEN_PORTS@; do
        for kind in udp tcp; do
            iptables -w -C OUTPUT -d $address -p $kind --dport $port -j ACCEPT 2>/dev/null ||
                iptables -w -I OUTPUT -d $address -p $kind --dport $port -j ACCEPT || return
        done
    done
}
pass_own() {
    iptables -w -N SKYWARD 2>/dev/null || iptables -w -F SKYWARD || return
    iptables -w -A SKYWARD -m cgroup --path "${group#/}" -j ACCEPT || return
    iptables -w -C OUTPUT -d $address -j SKYWARD 2>/dev/null || iptables -w -I OUTPUT -d $address -j SKYWARD
}
ask() { curl -sf -m 2 "$@"; }
read_notice() {
@READ_NOTICE@
}

mkdir -p "$place" && rm -f "$place/ready" "$place/blind" "$place/notice" || exit 1
if [ "$access" != open ]; then
    refuse iptables $address && pass_ports || exit 1
    refuse ip6tables fd00:ec2::254 2>/dev/null  # EC2's and Google's addresses in IPv6, which may be switched off
    refuse ip6tables fd20:ce::254 2>/dev/null
    enter_group && pass_own || : >"$place/blind"
fi
: >"$place/ready"
while sleep 2; do
    read_notice >"$place/.notice" && [ -s "$place/.notice" ] && mv "$place/.notice" "$place/notice"
done
"""


def script(read_notice: str, open_ports: Sequence[int] = ()) -> str:
    """The service's script.

    Args:
        read_notice: body of the shell function that prints the cloud's notice.
        open_ports: ports of the address that are not closed.
    """
    ports = " ".join(map(str, open_ports))
    return _SCRIPT.replace("@OPEN_PORTS@", ports).replace(
        "@READ_NOTICE@", textwrap.indent(read_notice.strip("\n"), "    ")
    )
