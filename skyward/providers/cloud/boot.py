"""The first start of a machine: user data for cloud-init, the services that it starts, and the SSH keys of the pool.

The user data contains the first host key, the user who may log in, and three systemd services:

- the guard, which shuts the machine down after its pool;
- the exchange of the host key. Each launch has a first host key, which reaches its machines before sshd starts. As user
  data can be read by others, that key is used for one connection only: over it the client receives the key that the
  machine has generated itself, trusts only that one from then on, and confirms this to the machine. Its sshd then drops
  the first key;
- the rule that closes the metadata service to containers. That service, at 169.254.169.254, returns user data and the
  machine's credentials to any caller on the machine. Containers use the machine's network and may run as root, so
  neither address nor user distinguishes them from the machine's own services. Their control group does, and they cannot
  leave it without SYS_ADMIN. A root service therefore makes the firewall accept traffic of its own control group and
  reject all other. Only this service can query the cloud's notices; it writes them to a file, which the allocation
  reads.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from skyward.errors import ProviderError
from skyward.providers.cloud.base import FirstStart

USER: Final = "skyward"  # the login user, for every machine image
_Service: TypeAlias = "tuple[str, list[dict[str, str]]]"  # name of the systemd unit, and its files
_UNIT = """[Unit]
Description={about}

[Service]
{lines}

[Install]
WantedBy=multi-user.target
"""


def user_data(
    login_public: str, first: FirstHostKey, lease_s: float, start: FirstStart, budget_s: float = math.inf
) -> str:
    """Return the configuration for cloud-init.

    Args:
        login_public: public half of the key that the client logs in with.
        first: the host key with which the machine starts.
        lease_s: how long the pool's nodes outlive its client.
        start: additional actions of the cloud.
        budget_s: seconds in which the pool's machines spend its budget, some of which have passed when this one starts.
    """
    user = {"name": USER, "groups": ["docker"], "shell": "/bin/sh", "lock_passwd": True}
    services = (_guard(lease_s, budget_s), _host_key(), _metadata(start))
    more = [{"path": path, "permissions": "0644", "content": text} for path, text in start.files.items()]
    config = {
        "users": [{**user, "ssh_authorized_keys": [login_public]}],
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": first.private, "ed25519_public": first.public},
        "write_files": [*more, *(file for _, files in services for file in files)],
        "runcmd": [*(["systemctl", "enable", "--now", f"{name}.service"] for name, _ in services), *start.commands],
    }
    return "#cloud-config\n" + json.dumps(config)  # JSON is YAML


def _service(name: str, about: str, script: str, arguments: str, after: str = "", before: str = "") -> _Service:
    """Return a systemd service that runs a script."""
    path = f"/usr/local/sbin/{name}"
    lines = "\n".join(filter(None, (before, f"ExecStart=/bin/sh {path} {arguments}", after)))
    unit = _UNIT.format(about=about, lines=lines)
    return name, [
        {"path": path, "permissions": "0755", "content": script},
        {"path": f"/etc/systemd/system/{name}.service", "permissions": "0644", "content": unit},
    ]


# the guard ----------------------------------------------------------------------------------------------------

MARK: Final = "/run/skyward-guard"  # exists while the guard runs
STATE: Final = f"/run/skyward/{USER}"  # the watchdog's directory, created by root and accessible to that user only
_BOOT_S = 600  # how long a machine waits for its pool's first lease
# later than the client, which ends the machines when the budget is spent: that is postponed by machines that are lost
_BUDGET_LATER, _BUDGET_LATER_S = 1.1, 10.0
_LONGEST_S = 1e8  # three years; the script accepts nine digits
_IDLE_S = 60.0  # how long it waits for another pool after the last one
# The guard runs as root, and the files belong to a user: it uses names and ages of files, never their content.
GUARD: Final = Path(__file__).with_name("guard.sh").read_text()


def _guard(lease_s: float, budget_s: float) -> _Service:
    install = f"ExecStartPre=/usr/bin/install -d -m 0700 -o {USER} {STATE}"
    arguments = f"{STATE}/pools {MARK} {_BOOT_S} {int(min(lease_s, _IDLE_S))}"
    if budget_s < _LONGEST_S:
        arguments += f" {int(budget_s * _BUDGET_LATER + _BUDGET_LATER_S)}"
    about = "Shuts the machine down when no live pool holds a lease on it"
    return _service("skyward-guard", about, GUARD, arguments, "Restart=always", before=install)


# keys -----------------------------------------------------------------------------------------------------------

HOST_KEY: Final = "/etc/ssh/ssh_host_ed25519_key"  # cloud-init writes the first one here
_EXCHANGE: Final = "/run/skyward-host-key"
PUBLIC: Final = f"{_EXCHANGE}/public"  # the public half of the machine's own key
TRUSTED: Final = f"{_EXCHANGE}/client/trusted"  # created by the client; its content is ignored
KEY_SCRIPT: Final = Path(__file__).with_name("host_key.sh").read_text()
_LINE = re.compile(r"(ssh-ed25519 [A-Za-z0-9+/]{68})( .*)?")


def _host_key() -> _Service:
    about = "Gives the machine a host key that it has generated itself"
    return _service("skyward-host-key", about, KEY_SCRIPT, f"{HOST_KEY} {_EXCHANGE} {USER}")


def public_key(output: str) -> str | None:
    """Return the public key in the last line of a machine's output, as in `known_hosts`; None if there is none."""
    found = _LINE.fullmatch((output.strip().splitlines() or [""])[-1].strip())
    return found[1] if found else None


