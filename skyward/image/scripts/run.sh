# run COMMAND: runs a command of the user's. Bytecode is not compared with its source: of what it changes, it is removed.
/bin/sh -ec "$1"
find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run \) -prune \
    -o -name '*.py' -cnewer /run/skyward/begun -print | while IFS= read -r source; do
    name=${source##*/}
    for compiled in "${source%/*}/__pycache__/${name%.py}".*.pyc; do
        [ "$compiled" -nt /run/skyward/begun ] || rm -f "$compiled"
    done
done
