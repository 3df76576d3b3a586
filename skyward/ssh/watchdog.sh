LC_ALL=C pool=$1 lease=$2 slot=$3 attempt=$4 sh=$$
say() { printf 'skyward-watchdog %s\n' "$*"; }
engine() { docker -H "unix://$sock" "$@" 2>/dev/null; }
number() { case $1 in '' | 0?* | *[!0-9]* | ??????????*) return 1 ;; esac; }
sock=/var/run/docker.sock
case ${DOCKER_HOST:-} in unix://*) sock=${DOCKER_HOST#unix://} ;; esac
own=${XDG_RUNTIME_DIR:-/run/user/$(id -u)}/docker.sock
if [ ! -S "$sock" ] && [ -S "$own" ]; then sock=$own; fi
set -- ${SSH_CONNECTION:-}
say fact clock "$(date +%s)"
say fact address "${3:-}"
say fact machine "$(uname -s) $(uname -m)"
say fact socket "$sock"
if [ ! -S "$sock" ]; then say fact engine missing
elif [ ! -r "$sock" ] || [ ! -w "$sock" ]; then say fact engine forbidden
else say fact engine there; fi
say fact docker "$(command -v docker)"
say fact user "$(id -u) $(id -g)"
nvidia-smi --query-gpu=driver_version,name --format=csv,noheader 2>/dev/null | while read -r gpu; do
    say fact gpu "$gpu"
done
say fact toolkit "$(command -v nvidia-container-runtime-hook || command -v nvidia-ctk)"
say facts

mine() {  # whether a path is a directory of this user and no link, in which nobody else can write
    [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] || return 1
    listed=$(ls -ldn "$1") || return 1
    case $listed in
    d????-??-*) ;;
    d???????-?+*) return 1 ;;
    d???????-*) set -- $listed; [ "$4" = "$(id -g)" ] && [ "$(id -gn)" = "$(id -un)" ] ;;  # a group of one user
    *) return 1 ;;
    esac
}
settle() {  # find or make the directory for state; a machine of a cloud has one that its guard made
    for base in "/run/skyward/$(id -un)" "${XDG_RUNTIME_DIR:+$XDG_RUNTIME_DIR/skyward}" "${HOME:+$HOME/.cache/skyward}"
    do
        case $base in /run/skyward/*) [ -d "$base" ] || continue ;; /*) ;; *) continue ;; esac
        above=${base%/*}
        [ -d "$above" ] || mkdir "$above" 2>/dev/null
        above=$(cd -P "$above" 2>/dev/null && pwd -P) && base=$above/${base##*/}
        case $base in *[[:space:]\"\'\\%:\$\`]*) continue ;; esac
        [ ${#base} -le 66 ] || continue  # the paths of sockets below it must not have more than 107 characters
        [ "$above" = /run/skyward ] || mine "$above" || continue
        mkdir "$base" 2>/dev/null
        mine "$base" || continue
        pools=$base/pools
        mkdir "$pools" 2>/dev/null
        mine "$pools" || continue
        case $listed in drwx------*) return 0 ;; esac
    done
    return 1
}
alive() { touch -d "@$(($(date +%s) + lease))" "$dir/alive"; }  # the client was heard: the lease ends that much later
silent() {  # whether the client of a directory was not heard for the lease and some seconds
    ends=$(date -r "$1/alive" +%s) && [ $(($(date +%s) - $2)) -gt "$ends" ]
}
stale() {  # pools of this user whose watchdog was killed
    for other in "$pools"/*; do
        case ${other##*/} in *[!0-9A-Za-z.]* | *.*.*.*) continue ;; esac
        silent "$other" 30 && clear_pool "$other" 2 300
    done
}
containers() {  # of one attempt of a pool
    named=${1##*/}
    engine ps -aq --no-trunc --filter "label=skyward.pool=${named%%.*}" --filter "label=skyward.watchdog=${named#*.}"
}
clear_pool() {  # until the engine has none of its containers in $2 looks, also none that was just being made
    looks=$2 tries=$3
    while [ $looks -gt 0 ] && [ $tries -gt 0 ]; do
        if ids=$(containers "$1"); then
            if [ -n "$ids" ]; then looks=$2; engine rm -f -v $ids >/dev/null; continue; fi
            looks=$((looks - 1))
        fi
        tries=$((tries - 1))
        [ $looks -eq 0 ] || sleep 1
    done
    rm -rf "$1"
}
supersede() {  # end what earlier attempts of this pool left here; their watchdogs end when their directory is gone
    for other in "$pools/$pool.$slot".*; do
        number "${other##*.}" && [ "${other##*.}" -lt "$attempt" ] && clear_pool "$other" 1 20
    done
}
watch() {  # a connection that broke without a word keeps the watchdog's input open
    while sleep 2 && [ -e "$dir/watch.$sh" ]; do
        if silent "$dir" 0; then clear_pool "$dir" 2 300; fi
    done
    kill $sh
}
taken() {  # whether anybody listens at a port
    cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -q ":$(printf %04X "$1") [0-9A-F]*:[0-9A-F]* 0A "
}
port() {  # chosen at random, so that two pools hardly ever get the same one
    tries=0
    while [ $tries -lt 200 ]; do
        tries=$((tries + 1))
        set -- $(od -An -N2 -tu2 /dev/urandom)
        number "$1" || break
        taken $((10000 + $1 % 20000)) || { say port $((10000 + $1 % 20000)); return; }
    done
    say failed no free port was found
}
share() {  # with a container, into which a directory is mounted: with one user, or any; nobody else gets past $dir
    case $2 in
    any) chmod 777 "$1" && chmod 644 "$1/key" ;;
    "$(id -u)") : ;;
    *) chown "$2" "$1" "$1/key" ;;
    esac
}
disk() { say disk "$(df -Pk "$1" 2>/dev/null | { read -r _; read -r _ _ _ free _; echo "$free"; })"; }

