"""The key pair of a detached run, which the hosts accept while its driver is alive.

Each host has a line for it in the user's authorized_keys, labelled with the run, and a marker file whose age is the
time since the driver's last sign of life. The driver's session on each host touches the marker, and removes the line at
the end; if the driver disappears, the session's shell does so a minute later. The next run removes stale lines.

On a rented machine the session also renews the run's lease, without which the machine's guard ends the machine.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import IO

from skyward.errors import ConfigError, ProviderError
from skyward.model.ssh import SshHost
from skyward.nodes.run_directory import private_directory
from skyward.records.run import RunRecord
from skyward.ssh.connection import CONNECT_S, KEY_FILE, SshConnection, configuration, connect
from skyward.system import threading

_BEAT_S = 15.0
_AGAIN_S = 5.0
_LEASE_S = 120.0  # of a run on its rented machines
_MARK = "skyward-key "
_COMMENT = "skyward-run-"
_ALGORITHM = "ed25519"
_FUNCTIONS = r"""
umask 077
say() { printf 'skyward-key %s\n' "$*"; }
marks=${XDG_STATE_HOME:-$HOME/.local/state}/skyward/keys
mkdir -p "$HOME/.ssh" "$marks"
keys=$(readlink -f "$HOME/.ssh/authorized_keys")
locked() { ( flock 9; "$@" ) 9<"$marks"; }  # one at a time changes the file
add() {
    [ ! -s "$keys" ] || [ -z "$(tail -c 1 "$keys")" ] || echo >>"$keys"
    printf '%s\n' "$2" >>"$keys" && : >"$marks/$1"
}
remove() {  # the file is replaced as a whole, with its owner and mode
    rm -f "$marks/$1"
    [ -f "$keys" ] && cp -p "$keys" "$keys.skyward" || return
    grep -v " skyward-run-$1\$" "$keys" >"$keys.skyward"
    mv "$keys.skyward" "$keys"
    [ -s "$keys" ] || rm -f "$keys"
}
fresh() { [ -n "$(find "$1" -mmin -2 2>/dev/null)" ]; }
"""
# The run's lease on a rented machine, beside those of pools: see the guard in providers/cloud/boot.py.
_LEASE = r"""
lease=/run/skyward/$(id -un)/pools/$2.run
[ "$2" ] || lease=
if [ "$lease" ]; then mkdir -p "$lease" && : >"$lease/alive" && : >"$lease/lease.$3" || exit; fi
expect() { if [ "$lease" ]; then rm -f "$lease"/lease.*; : >"$lease/lease.$1"; : >"$lease/alive"; fi; }
renew() { : >"$marks/$1"; if [ "$lease" ]; then : >"$lease/alive"; fi; }
"""
_ADD = f"""{_FUNCTIONS}
for mark in "$marks"/*; do
    [ ! -f "$mark" ] || fresh "$mark" || locked remove "${{mark##*/}}"
done
locked add "$1" "$2" && say added
"""
_REMOVE = f"""{_FUNCTIONS}
locked remove "$1"
say removed
"""
_HOLD = f"""{_FUNCTIONS}
{_LEASE}
trap '' HUP PIPE
say held
while read -r word; do
    case $word in
    end) locked remove "$1"; [ -z "$lease" ] || rm -rf "$lease"; say removed; exit ;;
    stay) expect "$4"; locked remove "$1"; say removed; exit ;;
    *) renew "$1" ;;
    esac
done
sleep 60
if [ -f "$marks/$1" ] && [ -z "$(find "$marks/$1" -mmin -1)" ]; then locked remove "$1"; fi
"""


def make_key(folder: Path, run_id: str) -> str:
    """Create the key pair of a run in a directory; return the public key.

    Raises:
        ProviderError: OpenSSH's ssh-keygen is missing or fails.
    """
    path = folder / KEY_FILE
    words = ["ssh-keygen", "-q", "-t", _ALGORITHM, "-N", "", "-C", f"{_COMMENT}{run_id}", "-f", str(path)]
    try:
        subprocess.run(words, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ProviderError(f"The key pair of {run_id} could not be created by ssh-keygen: {error}.") from error
    public = path.with_suffix(".pub")
    text = public.read_text().strip()
    public.unlink()
    return text


def add_key(host: SshHost, run_id: str, public: str, sources: Sequence[str]) -> None:
    """Make a host accept a run's key: only from these addresses, and for commands and port forwarding.

    Raises:
        ProviderError: it fails there.
    """
    line = f'restrict,port-forwarding,from="{",".join(sources)}" {public}'
    said = run_script(host, _ADD, run_id, line)
    if f"{_MARK}added" not in said:
        raise ProviderError(f"The key of {run_id} could not be added to ~/.ssh/authorized_keys on {host.name}: {said}")


def remove_key(host: SshHost, run_id: str) -> None:
    """Remove a run's key from a host."""
    run_script(host, _REMOVE, run_id)


