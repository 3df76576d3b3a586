"""Transfer of an image from one machine to others, over their own network and not through the client's.

Machines have no keys for each other. So for one transfer the receiver runs a second sshd, as its user, at its address
in the pool, with a host key made for it. It accepts one key, also made for it, which may run `docker load` and nothing
else. Both keys are sent through the connections that are open already. Each side removes what it made when its session
ends, however that comes about.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address

from skyward.builder.events import Report, note, readable, share
from skyward.errors import ProviderError, SkywardError
from skyward.nodes.run_directory import private_directory
from skyward.nodes.ssh_host import Machine
from skyward.system import threading, time
from skyward.system.futures import ThreadPoolExecutor

_AT_ONCE = 2  # receivers that one machine sends to at a time; each of them then sends to others
_SAY_EVERY_S = 3.0
_MARK = "skyward-relay "
_RECEIVE = r"""
dir=$1 port=$2 address=$3 sock=$4
umask 077
mkdir "$dir" || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM PIPE
read -r key
ssh-keygen -q -t ed25519 -N '' -f "$dir/host" </dev/null || exit 1
printf 'restrict,command="docker -H unix://%s load -q" %s\n' "$sock" "$key" >"$dir/keys"
sshd=$(PATH=$PATH:/usr/sbin:/usr/local/sbin command -v sshd)
"$sshd" -D -e -f /dev/null -h "$dir/host" -p "$port" -o "ListenAddress=$address" -o "AuthorizedKeysFile=$dir/keys" \
    -o "AllowUsers=$(id -un)" -o StrictModes=no -o UsePAM=no -o PasswordAuthentication=no \
    -o KbdInteractiveAuthentication=no -o PidFile=none \
    </dev/null >/dev/null 2>"$dir/said" &
listener=$!
trap 'kill $listener; rm -rf "$dir"' EXIT
hexadecimal=$(printf :%04X "$port")
until cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -q "$hexadecimal [0-9A-F]*:0000 0A"; do
    kill -0 $listener || { cat "$dir/said" >&2; exit 1; }
    sleep 0.05
done
echo "skyward-relay $(id -un) $(cut -d' ' -f1,2 "$dir/host.pub")"
cat >/dev/null
"""
_GIVE = r"""
dir=$1 tag=$2 sock=$3 port=$4 address=$5 user=$6 host_key=$7
umask 077
mkdir "$dir" || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM PIPE
sed '/^-----END/q' >"$dir/key"
echo "[$address]:$port $host_key" >"$dir/known"
mkfifo "$dir/pipe" || exit 1
docker -H "unix://$sock" save "$tag" >"$dir/pipe" &
ssh -F /dev/null -T -i "$dir/key" -p "$port" -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=yes \
    -o "UserKnownHostsFile=$dir/known" -o GlobalKnownHostsFile=/dev/null -o ConnectTimeout=5 -o ServerAliveInterval=1 \
    -o ServerAliveCountMax=5 -o "Ciphers=^aes128-gcm@openssh.com" "$user@$address" <"$dir/pipe" >/dev/null &
ssh=$!
while sleep 1 >/dev/null 2>&1 && kill -0 $ssh 2>/dev/null; do
    echo "skyward-relay $(sed -n 's/^rchar: //p' "/proc/$ssh/io" 2>/dev/null)"
