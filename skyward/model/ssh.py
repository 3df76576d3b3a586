"""A machine reached by SSH, as a value: its address, and the command line that runs a command there."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from skyward.errors import ConfigError, EngineMissingError

_OPTIONS = (
    *("-T", "-o", "BatchMode=yes"),  # nobody can type a password
    *("-o", "StrictHostKeyChecking=yes"),  # build secrets are sent there
    *("-o", "NoHostAuthenticationForLocalhost=no"),  # a port of this machine may be another user's forward
    *("-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"),
    *("-o", "RemoteCommand=none"),  # the configuration may set one for interactive use
)
# With known_hosts=: turn off every other source of host keys in ssh_config(5), and whatever would write to that file.
# A connection shared by the configuration may have been made with any keys that it trusts.
_KNOWN_HOSTS_ONLY = (
    *("-o", "GlobalKnownHostsFile=/dev/null", "-o", "KnownHostsCommand=none", "-o", "VerifyHostKeyDNS=no"),
    *("-o", "UpdateHostKeys=no", "-o", "CheckHostIP=no", "-o", "ControlMaster=no", "-o", "ControlPath=none"),
)
# error patterns of ssh and of the remote docker command, with cause and remedy; the first match is used
_KNOWN = (
    (
        r"permission denied.*docker (daemon|api)",
        "the user may not use the engine there. Add them to the group docker on that machine.",
    ),
    (r"cannot connect to the docker daemon", "the engine there does not run. Start it."),
    (r"docker: (command )?not found|docker: No such file", "there is no docker command there. Install Docker on it."),
    (
        r"host identification has changed",
        "its host key is not the one that is known here: it was reinstalled, or it is another machine. Compare the "
        "key with its owner before you replace it (`ssh-keygen -R`).",
    ),
    (
        r"host key verification failed|host key is known",
        "its host key is not known here. Connect once by hand (`{by_hand}`) and compare the key.",
    ),
    (
        r"bad configuration option: knownhostscommand",
        "the ssh command here cannot be kept to the keys of known_hosts=. Install OpenSSH 8.5 or newer (March 2021).",
    ),
    (
        r"permission denied \(|too many authentication failures",
        "it accepts none of this user's keys. Make `{by_hand}` work without a password (ssh-copy-id, ssh-agent).",
    ),
    (r"could not resolve hostname|name or service not known", "the name cannot be resolved. Check its spelling."),
    (
        r"connection (refused|timed out|closed|reset)|no route to host|network is unreachable|operation timed out",
        "the SSH connection failed. Check address, port and network.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SshHost:
    """A machine that the system's `ssh` reaches with a key, according to its configuration.

    Attributes:
        host: name or address, or an alias of the SSH configuration.
        user: user to log in as; None for that of the SSH configuration.
        port: TCP port; None for that of the SSH configuration.
        key: file of the private key to log in with; None for those of the agent and the SSH configuration.
        known_hosts: file with the only host keys to trust; None for those of the SSH configuration.
        trusts_jumps: whether the SSH configuration still determines which keys of jump hosts to trust.
        control: socket of an open connection to use; None to open one.
        way: options of ssh that lead there if the SSH configuration would have bypassed `known_hosts`.

    Raises:
        ConfigError: the path of a file cannot be passed to ssh.
    """

    host: str
    user: str | None = None
    port: int | None = None
    key: str | None = None
    known_hosts: str | None = None
    trusts_jumps: bool = False
    control: str | None = None
    way: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, path in (("key", self.key), ("known_hosts", self.known_hosts)):
            if path and re.search(r'["\\\n]|\$\{', path):
                raise ConfigError(f"The file {path!r} of {name}= cannot be given to ssh: its path has signs of syntax.")

    @classmethod
    def parse(cls, url: str) -> SshHost:
        """Return the machine for an address such as `ssh://user@host` or `ssh://host:2222`.

        Raises:
            ConfigError: it is not such an address, or contains a password.
        """
        wanted = f"An address of a machine has the form ssh://user@host or ssh://user@host:port; found {_shown(url)!r}."
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise ConfigError(wanted) from None
        if parts.password:
            raise ConfigError(f"{wanted} It holds a password; skyward logs in with a key.")
        # ssh would take a name that starts with a dash for an option
        names = [name for name in (host, parts.username) if name is not None]
        if parts.scheme != "ssh" or not host or not all(re.fullmatch(r"[\w.:%][\w.:%@+-]*", name) for name in names):
            raise ConfigError(wanted)
        if parts.path.strip("/") or parts.query or parts.fragment:
            raise ConfigError(f"{wanted} Nothing may follow the host.")
        return cls(host=host, user=parts.username, port=port)

    @property
    def url(self) -> str:
        """The address in the form that `parse` takes."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"ssh://{f'{self.user}@' if self.user else ''}{host}{f':{self.port}' if self.port else ''}"

    @property
    def name(self) -> str:
        """The machine as people write it: `user@host:port`, without parts left to the SSH configuration."""
        return self.url.removeprefix("ssh://")

    def command(self, *words: str, options: Sequence[str] = ()) -> list[str]:
        """Return the local command that runs these words on the machine, each as one argument; without words, none.

        If an option is given twice, ssh uses the first: `options` come before those that are always set.
        """
        user = ("-l", self.user) if self.user else ()
        port = ("-p", str(self.port)) if self.port else ()
        control = ("-S", self.control) if self.control else ()
        return [
            *("ssh", *options, *control, *self.way, *_OPTIONS, *self._identity(), *user, *port),
            *("--", self.host, *([shlex.join(words)] if words else [])),
        ]

    def _identity(self) -> list[str]:
        key, known = (path and path.replace("%", "%%") for path in (self.key, self.known_hosts))  # % starts a token
        words = ["-i", key, "-o", "IdentitiesOnly=yes"] if key else []
        return [*words, "-o", f'UserKnownHostsFile="{known}"', *_KNOWN_HOSTS_ONLY] if known else words

    def meaning(self, said: str) -> str | None:
        """Return the cause and the remedy for this output of ssh or the remote docker command; None if unknown."""
        by_hand = f"ssh {f'-p {self.port} ' if self.port else ''}{f'{self.user}@' if self.user else ''}{self.host}"
        for pattern, meaning in _KNOWN:
            if re.search(pattern, said, re.IGNORECASE):
                last = said.strip().splitlines()[-1].rstrip(".")
                return f"{meaning.format(by_hand=by_hand)} The answer was: {last}."
        return None

    def failure(self, said: str) -> EngineMissingError | None:
        """Return the error for this output of ssh or the remote docker command; None if not about the connection."""
        meaning = self.meaning(said)
        return EngineMissingError(f"The Docker engine on {self.url} cannot be reached: {meaning}") if meaning else None


def existing_file(provider: str, name: str, path: str | os.PathLike[str] | None) -> Path | None:
    """Return the absolute path of a file that a parameter names; None for None.

    Raises:
        ConfigError: there is no such file.
    """
    if path is None:
        return None
    found = Path(path).expanduser().absolute()
    if not found.is_file():
        raise ConfigError(f"{provider}: {name} names the file {found}, which does not exist.")
    return found


def _shown(url: str) -> str:
    return re.sub(r":[^:@/]*@", ":***@", url)
