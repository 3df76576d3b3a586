"""What a machine does with EC2's metadata service: it closes it to containers, and passes on AWS' notices.

The service at 169.254.169.254 gives whoever asks on the machine its user data and the credentials of its instance
profile. Containers use the machine's network and may run as root, so neither their address nor their user tells them
from the machine's own services. Their control group does, and without SYS_ADMIN they cannot leave it. A root service
therefore lets the firewall pass what comes from its own control group and refuses everything else, and is the one that
asks for notices (`notice.py` reads what it writes).
"""

from __future__ import annotations

from typing import Final

PLACE: Final = "/run/skyward-metadata"
READY: Final = f"{PLACE}/ready"  # is there when the service is closed, or is to be open
BLIND: Final = f"{PLACE}/blind"  # is there where the firewall knows no control groups, so that nobody reads notices
NOTICE: Final = f"{PLACE}/notice"  # AWS' own words
FILE: Final = "/usr/local/sbin/skyward-metadata"
SCRIPT: Final = r"""#!/bin/sh
# Closes the metadata service to all but this script unless told "open", and passes on notices of AWS.
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
refuse() {  # nothing below the refusal opens it again, also while this script starts anew
    "$1" -w -C OUTPUT -d "$2" -j REJECT 2>/dev/null || "$1" -w -I OUTPUT -d "$2" -j REJECT
}
pass_own() {
    iptables -w -N SKYWARD 2>/dev/null || iptables -w -F SKYWARD || return
    iptables -w -A SKYWARD -m cgroup --path "${group#/}" -j ACCEPT || return
    iptables -w -C OUTPUT -d $address -j SKYWARD 2>/dev/null || iptables -w -I OUTPUT -d $address -j SKYWARD
}
ask() { curl -sf -m 2 "$@"; }

mkdir -p "$place" && rm -f "$place/ready" "$place/blind" "$place/notice" || exit 1
if [ "$access" != open ]; then
    refuse iptables $address || exit 1
    refuse ip6tables fd00:ec2::254 2>/dev/null  # not there unless somebody has switched it on
    enter_group && pass_own || : >"$place/blind"
fi
: >"$place/ready"
tries=0
while sleep 2; do
    if [ $tries -eq 0 ]; then
        token=$(ask -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' http://$address/latest/api/token) || continue
        tries=100
    fi
    tries=$((tries - 1))
    if said=$(ask -H "X-aws-ec2-metadata-token: $token" http://$address/latest/meta-data/spot/instance-action); then
        printf '%s\n' "$said" >"$place/.notice" && mv "$place/.notice" "$place/notice"
    fi
done
"""


def service(is_open: bool) -> str:
    """The systemd unit; `is_open` leaves the metadata service open to containers."""
    return f"""[Unit]
Description=Closes the metadata service to containers and passes on notices of AWS

[Service]
ExecStart=/bin/sh {FILE} {PLACE} {"open" if is_open else "closed"}
Restart=always
RestartSec=2
Delegate=yes

[Install]
WantedBy=multi-user.target
"""
