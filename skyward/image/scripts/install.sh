# install [--python-platform TARGET] FILE...: installs the packages of requirements files.
#
# FILE=URL takes its packages from that index alone; NAME.source.txt is one package that is built here.
. /run/steps/uv_pip.sh
for given; do
    file=/run/requirements/${given%%=*}
    case $given in
    *=*)
        address=$(address_of "${given#*=}")
        if [ "$address" = none ]; then set -- --no-index; else set -- --default-index "$address"; fi
        (unset UV_CONFIG_FILE && uv_pip --require-hashes -r "$file" --no-config "$@")
        ;;
    *.source.txt)
        name=${given%.source.txt}
        set -- --no-binary "$name" -r "$file"
        ! grep -q -e --hash= "$file" || set -- --require-hashes "$@" # a commit of a repository has none
        uv_build "$name" "$@"
        ;;
    *) uv_pip --require-hashes -r "$file" ;;
    esac
done
forget_times
