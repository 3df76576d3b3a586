"""Transfer of an image to machines: streams, missing layers only, pulls from a registry, relays between machines."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from tempfile import TemporaryFile
from typing import IO

from skyward.builder.events import Report, note, readable, share, warn
from skyward.builder.folders import cache_folder
from skyward.engine import Images
from skyward.engine.address import EngineAddress
from skyward.engine.images import Archive, Pull, load, read, save
from skyward.errors import ImageError, ProviderError, RegistryError, SkywardError
from skyward.nodes.run_directory import private_directory
from skyward.nodes.ssh_host import Machine
from skyward.system import Full, Queue, threading, time
from skyward.system.futures import ThreadPoolExecutor

_SAY_EVERY_S = 3.0
_LOOK_S = 0.2
_RETRYING_S = 5.0  # an engine retries a dead registry for minutes
_STILL_S = 5.0  # silence that is reported
_SILENT_S = 30.0
_MACHINES = 8  # queried in parallel
_LOOKED_AT = 50  # newest images of a machine that are compared, each with one request
_AHEAD = 16  # chunks that the fastest machine may be ahead of the slowest
_AT_ONCE = 2  # parallel receivers per sending machine; each of them then sends to others
_MARK = "skyward-relay "


@dataclass(slots=True)
class _Transfer:
    """The transfer to one machine, in its own thread."""

    machine: Machine
    work: Callable[[], None]
    queue: Queue[bytes | None] = field(default_factory=lambda: Queue(_AHEAD))  # of data to send
    failure: SkywardError | None = None
    thread: threading.Thread = field(init=False)

    def start(self) -> None:
        self.thread = threading.Thread(target=self._run, name=f"image-{self.machine.name}", daemon=True)
        self.thread.start()

    def put(self, chunk: bytes | None) -> None:
        """Queue a chunk, or the end (None), unless the transfer has ended."""
        while self.thread.is_alive():
            try:
                self.queue.put(chunk, timeout=_LOOK_S)
                return
            except Full:
                continue

    def _run(self) -> None:
        try:
            self.work()
        except SkywardError as error:
            self.failure = error


def send(source: EngineAddress, ref: str, size: int, machines: Sequence[Machine], report: Report) -> None:
    """Send an engine's image to machines: it is read once and sent to all of them in parallel.

    Args:
        source: the engine that has it.
        ref: its tag, which it also gets there.
        size: its size in bytes.
        machines: the machines that lack it.
        report: receives progress.

    Raises:
        SkywardError: a machine could not receive it; all others have it.
    """
    transfers = []
    for machine in machines:
        queue = Queue[bytes | None](_AHEAD)
        work = partial(load, machine.engine_address, ref, iter(queue.get, None))
        transfers.append(_Transfer(machine, work, queue))
    names = ", ".join(machine.name for machine in machines)
    report(note(f"sending the image, {readable(size)}, to {names}"))
    for transfer in transfers:
        transfer.start()
    sent, began = 0, time.monotonic()
    said = began
    try:
        for chunk in save(source, ref):
            sent += len(chunk)
            for transfer in transfers:
                transfer.put(chunk)
            if time.monotonic() - said > _SAY_EVERY_S:
                said = time.monotonic()
                for transfer in transfers:
                    there = sent - transfer.queue.qsize() * len(chunk)
                    report(note(f"{transfer.machine.name}: {share(there, size)}"))
    finally:
        for transfer in transfers:
            transfer.put(None)
    _finish(transfers, report, began)


def send_missing_layers(source: EngineAddress, ref: str, machines: Sequence[Machine], report: Report) -> list[Machine]:
    """Send machines with most of an image's layers the others; return the machines that still lack the image.

    The image is written to a file first, since the archive names its layers at the end. A machine that cannot load it
    because a layer is missing after all still lacks it.
    """
    with ThreadPoolExecutor(_MACHINES, thread_name_prefix="skyward-layers") as threads:
        own = _layers(Images(source), ref)
        shared = dict(zip(machines, threads.map(partial(_shared, own), machines), strict=True))
    if not any(2 * count >= len(own) for count in shared.values()):
        return list(machines)
    with TemporaryFile(dir=cache_folder()) as file:  # an unnamed file, so that nothing remains whatever happens
        try:
            file.writelines(save(source, ref))
        except OSError as error:  # not enough space; whole images are streamed instead
            warn(f"The image {ref} cannot be written to disk to send only parts of it: {error.strerror}.")
            return list(machines)
        return _send_rest(file, ref, shared, report)


def _send_rest(file: IO[bytes], ref: str, shared: Mapping[Machine, int], report: Report) -> list[Machine]:
    file.flush()
    file.seek(0)
    archive, whole = Archive.of(file), os.fstat(file.fileno()).st_size
    pieces = {machine: archive.without(count) for machine, count in shared.items()}
    sizes = {machine: sum(end - start for start, end in parts) for machine, parts in pieces.items()}
    began, transfers = time.monotonic(), list[_Transfer]()

    def load_rest(machine: Machine) -> None:
        load(machine.engine_address, ref, read(file, pieces[machine]))

    for machine, size in sizes.items():
        if 2 * size < whole:
            report(note(f"sending {readable(size)} of the image to {machine.name}, which has the other layers"))
            transfers.append(_Transfer(machine, partial(load_rest, machine)))
            transfers[-1].start()
    for transfer in transfers:
        transfer.thread.join()
        if transfer.failure is None:
            report(note(f"{transfer.machine.name}: has the image after {time.monotonic() - began:.1f} s"))
        else:
            report(note(f"{transfer.machine.name} could not add them to what it has: {transfer.failure}"))
    done = {transfer.machine for transfer in transfers if transfer.failure is None}
    return [machine for machine in shared if machine not in done]


def _layers(images: Images, ref: str) -> Sequence[str]:
    return list(((images.inspect(ref) or {}).get("RootFS") or {}).get("Layers") or ())


def _shared(own: Sequence[str], machine: Machine) -> int:
    """Return how many of these layers, from the lowest up, some image of a machine has; 0 with containerd's store."""
    images = Images(machine.engine_address)
    if images.in_containerd():
        return 0
    there = [_layers(images, str(found["Id"])) for found in images.listed()[:_LOOKED_AT]]
    return max((_in_common(own, layers) for layers in there), default=0)


