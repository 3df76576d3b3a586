"""The SSH keys of a pool of rented machines: the client's login key, and the host keys by which machines are known.

Each launch has a first host key, which reaches its machines in their user data before sshd starts. Whoever may read
user data knows that key, so it serves for one connection only: over that connection the client learns the key that the
machine has generated itself, trusts only that one from then on, and tells the machine. Its sshd then forgets the first.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from skyward.errors import ProviderError

HOST_KEY: Final = "/etc/ssh/ssh_host_ed25519_key"  # cloud-init writes the first one here
_EXCHANGE: Final = "/run/skyward-host-key"
PUBLIC: Final = f"{_EXCHANGE}/public"  # the public half of the machine's own key
TRUSTED: Final = f"{_EXCHANGE}/client/trusted"  # the client makes this file; nobody reads it
SCRIPT: Final = r"""#!/bin/sh
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
"""
_LINE = re.compile(r"(ssh-ed25519 [A-Za-z0-9+/]{68})( .*)?")


def script_arguments(user: str) -> str:
    """The arguments of `SCRIPT`, for a client that logs in as this user."""
    return f"{HOST_KEY} {_EXCHANGE} {user}"


def public_key(output: str) -> str | None:
    """The public key in the last line of a machine's output, as `known_hosts` has it; None if there is none."""
    found = _LINE.fullmatch((output.strip().splitlines() or [""])[-1].strip())
    return found[1] if found else None


@dataclass(frozen=True, slots=True)
class FirstHostKey:
    """The host key that the machines of one launch have until the client has connected to them.

    Attributes:
        known_hosts: a file that names it, for the first connection to each machine alone.
        public: as a line of text.
        private: goes into user data.
    """

    known_hosts: Path
    public: str
    private: str = field(repr=False)

    def trust(self, addresses: Iterable[str]) -> None:
        """Write down that the machines at these addresses have it."""
        _write_known_hosts(self.known_hosts, dict.fromkeys(addresses, " ".join(self.public.split()[:2])))


@dataclass(frozen=True, slots=True)
class PoolKeys:
    """The keys of a pool, in a directory that only its owner can open.

    Attributes:
        folder: that directory.
    """

    folder: Path

    @classmethod
    def generate(cls, folder: Path) -> PoolKeys:
        """Generate the login key; no host key is known yet.

        Raises:
            ProviderError: the system has no ssh-keygen.
        """
        keys = cls(folder)
        _generate(keys.login_key)
        keys.known_hosts.touch()
        return keys

    def copy(self, folder: Path) -> PoolKeys:
        """The same in another directory that only its owner can open."""
        for path in (self.login_key, self.known_hosts):
            shutil.copyfile(path, folder / path.name)
            (folder / path.name).chmod(0o600)
        return PoolKeys(folder)

    @property
    def login_key(self) -> Path:
        """The private key that the client logs in with."""
        return self.folder / "key"

    @property
    def login_public(self) -> str:
        """Its public half, as a line of text."""
        return _public(self.login_key)

    @property
    def known_hosts(self) -> Path:
        """The host keys that machines have generated: the only ones that are trusted after the first connection."""
        return self.folder / "known_hosts"

    def first_host_key(self, launch: int) -> FirstHostKey:
        """A host key for the machines of the launch with this number. Its private half is kept in no file.

        Raises:
            ProviderError: the system has no ssh-keygen.
        """
        path = self.folder / f"first-{launch}"
        _generate(path)
        private, public = path.read_text(), _public(path)
        path.unlink()
        known_hosts = path.with_suffix(".known_hosts")
        known_hosts.touch()
        return FirstHostKey(known_hosts, public, private)

    def trust(self, keys: Mapping[str, str]) -> None:
        """Write down the only host keys to trust, by address."""
        _write_known_hosts(self.known_hosts, keys)


def _generate(path: Path) -> None:
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "skyward", "-f", str(path)]
    try:
        subprocess.run(words, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ProviderError(
            f"A key for the pool's machines cannot be generated ({error}). It takes OpenSSH's client (Debian: "
            "openssh-client)."
        ) from error


def _public(path: Path) -> str:
    return path.with_name(f"{path.name}.pub").read_text().strip()


def _write_known_hosts(path: Path, keys: Mapping[str, str]) -> None:
    """Replace a file of known hosts atomically."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text("".join(f"{address} {key}\n" for address, key in sorted(keys.items())))
    fresh.replace(path)
