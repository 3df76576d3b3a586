#!/bin/sh
# Shuts the machine down when no pool holds a lease on it, and when its share of the pool's budget is spent.
LC_ALL=C folder=$1 mark=$2 left=$3 idle=$4 budget=$5
now() { cut -d. -f1 /proc/uptime; }
number() { case $1 in '' | 0?* | *[!0-9]* | ??????????*) return 1 ;; esac; }
live() {  # whether a watchdog's directory (see ssh/watchdog.py) has a lease that has not ended
    for alive in "$folder"/*/alive; do
        [ -f "$alive" ] && [ ! -L "$alive" ] && ends=$(date -r "$alive" +%s 2>/dev/null) || continue
        [ $(($(date +%s) - 30)) -le "$ends" ] && return 0
    done
    return 1
}
last=$(now) spent=
if number "$budget"; then
    for noted in "$mark".until.*; do spent=${noted##*.}; done  # noted before this guard was started again
    number "$spent" || spent=$((last + budget))
    : >"$mark.until.$spent"
fi
: >"$mark"
while sleep 1; do
    if live; then last=$(now) left=$idle; fi
    [ "$spent" ] && [ "$(now)" -ge "$spent" ] || [ $(($(now) - last)) -gt "$left" ] || continue
    shutdown -h now || poweroff -f
    sleep 60
done