def _in_common(own: Sequence[str], others: Sequence[str]) -> int:
    pairs = enumerate(zip(own, others, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(own), len(others)))


def pull(ref: str, name: str, auth: Mapping[str, str], machines: Sequence[Machine], report: Report) -> None:
    """Pull an image by its digest on each machine's engine, and tag it.

    Args:
        ref: `repository@digest`.
        name: the tag it gets.
        auth: credentials for these pulls, which engines do not keep.
        machines: the machines that lack it.
        report: receives progress.

    Raises:
        SkywardError: a machine could not get it; all others have it.
    """
    pulls = [Pull(machine.engine_address, ref, auth) for machine in machines]

    def work(under_way: Pull, machine: Machine) -> None:
        under_way.run()
        Images(machine.engine_address).tag(ref, name)

    transfers = [
        _Transfer(machine, partial(work, under_way, machine))
        for under_way, machine in zip(pulls, machines, strict=True)
    ]
    report(note(f"pulling {ref} on {', '.join(machine.name for machine in machines)}"))
    began = said = time.monotonic()
    for transfer in transfers:
        transfer.start()
    try:
        while any(transfer.thread.is_alive() for transfer in transfers):
            next(transfer for transfer in transfers if transfer.thread.is_alive()).thread.join(_LOOK_S)
            for under_way, transfer in zip(pulls, transfers, strict=True):
                _give_up_if_stalled(under_way, transfer, ref)
            if time.monotonic() - said > _SAY_EVERY_S:
                said = time.monotonic()
                for under_way, transfer in zip(pulls, transfers, strict=True):
                    if transfer.thread.is_alive():
                        report(note(f"{transfer.machine.name}: {_how_far(under_way)}"))
    finally:
        for under_way in pulls:
            under_way.stop()
    _finish(transfers, report, began)


def _how_far(under_way: Pull) -> str:
    still_s = time.monotonic() - under_way.moved
    still = f", and nothing has come for {still_s:.0f} s" if still_s > _STILL_S else ""
    return under_way.retrying or f"{share(under_way.bytes, under_way.total)}{still}"


def _give_up_if_stalled(under_way: Pull, transfer: _Transfer, ref: str) -> None:
    """End a pull that makes no progress."""
    still_s = time.monotonic() - under_way.moved
    if not transfer.thread.is_alive() or still_s < (_RETRYING_S if under_way.retrying else _SILENT_S):
        return
    under_way.stop()
    transfer.thread.join()
    registry = ref.partition("/")[0]
    transfer.failure = RegistryError(
        f"{transfer.machine.name} could not pull {ref}: the registry {registry} has given nothing for {still_s:.0f} s"
        f"{f', the engine says: {under_way.retrying}' if under_way.retrying else ''}.",
        "See that the registry runs and that the host reaches it, and try again; layers that are there stay.",
    )


def _finish(transfers: Iterable[_Transfer], report: Report, began: float) -> None:
    failed = []
    for transfer in transfers:
        transfer.thread.join()
        if transfer.failure:
            failed.append(transfer)
        else:
            report(note(f"{transfer.machine.name}: has the image after {time.monotonic() - began:.1f} s"))
    if len(failed) == 1 and failed[0].failure:
        raise failed[0].failure
    if failed:
        lines = "\n".join(f"  {transfer.machine.name}  {transfer.failure}" for transfer in failed)
        raise ImageError(f"{len(failed)} hosts could not get the image:\n{lines}")


# from machine to machine, over their own network instead of the client's ----------------------------------------------
#
# Machines have no keys for each other. So for one transfer the receiver runs a second sshd, as its user, at its address
# in the pool, with a new host key. It accepts one key, also new, which may only run `docker load`. Both keys are sent
# through the connections that are already open. Each side removes its files when its session ends, for any reason.

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
    """Return whether a machine may receive at this address; no sshd is started at a public one."""
    return not ip_address(address).is_global


def relay(source: Machine, tag: str, size: int, targets: Sequence[Machine], report: Report) -> list[Machine]:
    """Send an image from one machine to others; return those that could not get it.

    Args:
        source: the machine that has it.
        tag: its name.
        size: its size in bytes.
        targets: the machines that lack it. Each relays it once it has it.
        report: receives progress, and the reasons of failures.
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
                except BaseException:  # Ctrl-C ends the running transfers
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
            receiver.communicate()  # closing its input ends the script
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
    """Send text to a script and return its first marked line; output of users' shell files is skipped."""
    assert session.stdout
    assert session.stderr
    _tell(session, f"{told}\n")
    for line in session.stdout:
        if line.startswith(_MARK):
            return line.removeprefix(_MARK).strip()
    raise ProviderError(f"{machine.name} could not listen for it: {_last(session.stderr.read())}.")


def _tell(session: subprocess.Popen[str], text: str) -> None:
    assert session.stdin
    with suppress(BrokenPipeError):  # it has ended, and its output has the reason
        session.stdin.write(text)
        session.stdin.flush()


def _key() -> tuple[str, str]:
    """Create a key pair for one transfer."""
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