def run_script(host: SshHost, script: str, *words: str, given: int | IO[bytes] = subprocess.DEVNULL) -> str:
    """Run a shell script on a host; return its output.

    Raises:
        ProviderError: it fails.
    """
    done = subprocess.run(host.command("sh", "-c", script, "sh", *words), stdin=given, capture_output=True, check=False)
    if done.returncode:
        raise ProviderError(f"A command on {host.name} failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode(errors="replace")


def address_of(host: SshHost) -> SshHost:
    """Return a host with the address, user and port that the SSH configuration assigns to its name."""
    told = configuration(host)
    port = int(told.get("port", "22"))
    return SshHost(host=told.get("hostname", host.host), user=told.get("user"), port=None if port == 22 else port)


def known_keys(host: SshHost, address: SshHost) -> list[str]:
    """Return known_hosts lines for a host at its address, from the host keys known on this machine.

    Raises:
        ConfigError: there are none: it is trusted by a certificate, or in another way.
    """
    told = configuration(host)
    files = [host.known_hosts] if host.known_hosts else []
    files = files or [*told.get("userknownhostsfile", "").split(), *told.get("globalknownhostsfile", "").split()]
    name = address.host if address.port is None else f"[{address.host}]:{address.port}"
    wanted = told.get("hostkeyalias") or name
    found: list[str] = []
    for file in map(Path, files):
        if file.expanduser().is_file():
            words = ["ssh-keygen", "-F", wanted, "-f", str(file.expanduser())]
            done = subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
            lines = [line.split() for line in done.stdout.splitlines() if not line.startswith(("#", "@"))]
            found += [" ".join((name, *line[1:3])) for line in lines if len(line) >= 3]
    if not found:
        raise ConfigError(
            f"The host key of {host.name} is in none of {', '.join(files)}, so the driver could not verify "
            "that host. Connect once by hand and compare the key."
        )
    return found


@contextmanager
def held_keys(hosts: Sequence[SshHost], record: RunRecord) -> Iterator[None]:
    """Keep a run's key valid on all its hosts, through sessions that use the key; remove it from them at the end.

    Rented machines stay up as long. At the end, the driver's machine, which is the first, stays for the time in its
    record; so it does if the driver disappears, but for at least two minutes, like the others.

    Raises:
        ProviderError: a host cannot be reached from here.
    """
    with ExitStack() as last:
        folder = last.enter_context(private_directory())
        holders = [_Holder(host, folder, number, record) for number, host in enumerate(hosts)]
        for holder in holders:
            last.callback(holder.end)
        for holder in holders:
            holder.begin()
        yield


class _Holder:
    """The session on one host, which is reopened when it breaks."""

    def __init__(self, host: SshHost, folder: Path, number: int, record: RunRecord) -> None:
        self._host, self._folder = host, folder
        self._words, self._last = [record.id], "end"
        if record.rented is not None:
            lease_s = max(_LEASE_S, record.rented.keep_s) if number == 0 else _LEASE_S
            self._words += [record.rented.pool, f"{lease_s:.0f}", f"{max(1.0, record.rented.keep_s):.0f}"]
            self._last = "stay" if number == 0 else "end"
        self._ending = threading.Event()
        self._connection: SshConnection | None = None
        self._thread = threading.Thread(target=self._beat, name=f"key-{host.name}", daemon=True)

    def begin(self) -> None:
        """Connect, and start renewing.

        Raises:
            ProviderError: it cannot be reached.
        """
        self._connection = self._connect()
        self._thread.start()

    def end(self) -> None:
        """Send the final command, which removes the key there."""
        self._ending.set()
        connection = self._connection
        if connection is None:
            return
        connection.send(self._last)
        connection.wait_marked(_MARK, 2 * CONNECT_S)
        connection.kill()

    def _connect(self) -> SshConnection:
        folder = mkdtemp(prefix="", dir=self._folder)
        connection = connect(self._host, Path(folder), "sh", "-c", _HOLD, "sh", *self._words)
        if connection.wait_marked(_MARK, 2 * CONNECT_S) != "held":
            connection.kill()
            raise ProviderError(f"The driver cannot reach {self._host.name} from its host. {connection.problem}")
        return connection

    def _beat(self) -> None:
        connection = self._connection
        while not self._ending.is_set():
            if connection is None or connection.ended.is_set():
                connection = None
                with suppress(ProviderError):  # it may answer again; else its shell removes the key
                    self._connection = connection = self._connect()
                self._ending.wait(_AGAIN_S)
                continue
            connection.send("beat")
            self._ending.wait(_BEAT_S)
