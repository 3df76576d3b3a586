"""From offers to usable machines: one request per offer until the cloud has room, and the subsequent wait.

A machine is usable when it runs, its sshd answers, its setup has finished, and it has its own host key.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from skyward.builder.events import Report, note
from skyward.errors import PoolClosedError, ProviderError
from skyward.model.ssh import SshHost
from skyward.providers.cloud.base import GONE, Cloud, Instance, Launcher, LaunchRequest, MachineOffer, RefusedError
from skyward.providers.cloud.boot import MARK, PUBLIC, READY, TRUSTED, public_key
from skyward.system import threading, time
from skyward.system.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

_RUNNING_WITHIN_S = 300.0
_REPORT_EVERY_S = 5.0
_READY_WITHIN_S = 300.0
_OWN_KEY_WITHIN_S = 60.0
_COMMAND_S = 15.0
_RETRY_S = 1.0
_RUN_POLL_S, _POLL_S = 1.0, 0.2
_MAX_PARALLEL = 16
_SSH_OPTIONS = ("-o", "ConnectTimeout=5")
_NOT_CONNECTED = 255  # ssh's exit status without a connection
# Prints what is still missing, else the public half of the machine's own host key.
_CHECK = r"""
left=5
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
_PROBLEMS = {
    "guard": "the guard, which shuts it down after its pool, does not run: its image has no cloud-init or no systemd",
    "engine": "its Docker engine does not answer: its image has no Docker",
    "metadata": "its metadata service is not closed to containers: its image has no iptables",
    "key": "it has generated no host key of its own: its image has no ssh-keygen",
    "driver": "nvidia-smi fails there: its image has no NVIDIA driver for this GPU",
}


def launch(
    cloud: Cloud,
    launcher: Launcher,
    pool: str,
    offers: Sequence[MachineOffer],
    request: Callable[[MachineOffer, int], LaunchRequest],
    report: Report,
) -> tuple[MachineOffer, list[Instance]]:
    """Launch machines of the first offer that the cloud has room for; return it, and the machines in node order.

    `request` returns the request for an offer and the number of the attempt.

    Raises:
        ProviderError: the cloud has no room for any offer; the message lists what was tried.
    """
    tried, said = list[str](), dict[str, None]()
    for attempt, offer in enumerate(offers):
        asked = request(offer, attempt)
        report(note(f"launching {offer.text(asked.nodes)}"))
        ids: Sequence[str] = ()
        try:
            ids = launcher.launch(asked)
            return offer, _wait_running(cloud, pool, ids)
        except ProviderError as error:
            if ids:
                cloud.terminate(ids)  # otherwise they would run until the end of the pool
            if not isinstance(error, RefusedError) or error.code not in {*cloud.no_room, GONE}:
                raise
            said[str(error)] = None
            report(note(f"no room for {offer.type.name} ({offer.market}) in {offer.zone}: {error.code}"))
            tried.append(f"  {offer.type.name}  {offer.market}  {offer.zone}  {error.code}")
    raise ProviderError(
        f"{cloud.name} has no room for the machines in {cloud.region}:\n" + "\n".join([*tried, *said]) + "\n"
        "Try later, another region, other types, or allocation='on-demand'; for limits of the account see its quotas."
    )


