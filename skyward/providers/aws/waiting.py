"""The wait for machines that have just been launched: for what they need to be up, and for host keys of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from skyward.build.events import Report, note
from skyward.errors import PoolClosedError, ProviderError
from skyward.model.ssh import SshHost
from skyward.providers.aws import host_key, metadata
from skyward.providers.aws.boot import MARK
from skyward.providers.aws.launch import Rented
from skyward.system import threading, time
from skyward.system.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

_UP_S = 300.0
_TRY_S = 30.0
_AGAIN_S = 1.0
_LOOK_S = 0.2
_SAY_EVERY_S = 5.0
_AT_ONCE = 16
_OWN_KEY_S = 60.0
_QUICK = ("-o", "ConnectTimeout=5")
_UNREACHED = 255  # ssh's own status, for a connection that did not come about
# Says what is missing still; when nothing is, the public half of the machine's own host key.
_LOOK = r"""
left=20
while [ $left -gt 0 ]; do
    left=$((left - 1)) lacks=
    [ -e "$1" ] || lacks="$lacks guard"
    [ -e "$3" ] || lacks="$lacks metadata"
    [ -s "$4" ] || lacks="$lacks key"
    docker version >/dev/null 2>&1 || lacks="$lacks engine"
    [ "$2" -eq 0 ] || nvidia-smi >/dev/null 2>&1 || lacks="$lacks driver"
    [ "$lacks" ] || exec cat "$4"
    sleep 1
done
echo $lacks
exit 1
"""
_MEANING = {
    "guard": "the guard, which ends it when its pool is gone, does not run: its image has no cloud-init or no systemd",
    "engine": "its Docker engine does not answer: its image has no Docker",
    "metadata": "its metadata service is not closed to containers: its image has no iptables",
    "key": "it has made no host key of its own: its image has no ssh-keygen",
    "driver": "nvidia-smi fails there: its image has no NVIDIA driver for this GPU",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A machine whose start is waited for.

    Attributes:
        machine: it.
        first: how to reach it while it has the host key of its user data.
        host: how to reach it from then on, with a host key that it has made.
    """

    machine: Rented
    first: SshHost
    host: SshHost

    @property
    def name(self) -> str:
        """It in sentences."""
        return f"The machine {self.machine.id} at {self.machine.address}"


def wait_up(
    machines: Sequence[Launched],
    gpus: bool,
    trust: Callable[[str, str], None],
    report: Report,
    pool_ended: threading.Event | None = None,
) -> None:
    """Block until all machines can be used and have host keys of their own.

    Args:
        machines: they.
        gpus: whether the driver must run.
        trust: is told address and host key of each, once the machine has said over the first connection what it is;
            from its return on `host` is to lead to machines that have this key. Called in several threads.
        report: is told how many are up.
        pool_ended: set by another thread when nobody needs them any more.

    Raises:
        ProviderError: one has another host key than it was given, or is not up in time; says what is missing.
        PoolClosedError: nobody needs them any more.
    """
    began = said = time.monotonic()
    ended = threading.Event()
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="skyward-up") as threads:
        waits = [threads.submit(_wait_one, machine, gpus, trust, ended) for machine in machines]
        try:
            while left := wait(waits, _LOOK_S, FIRST_EXCEPTION).not_done:
                if any(each.done() and each.exception() for each in waits):
                    break
                if pool_ended is not None and pool_ended.is_set():
                    raise PoolClosedError("The pool has ended; its machines are not waited for any more.")
                if time.monotonic() - said >= _SAY_EVERY_S:
                    said = time.monotonic()
                    up = len(waits) - len(left)
                    report(note(f"{up} of {len(waits)} machines are up after {said - began:.0f} s"))
        finally:
            ended.set()  # a failure, and Ctrl-C, are not made to wait for the others
    failed = [error for each in waits if (error := each.exception()) is not None]
    for error in failed:
        raise error


def _wait_one(launched: Launched, gpus: bool, trust: Callable[[str, str], None], ended: threading.Event) -> None:
    """Block until a machine can be used with its own host key, or nobody waits for it any more."""
    said = _wait_ready(launched, gpus, ended)
    if said is None:
        return
    key = host_key.public_key(said)
    if key is None:
        raise ProviderError(f"{launched.name} shows no host key of its own; it said {said.strip()[-200:]!r}.")
    trust(launched.machine.address, key)
    _wait_own_key(launched, ended)


def _wait_ready(launched: Launched, gpus: bool, ended: threading.Event) -> str | None:
    """Block until nothing is missing on a machine; what it says then, None if nobody waits for it any more."""
    problem = "no connection yet"
    paths = (metadata.READY, host_key.PUBLIC)
    command = launched.first.command("sh", "-c", _LOOK, "sh", MARK, str(int(gpus)), *paths, options=_QUICK)
    deadline = time.monotonic() + _UP_S
    while time.monotonic() < deadline and not ended.is_set():
        status, out, errors = _run(command, ended)
        if status == 0:
            return out
        if status != _UNREACHED:
            problem = "; ".join(_MEANING[word] for word in out.split() if word in _MEANING) or "it did not answer"
            continue
        problem = (errors.strip().splitlines() or ["no word"])[-1]
        if "host key" in errors.lower():  # somebody else answers at this address, or the image keeps its own key
            raise ProviderError(
                f"{launched.name} does not have the host key that it was given, so that it was not trusted with "
                f"anything: {problem}. Its image must run cloud-init."
            )
        ended.wait(_AGAIN_S)
    if not ended.is_set():
        raise ProviderError(f"{launched.name} is not up after {_UP_S:g} s: {problem}.")
    return None


def _wait_own_key(launched: Launched, ended: threading.Event) -> None:
    """Tell a machine that its own host key is trusted, and block until it has put that in the place of the first.

    Raises:
        ProviderError: it goes on with the first one.
    """
    tell = launched.first.command("touch", host_key.TRUSTED, options=_QUICK)
    look = launched.host.command("true", options=_QUICK)
    deadline = time.monotonic() + _OWN_KEY_S
    while not ended.is_set():
        _run(tell, ended)  # fails where it has been told already, and where the connection breaks: `look` decides
        status, _, errors = _run(look, ended)
        if status == 0 or ended.is_set():
            return
        if time.monotonic() > deadline:
            problem = (errors.strip().splitlines() or ["no word"])[-1]
            raise ProviderError(
                f"{launched.name} was told that the host key it has made is trusted, and does not answer with that "
                f"{_OWN_KEY_S:g} s later: {problem}. `systemctl reload sshd` (or ssh) must reload its sshd."
            )
        ended.wait(_LOOK_S)


def _run(command: Sequence[str], ended: threading.Event) -> tuple[int, str, str]:
    """Run a command until it ends, its time is up, or nobody waits for it; status and what it printed."""
    deadline = time.monotonic() + _TRY_S
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is the client's alone
        )
    except OSError as error:
        raise ProviderError(f"The ssh command could not be started ({error}). Install OpenSSH's client.") from error
    while True:
        try:
            out, errors = process.communicate(timeout=_LOOK_S)
            return process.returncode, out, errors
        except subprocess.TimeoutExpired:
            if ended.is_set() or time.monotonic() > deadline:
                process.kill()
