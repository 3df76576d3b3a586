"""A machine reached by SSH, as a value: its address, and the command line that runs something there."""

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
    *("-T", "-o", "BatchMode=yes"),  # nobody is there to type a password
    *("-o", "StrictHostKeyChecking=yes"),  # a build's secrets go there
    *("-o", "NoHostAuthenticationForLocalhost=no"),  # a forward of somebody else's may stand at a port of this machine
    *("-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"),
    *("-o", "RemoteCommand=none"),  # the configuration may name one for people
)
# Where known_hosts= is given: every other source of host keys in ssh_config(5), and what would write to that file. A
# connection that the configuration shares was made with whatever keys that trusts.
_KNOWN_HOSTS_ONLY = (
    *("-o", "GlobalKnownHostsFile=/dev/null", "-o", "KnownHostsCommand=none", "-o", "VerifyHostKeyDNS=no"),
    *("-o", "UpdateHostKeys=no", "-o", "CheckHostIP=no", "-o", "ControlMaster=no", "-o", "ControlPath=none"),
)
# what ssh and the docker command over there say, and what to do; the first that matches is used
_KNOWN = (
    (
        r"permission denied.*docker (daemon|api)",
        "the user may not use the engine there. Add them to the group docker on that machine.",
    ),
    (r"cannot connect to the docker daemon", "the engine there does not run. Start it."),
    (r"docker: (command )?not found|docker: No such file", "there is no docker command there. Install Docker on it."),
    (
        r"host identification has changed",
        "its host key is not the one that is known here: it was installed anew, or it is another machine. Compare the "
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
        "no SSH connection came about. Check address, port and network.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SshHost:
    """A machine that the system's `ssh` reaches with a key, as its configuration says.

    Attributes:
        host: name or address, or an alias of the SSH configuration.
        user: whom to log in as; None for what the SSH configuration says.
        port: TCP port; None for what the SSH configuration says.
        key: file of the private key to log in with; None for what agent and SSH configuration offer.
        known_hosts: file of the only host keys to trust; None for those of the SSH configuration.
        trusts_jumps: whether the SSH configuration says all the same which keys of jump hosts to trust.
        control: socket of an open connection to go through; None to make one.
        way: options of ssh that lead there where the SSH configuration would have led past `known_hosts`.

    Raises:
        ConfigError: the path of a file cannot be given to ssh.
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
        """The machine of an address such as `ssh://user@host` or `ssh://host:2222`.

        Raises:
            ConfigError: it is no such address, or holds a password.
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
        """The address in the form `parse` takes."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"ssh://{f'{self.user}@' if self.user else ''}{host}{f':{self.port}' if self.port else ''}"

    @property
    def name(self) -> str:
        """The machine as people write it: `user@host:port` without what the SSH configuration decides."""
        return self.url.removeprefix("ssh://")

    def command(self, *words: str, options: Sequence[str] = ()) -> list[str]:
        """The local command that runs these words on the machine, each one argument there; without words, none.

        Of an option that is given twice ssh takes the first: `options` come before those that are always there.
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
        """What it means that ssh or the docker command there printed this, and what to do; None if it is not known."""
        by_hand = f"ssh {f'-p {self.port} ' if self.port else ''}{f'{self.user}@' if self.user else ''}{self.host}"
        for pattern, meaning in _KNOWN:
            if re.search(pattern, said, re.IGNORECASE):
                last = said.strip().splitlines()[-1].rstrip(".")
                return f"{meaning.format(by_hand=by_hand)} The answer was: {last}."
        return None

    def failure(self, said: str) -> EngineMissingError | None:
        """The error for what ssh or the docker command there printed; None if that says nothing about reaching it."""
        meaning = self.meaning(said)
        return EngineMissingError(f"The Docker engine on {self.url} cannot be reached: {meaning}") if meaning else None


def existing_file(provider: str, name: str, path: str | os.PathLike[str] | None) -> Path | None:
    """The absolute path of a file that a parameter names; None for None.

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