def _wait_running(cloud: Cloud, pool: str, ids: Sequence[str]) -> list[Instance]:
    """Wait until all machines run and have an address; return them in the order of `ids`."""
    deadline = time.monotonic() + _RUNNING_WITHIN_S
    seen: set[str] = set()
    while True:
        found = {each.id: each for each in cloud.instances(pool) if each.id in ids}
        if gone := sorted(seen - set(found)):
            raise RefusedError(f"The machine {gone[0]} ended at once, and is not listed any more.", GONE)
        seen |= found.keys()
        for each in found.values():
            if each.state not in ("pending", "running"):
                reason = each.reason or "no reason given"
                raise RefusedError(f"The machine {each.id} ended at once: {reason}.", each.code)
        ready = [each for each in found.values() if each.state == "running" and each.address]
        if len(ready) == len(ids):
            return [found[ident] for ident in ids]
        if time.monotonic() > deadline:
            slow = ", ".join(sorted(set(ids) - {each.id for each in ready}))
            raise ProviderError(
                f"Machines do not run, or have no address, {_RUNNING_WITHIN_S:g} s after their launch: {slow}."
            )
        time.sleep(_RUN_POLL_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingMachine:
    """A machine that runs, but may not be usable yet.

    Attributes:
        id: such as "i-0123".
        first: SSH settings while it has the host key from its user data.
        host: SSH settings once it has the host key that it has generated.
    """

    id: str
    first: SshHost
    host: SshHost

    @property
    def name(self) -> str:
        """Name of the machine for the beginning of a sentence."""
        return f"The machine {self.id} at {self.host.host}"


def wait_ready(
    machines: Sequence[StartingMachine],
    gpus: bool,
    trust: Callable[[str, str], None],
    report: Report,
    pool_ended: threading.Event,
    running_machines: Callable[[], Collection[str]],
) -> None:
    """Block until all machines are usable and have their own host keys.

    Args:
        machines: the machines.
        gpus: whether NVIDIA's driver is required to work.
        trust: receives address and public host key of each machine, as read over the first connection; when it returns,
            `host` of that machine accepts only this key. Called in several threads.
        report: receives the number of ready machines.
        pool_ended: set when the pool no longer needs them.
        running_machines: queries which of the pool's machines have not ended; called every few seconds.

    Raises:
        ProviderError: a machine does not have the given host key, has ended, or is not ready in time; the message says
            what is missing.
        PoolClosedError: the pool no longer needs them.
    """
    began = reported = time.monotonic()
    ended = threading.Event()
    with ThreadPoolExecutor(_MAX_PARALLEL, thread_name_prefix="skyward-ready") as threads:
        waits = [threads.submit(_wait_one, machine, gpus, trust, ended) for machine in machines]
        try:
            while left := wait(waits, _POLL_S, FIRST_EXCEPTION).not_done:
                if any(each.done() and each.exception() for each in waits):
                    break
                if pool_ended.is_set():
                    raise PoolClosedError("The pool has ended; its machines are not waited for any more.")
                if time.monotonic() - reported >= _REPORT_EVERY_S:
                    reported = time.monotonic()
                    ready = len(waits) - len(left)
                    report(note(f"{ready} of {len(waits)} machines are ready after {reported - began:.0f} s"))
                    left_there = running_machines()
                    for machine in machines:
                        if machine.id not in left_there:
                            raise ProviderError(f"{machine.name} has ended before it was ready.")
        finally:
            ended.set()  # after a failure or Ctrl-C, stop waiting for the other machines
    for error in [error for each in waits if (error := each.exception()) is not None]:
        raise error


def _wait_one(machine: StartingMachine, gpus: bool, trust: Callable[[str, str], None], ended: threading.Event) -> None:
    """Block until a machine is usable with its own host key, or `ended` is set."""
    problem = "no connection yet"
    words = ("sh", "-c", _CHECK, "sh", MARK, str(int(gpus)), READY, PUBLIC)
    command = machine.first.command(*words, options=_SSH_OPTIONS)
    deadline = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < deadline and not ended.is_set():
        status, output, errors = _run(command)
        if status == 0:
            key = public_key(output)
            if key is None:
                said = output.strip()[-200:]
                raise ProviderError(f"{machine.name} shows no host key of its own; it printed {said!r}.")
            trust(machine.host.host, key)
            return _wait_own_key(machine, ended)
        if status != _NOT_CONNECTED:
            missing = [_PROBLEMS[word] for word in output.split() if word in _PROBLEMS]
            problem = "; ".join(missing) or "it did not answer"
            continue
        problem = _last_line(errors)
        if "host key" in errors.lower():  # another machine has this address, or the image has kept its own key
            raise ProviderError(
                f"{machine.name} does not have the host key that it was given, so that it was not trusted with "
                f"anything: {problem}. Its image must run cloud-init."
            )
        ended.wait(_RETRY_S)
    if not ended.is_set():
        raise ProviderError(f"{machine.name} is not ready after {_READY_WITHIN_S:g} s: {problem}.")
    return None


def _wait_own_key(machine: StartingMachine, ended: threading.Event) -> None:
    """Confirm to a machine that its own host key is trusted, and block until sshd uses that one."""
    tell = machine.first.command("touch", TRUSTED, options=_SSH_OPTIONS)
    connect = machine.host.command("true", options=_SSH_OPTIONS)
    deadline = time.monotonic() + _OWN_KEY_WITHIN_S
    while not ended.is_set():
        _run(tell)  # fails if sshd already uses the new key or the connection breaks: `connect` decides
        status, _, errors = _run(connect)
        if status == 0 or ended.is_set():
            return
        if time.monotonic() > deadline:
            raise ProviderError(
                f"{machine.name} was told that the host key which it has generated is trusted, and does not use that "
                f"key {_OWN_KEY_WITHIN_S:g} s later: {_last_line(errors)}. `systemctl reload sshd` (or ssh) must "
                "reload its sshd."
            )
        ended.wait(_POLL_S)


def _last_line(errors: str) -> str:
    return (errors.strip().splitlines() or ["ssh gave no reason"])[-1]


def _run(command: Sequence[str]) -> tuple[int, str, str]:
    """Run a command until it ends or takes too long; return its exit status and output."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_S,
            start_new_session=True,  # Ctrl-C is for the client only
        )
    except subprocess.TimeoutExpired:
        return _NOT_CONNECTED, "", f"no answer within {_COMMAND_S:g} s"
    except OSError as error:
        raise ProviderError(f"The ssh command could not be started ({error}). Install OpenSSH's client.") from error
    return done.returncode, done.stdout, done.stderr
