"""The hosts, keys and host keys that paramiko uses: from the user's SSH configuration, with its jump hosts."""

from __future__ import annotations

import getpass
import re
import shlex
from collections.abc import Generator, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from glob import glob
from pathlib import Path
from typing import Any

import paramiko
from paramiko.ssh_exception import SSHException

from skyward.errors import ProviderError
from skyward.model.ssh import SshHost
from skyward.ssh.connection import MOST_JUMPS

CONFIGURATIONS = ("~/.ssh/config", "/etc/ssh/ssh_config")
_KNOWN_HOSTS = ("~/.ssh/known_hosts ~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2")
_IDENTITIES = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")
_UNKNOWN = ("revokedhostkeys", "proxycommand")  # without these a machine would be trusted, or reached, that must not be


class ConnectError(Exception):
    """Why a connection did not come about, in the words of OpenSSH's client, which `SshHost.meaning` explains."""


@dataclass(frozen=True, slots=True)
class Hop:
    """A machine on the way to another, or that one.

    Attributes:
        host: the machine as it was named.
        settings: what the SSH configuration says of it.
    """

    host: SshHost
    settings: Mapping[str, Any]

    @property
    def address(self) -> tuple[str, int]:
        """Its host name, which may be an address, and its port."""
        return str(self.settings["hostname"]), self.host.port or int(self.settings.get("port", 22))

    @property
    def user(self) -> str:
        """Whom to log in as."""
        return self.host.user or str(self.settings.get("user") or getpass.getuser())

    @property
    def name(self) -> str:
        """Its name in files of known hosts."""
        host, port = self.address
        if alias := self.settings.get("hostkeyalias"):
            return str(alias).lower()
        return host.lower() if port == 22 else f"[{host.lower()}]:{port}"

    @property
    def known_hosts(self) -> list[Path]:
        """Files of the host keys to trust."""
        if self.host.known_hosts is not None:
            return [Path(self.host.known_hosts)]
        names = zip(("userknownhostsfile", "globalknownhostsfile"), _KNOWN_HOSTS, strict=True)
        texts = [str(self.settings.get(name, default)) for name, default in names]
        return [Path(path).expanduser() for text in texts for path in shlex.split(text)]

    def identities(self) -> Generator[paramiko.PKey, None, None]:
        """The user's keys for it, in OpenSSH's order: those of the agent that are named, its others, those of files."""
        named = [self.host.key] if self.host.key else self.settings.get("identityfile", _IDENTITIES)
        files = [Path(file).expanduser() for file in named if file != "none"]
        public = {_public(file) for file in files}
        only_named = self.host.key is not None or self.settings.get("identitiesonly") == "yes"
        with self._agent() as agent:
            held = agent.get_keys() if agent else ()
            yield from (key for key in held if key.get_base64() in public)
            if not only_named:
                yield from (key for key in held if key.get_base64() not in public)
            for file in files:
                try:
                    yield paramiko.PKey.from_path(file)
                except (OSError, ValueError, TypeError, SSHException):  # there is none, or it takes a passphrase
                    continue

    @contextmanager
    def _agent(self) -> Iterator[paramiko.Agent | None]:
        """The user's agent; None where there is none, or the configuration names another."""
        if self.settings.get("identityagent", "SSH_AUTH_SOCK") != "SSH_AUTH_SOCK":
            yield None
            return
        try:
            agent = paramiko.Agent()
        except (SSHException, OSError):
            yield None
            return
        with closing(agent):
            yield agent


def route(host: SshHost, jumps: Sequence[str] | None = None, depth: int = 0) -> tuple[Hop, ...]:
    """The machines to connect to, each through the one before; the last is the host itself.

    Args:
        host: the machine.
        jumps: what comes before it; None for what the configuration says.
        depth: how many machines come after it.

    Raises:
        ProviderError: the configuration cannot be read, or says what paramiko cannot do; jumps lead in a circle.
    """
    hop = Hop(host, _settings(host))
    if jumps is None:
        named = str(hop.settings.get("proxyjump", "none"))
        jumps = [] if named.lower() == "none" else [each.strip() for each in named.split(",")]
    if not jumps:
        return (hop,)
    if depth >= MOST_JUMPS:
        raise ProviderError(f"The SSH configuration leads to {host.name} in a circle of jump hosts.")
    jump = SshHost.parse(jumps[-1] if "://" in jumps[-1] else f"ssh://{jumps[-1]}")
    jump = replace(jump, known_hosts=None if host.trusts_jumps else host.known_hosts)
    return (*route(jump, jumps[:-1] or None, depth + 1), hop)


