# Runs one step of a build: `step.sh NAME ARGUMENT...` is NAME.sh with these arguments.
#
# Two builds make the same bytes: bytecode holds no time of day, nothing has a random order, and all that a step makes
# gets one time, that of 1980, where the times in zip files begin. What a step is given is mounted below /run, a tmpfs,
# so that neither it nor its mount points are in the layer.
set -e
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mkdir -p /run/skyward
: > /run/skyward/begun
sleep 0.02 # the clocks of files tick every few milliseconds
export SOURCE_DATE_EPOCH=315532800 PYTHONHASHSEED=0

# the certificates, indexes and proxies of this site, a secret; the image's build_env
for settings in site.sh build-env.sh; do
    [ ! -r "/run/skyward/$settings" ] || . "/run/skyward/$settings"
done

step=$1
shift
. "/run/steps/$step.sh"

find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path '/etc/host*' -o -path /etc/resolv.conf \) \
    -prune -o -newer /run/skyward/begun -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
