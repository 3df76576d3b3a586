"""The wait for machines that have just been launched: sshd with the key we gave it, guard, engine, driver."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from skyward.build.events import Report, note
from skyward.errors import PoolClosedError, ProviderError
from skyward.model.ssh import SshHost
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
_UNREACHED = 255  # ssh's own status, for a connection that did not come about
# Says what is missing still, and ends well when nothing is.
_LOOK = r"""
left=20
while [ $left -gt 0 ]; do
    left=$((left - 1)) lacks=
    [ -e "$1" ] || lacks="$lacks guard"
    docker version >/dev/null 2>&1 || lacks="$lacks engine"
    [ "$2" -eq 0 ] || nvidia-smi >/dev/null 2>&1 || lacks="$lacks driver"
    [ "$lacks" ] || exit 0
    sleep 1
done
echo $lacks
exit 1
"""
_MEANING = {
    "guard": "the guard, which ends it when its pool is gone, does not run: its image has no cloud-init or no systemd",
    "engine": "its Docker engine does not answer: its image has no Docker",
    "driver": "nvidia-smi fails there: its image has no NVIDIA driver for this GPU",
}


def wait_up(
    machines: Sequence[Rented],
    hosts: Sequence[SshHost],
    gpus: bool,
    report: Report,
    pool_ended: threading.Event | None = None,
) -> None:
    """Block until all machines can be used.

    Args:
        machines: they.
        hosts: where they are, with the keys to use.
        gpus: whether the driver must run.
        report: is told how many are up.
        pool_ended: set by another thread when nobody needs them any more.

    Raises:
        ProviderError: one has another host key than it was given, or is not up in time; says what is missing.
        PoolClosedError: nobody needs them any more.
    """
    began = said = time.monotonic()
    ended = threading.Event()
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="skyward-up") as threads:
        waits = [
            threads.submit(_wait_one, machine, host, gpus, ended) for machine, host in zip(machines, hosts, strict=True)
        ]
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


def _wait_one(machine: Rented, host: SshHost, gpus: bool, ended: threading.Event) -> None:
    """Block until a machine can be used, or nobody waits for it any more."""
    said = "no connection yet"
    command = host.command("sh", "-c", _LOOK, "sh", MARK, str(int(gpus)), options=("-o", "ConnectTimeout=5"))
    deadline = time.monotonic() + _UP_S
    while time.monotonic() < deadline and not ended.is_set():
        status, out, errors = _run(command, ended)
        if status == 0:
            return
        if status != _UNREACHED:
            said = "; ".join(_MEANING[word] for word in out.split() if word in _MEANING) or "it did not answer"
            continue
        said = (errors.strip().splitlines() or ["no word"])[-1]
        if "host key" in errors.lower():  # somebody else answers at this address, or the image keeps its own key
            raise ProviderError(
                f"The machine {machine.id} at {machine.address} does not have the host key that it was given, so that "
                f"it was not trusted with anything: {said}. Its image must run cloud-init."
            )
        ended.wait(_AGAIN_S)
    if not ended.is_set():
        raise ProviderError(f"The machine {machine.id} at {machine.address} is not up after {_UP_S:g} s: {said}.")


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
