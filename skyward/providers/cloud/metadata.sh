#!/bin/sh
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
