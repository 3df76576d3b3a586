#!/bin/sh
# Generates a host key, shows its public half, and gives it to sshd when the client trusts it.
key=$1 place=$2 user=$3
[ ! -e "$key.own" ] || exit 0  # a machine that was restarted keeps the key that it has generated
umask 077
rm -f "$key.next" "$key.next.pub"
ssh-keygen -q -t ed25519 -N '' -C skyward -f "$key.next" || exit 1
rm -rf "$place/public" "$place/client"
install -d -m 755 "$place" && install -d -m 700 -o "$user" "$place/client" || exit 1
install -m 644 "$key.next.pub" "$place/.public" && mv "$place/.public" "$place/public" || exit 1
until [ -e "$place/client/trusted" ]; do sleep 0.2; done
mv -f "$key.next.pub" "$key.pub"
mv -f "$key.next" "$key" || exit 1
: >"$key.own"
systemctl reload sshd 2>/dev/null || systemctl reload ssh