def known_types(hop: Hop) -> AbstractSet[str]:
    """The algorithms of the host keys that are known of a machine."""
    kinds = {kind for marker, kind, _ in _entries(hop) if not marker}
    return kinds | ({"rsa-sha2-512", "rsa-sha2-256"} if "ssh-rsa" in kinds else set())


def check_host_key(hop: Hop, key: paramiko.PKey) -> None:
    """Raise ConnectError unless a machine's key is in its files of known hosts, and not revoked there."""
    kind, text = key.get_name(), key.get_base64()
    entries = _entries(hop)
    if ("@revoked", kind, text) in entries:
        raise ConnectError(f"Host key verification failed: the key of {hop.name} is marked as revoked.")
    if ("", kind, text) in entries:
        return
    if any(known == kind and not marker for marker, known, _ in entries):
        raise ConnectError(f"Remote host identification has changed: {hop.name} has another key of type {kind}.")
    raise ConnectError(f"No {kind} host key is known for {hop.name} and you have requested strict checking.")


def _entries(hop: Hop) -> set[tuple[str, str, str]]:
    """What files of known hosts say of a machine: marker ("" for none), type and key."""
    found = set()
    for path in hop.known_hosts:
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            words = line.split()
            marker = words.pop(0) if words and words[0].startswith("@") else ""
            if len(words) >= 3 and not words[0].startswith("#") and _matches(words[0], hop.name):
                found.add((marker, words[1], words[2]))
    return found


def _matches(patterns: str, name: str) -> bool:
    """Whether a machine's name is among those of a line: hashed, or a list with `*`, `?` and, to exclude one, `!`."""
    if patterns.startswith("|"):
        return patterns.startswith("|1|") and paramiko.HostKeys.hash_host(name, patterns) == patterns
    matched = [each for each in patterns.lower().split(",") if _glob(each.removeprefix("!"), name)]
    return bool(matched) and not any(each.startswith("!") for each in matched)


def _glob(pattern: str, name: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), name) is not None


def _public(file: Path) -> str:
    """The public half of a key in a file, where that lies beside it."""
    try:
        return file.with_name(f"{file.name}.pub").read_text().split()[1]
    except (OSError, IndexError, UnicodeDecodeError):
        return ""


def _settings(host: SshHost) -> dict[str, Any]:
    text = "".join(_text(Path(path).expanduser()) for path in CONFIGURATIONS)
    try:
        settings = dict(paramiko.SSHConfig.from_text(text).lookup(host.host))
    except (SSHException, ValueError, KeyError, OSError, ImportError) as error:
        raise ProviderError(f"The SSH configuration cannot be read for {host.name}: {error}.") from error
    settings = {**settings, **({"user": host.user} if host.user else {})}
    if unknown := [name for name in _UNKNOWN if str(settings.get(name) or "none").lower() != "none"]:
        raise ProviderError(
            f"The SSH configuration has the option {unknown[0]} for {host.name}, which takes OpenSSH's client: install "
            "it (Debian: openssh-client)."
        )
    return settings


def _text(path: Path, depth: int = 0) -> str:
    """The text of a configuration file with those that it includes. They must stand before its first Host or Match.

    Raises:
        ProviderError: one stands further down, or they lead in a circle.
    """
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    found, in_block = ["Host *"], False
    for line in lines:
        word, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        in_block |= word.lower() in ("host", "match")
        if word.lower() != "include":
            found.append(line)
            continue
        if in_block or depth >= MOST_JUMPS:
            raise ProviderError(
                f"The SSH configuration {path} includes {rest.strip()} inside a Host or Match block, or in a circle, "
                "which takes OpenSSH's client: install it (Debian: openssh-client), or put the Include first."
            )
        folder = Path("/etc/ssh") if path.is_relative_to("/etc/ssh") else Path("~/.ssh").expanduser()
        for pattern in shlex.split(rest, comments=True):
            names = sorted(glob(str(folder / Path(pattern).expanduser())))  # noqa: PTH207 - it may be absolute
            found += [_text(Path(name), depth + 1) for name in names]
        found.append("Host *")
    return "\n".join([*found, ""])
