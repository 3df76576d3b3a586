#!/bin/sh
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
