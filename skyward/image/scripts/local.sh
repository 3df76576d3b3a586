# local [--python-platform TARGET] NAME...: installs wheels and projects of /run/local, whose needs are installed already.
#
# --refresh: uv would take an old build of the same path for this one.
. /run/steps/uv_pip.sh
for given; do
    if [ -d "/run/local/$given" ]; then
        uv_build "$given" --refresh "/run/local/$given"
    else
        uv_pip --refresh "/run/local/$given"
    fi
done
forget_times