@dataclass(frozen=True, slots=True)
class FirstHostKey:
    """The host key of one launch's machines until the client has connected to them.

    Attributes:
        known_hosts: known_hosts file with it, only for the first connection to each machine.
        public: its public half, as a line of text.
        private: its private half, for user data.
    """

    known_hosts: Path
    public: str
    private: str = field(repr=False)

    def trust(self, addresses: Iterable[str]) -> None:
        """Write the known_hosts file for machines at these addresses."""
        _write_known_hosts(self.known_hosts, dict.fromkeys(addresses, " ".join(self.public.split()[:2])))


@dataclass(frozen=True, slots=True)
class PoolKeys:
    """The keys of a pool, in a directory accessible to its owner only.

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
        """Copy the keys to another directory accessible to its owner only."""
        for path in (self.login_key, self.known_hosts):
            shutil.copyfile(path, folder / path.name)
            (folder / path.name).chmod(0o600)
        return PoolKeys(folder)

    @property
    def login_key(self) -> Path:
        """The private key with which the client logs in."""
        return self.folder / "key"

    @property
    def login_public(self) -> str:
        """Its public half, as a line of text."""
        return _public(self.login_key)

    @property
    def known_hosts(self) -> Path:
        """The host keys generated by the machines: the only ones trusted after the first connection."""
        return self.folder / "known_hosts"

    def first_host_key(self, launch: int) -> FirstHostKey:
        """Generate a host key for the machines of the launch with this number. Its private half remains in no file.

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
        """Write the only host keys to trust, by address."""
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
    """Replace a known_hosts file atomically."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text("".join(f"{address} {key}\n" for address, key in sorted(keys.items())))
    fresh.replace(path)


# the metadata service -------------------------------------------------------------------------------------------

METADATA: Final = "/run/skyward-metadata"  # has `notice`, or `blind` if the firewall cannot match control groups
READY: Final = f"{METADATA}/ready"  # exists once the metadata service is closed, or if it is to stay open
_METADATA_SCRIPT: Final = Path(__file__).with_name("metadata.sh").read_text()


def _metadata(start: FirstStart) -> _Service:
    about = "Closes the metadata service to containers and reads notices of the cloud"
    read = textwrap.indent(start.read_notice.strip("\n"), "    ")
    script = _METADATA_SCRIPT.replace("@OPEN_PORTS@", " ".join(map(str, start.open_ports)))
    arguments = f"{METADATA} {'open' if start.open_metadata else 'closed'}"
    after = "Restart=always\nRestartSec=2\nDelegate=yes"
    return _service("skyward-metadata", about, script.replace("@READ_NOTICE@", read), arguments, after)