done &
says=$!
wait $ssh
status=$?
kill $says
exit $status
"""


def can_receive(address: str) -> bool:
    """Whether a machine may receive at this address: no sshd is started at a public one."""
    return not ip_address(address).is_global


def relay(source: Machine, tag: str, size: int, targets: Sequence[Machine], report: Report) -> list[Machine]:
    """Send an image from one machine to others; gives those that could not get it.

    Args:
        source: the machine that has it.
        tag: its name.
        size: its bytes.
        targets: the machines that lack it. Each sends it on once it has it.
        report: receives progress, and why one did not get it.
    """
    return _Relay(tag, size, report).run(source, targets)


class _Relay:
    """The transfers of one image, and their SSH sessions."""

    def __init__(self, tag: str, size: int, report: Report) -> None:
        self._tag, self._size, self._report = tag, size, report
        self._lock = threading.Lock()
        self._sessions: list[subprocess.Popen[str]] = []
        self._over = False

    def run(self, source: Machine, targets: Sequence[Machine]) -> list[Machine]:
        sources, waiting, failed = [source], list(targets), list[Machine]()
        began = time.monotonic()
        while waiting:
            batch, waiting = waiting[: _AT_ONCE * len(sources)], waiting[_AT_ONCE * len(sources) :]
            pairs = [(sources[number % len(sources)], target) for number, target in enumerate(batch)]
            with ThreadPoolExecutor(len(pairs), thread_name_prefix="skyward-relay") as threads:
                tries = [(threads.submit(self._transfer, *pair), *pair) for pair in pairs]
                try:
                    for done, giver, target in tries:
                        if self._arrived(done.exception(), giver, target, began):
                            sources.append(target)
                        else:
                            failed.append(target)
                except BaseException:  # Ctrl-C ends what is under way
                    self._end()
                    raise
        return failed

    def _arrived(self, error: BaseException | None, source: Machine, target: Machine, began: float) -> bool:
        if error is None:
            self._report(note(f"{target.name}: has the image after {time.monotonic() - began:.1f} s"))
        elif isinstance(error, SkywardError):
            self._report(note(f"{target.name} could not get the image from {source.name}: {error}"))
        else:
            raise error
        return error is None

    def _transfer(self, source: Machine, target: Machine) -> None:
        self._report(note(f"relaying the image, {readable(self._size)}, from {source.name} to {target.name}"))
        private, public = _key()
        port = str(target.watchdog.port())
        where = (str(target.watchdog.directory / f"relay-{port}"), port, target.address, target.facts.socket)
        receiver = self._session(target, _RECEIVE, *where)
        try:
            user, host_key = _first_word(receiver, public, target).split(" ", 1)
            place = str(source.watchdog.directory / f"relay-{target.address}-{port}")
            words = (place, self._tag, source.facts.socket, port, target.address, user, host_key)
            self._follow(self._session(source, _GIVE, *words), private, source, target)
        finally:
            receiver.communicate()  # its input ends, which ends the script
            target.watchdog.free_port(int(port))
        arrived, sent = target.engine.image(self._tag), source.engine.image(self._tag)
        if not arrived or not sent or arrived["Id"] != sent["Id"]:
            raise ProviderError(f"What {target.name} got from {source.name} is not the image.")

    def _session(self, machine: Machine, script: str, *words: str) -> subprocess.Popen[str]:
        """Run a script there, in a session of the open connection."""
        command = machine.connection.through.command("sh", "-c", script, "sh", *words)
        with self._lock:
            if self._over:
                raise ProviderError("The transfer was called off.")
            session = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            self._sessions.append(session)
        return session

    def _end(self) -> None:
        with self._lock:
            self._over = True
            for session in self._sessions:
                session.kill()

    def _follow(self, giver: subprocess.Popen[str], private: str, source: Machine, target: Machine) -> None:
        """Report the progress of a transfer until it has ended.

        Raises:
            ProviderError: it failed.
        """
        assert giver.stdout
        assert giver.stderr
        with giver:
            _tell(giver, private)
            said = time.monotonic()
            for line in giver.stdout:
                there = line.removeprefix(_MARK).strip()
                if line.startswith(_MARK) and there.isdigit() and time.monotonic() - said > _SAY_EVERY_S:
                    said = time.monotonic()
                    self._report(note(f"{target.name}: {share(int(there), self._size)}"))
            why = giver.stderr.read()
        if giver.returncode:
            raise ProviderError(f"{source.name} could not send it to {target.address}: {_last(why)}.")


def _first_word(session: subprocess.Popen[str], told: str, machine: Machine) -> str:
    """The first marked line of a script, after it was sent something; output of users' shell files is skipped."""
    assert session.stdout
    assert session.stderr
    _tell(session, f"{told}\n")
    for line in session.stdout:
        if line.startswith(_MARK):
            return line.removeprefix(_MARK).strip()
    raise ProviderError(f"{machine.name} could not listen for it: {_last(session.stderr.read())}.")


def _tell(session: subprocess.Popen[str], text: str) -> None:
    assert session.stdin
    with suppress(BrokenPipeError):  # it has ended, and says why
        session.stdin.write(text)
        session.stdin.flush()


def _key() -> tuple[str, str]:
    """A key pair for one transfer."""
    with private_directory() as folder:
        path = folder / "key"
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "skyward", "-f", str(path)]
        try:
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise ProviderError(f"no key could be made for the transfer ({error})") from error
        return path.read_text(), path.with_suffix(".pub").read_text().strip()


def _last(said: str) -> str:
    lines = [line.strip().rstrip(".") for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason was given"