while read -r word a; do
    case $word in
    disk) disk "$a" ;;
    clear) settle 2>/dev/null && for kept in "$pools/$a".*/left; do [ -e "$kept" ] && rm -rf "${kept%/left}"; done
        say cleared ;;
    *) break ;;
    esac
done
case $word in go | adopt) ;; *) exit 0 ;; esac
umask 077
trap '' HUP PIPE
if ! settle 2>/dev/null; then
    say failed 'neither $XDG_RUNTIME_DIR nor ~/.cache can hold a directory "skyward" that is this user'\''s alone.' \
        'It must belong to the user, be no link, be writable by nobody else, and have a short path without odd signs'
    exit 1
fi
dir=$pools/$pool.$slot.$attempt
[ "$word" = adopt ] && [ -d "$dir" ] && alive
stale </dev/null >/dev/null 2>&1 &
if [ "$word" != adopt ] || [ ! -d "$dir" ]; then  # a client that finds nothing to take over begins anew
    supersede 2>/dev/null
    if why=$(mkdir "$dir" 2>&1); then :; else say failed "$why"; exit 1; fi
fi
for other in "$pools/$pool".*; do  # after that, since two watchdogs may be here at the same time
    [ -d "$other" ] && [ "$other" != "$dir" ] || continue
    say failed "File exists: $other, so this machine is in the pool already, under another name"
    rmdir "$dir"
    exit 1
done
alive
rm -f "$dir"/watch.* "$dir/left"  # those of clients before end
: >"$dir/watch.$sh"
kept=
watch </dev/null >/dev/null 2>&1 &
say ready "$dir"
while read -r word a b c; do
    case $word in
    beat) alive ;;
    named) kept=1 ;;
    leave) lease=$a; alive; : >"$dir/left"; say left; exit 0 ;;
    port) port ;;
    disk) disk "$a" ;;
    node)
        if why=$(mkdir "$dir/$a" 2>&1 && printf "$b" >"$dir/$a/key" && share "$dir/$a" "$c" 2>&1)
        then say made; else say failed "$why"; fi ;;
    keep)
        if why=$(printf "$b" 2>&1 >"$dir/$a" && chmod 644 "$dir/$a"); then say kept; else say failed "$why"; fi ;;
    notice)  # of a rented machine's cloud
        if [ -e "$a/blind" ]; then say notice blind; else say notice "$(tr -d '\n' 2>/dev/null <"$a/notice")"; fi ;;
    drop) rm -rf "$dir/$a"; say dropped ;;
    end) rm -rf "$dir"; say ended; exit 0 ;;
    esac
done
[ "$kept" ] && exit 0  # the next client may come; else `watch` goes on, and clears it after the lease
clear_pool "$dir" 2 300
