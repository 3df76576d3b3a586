"""The jobs of one pool: submitted, monitored in the queue until they run and answer, and turned into nodes."""

from __future__ import annotations

import itertools
import json
import math
import os
import shlex
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

from skyward.builder.events import note
from skyward.errors import NodeStartError, PoolClosedError, ProviderError, SkywardError
from skyward.nodes.claimed import Claim, ClaimedProcess, claim, end, identities, open_through
from skyward.nodes.node import Exit, Launch, exit_of
from skyward.nodes.process_id import ProcessId, current_user
from skyward.providers.base import PoolRequest
from skyward.providers.slurm.environment import Environment, archive_of
from skyward.providers.slurm.login import Login
from skyward.providers.slurm.queue import (
    FORMAT,
    QueuedJob,
    comment_of,
    job_name,
    queued_jobs,
    sbatch,
    submitted,
    with_output,
)
from skyward.runner.entry.claimed import ADDRESS, IDENTITY, SETTINGS
from skyward.system import socket, threading, time

_LOOKS_S = (0.25, 5.0)  # between two queries of the queue while something is waited for: the first, and the longest
_ANSWER_S = 60.0  # how long a running job may fail to answer
_EXCLUDE_S = 900.0  # after this time Slurm has detected a lost machine itself
_NEVER_S = 2.0  # how long a reason must persist to be believed: new jobs get transient ones
_REASON_S, _ASK_S = 3.0, 0.2  # how long Slurm may take to report how a job ended, and how often it is queried
_NOTICE_S, _NOTICE_SHARE = 300.0, 0.25  # notice before a time limit: seconds, or at most this share of it
LIST = f"SLURM_TIME_FORMAT=%s squeue -h -t all -o {shlex.quote(FORMAT)}"


@dataclass(slots=True, eq=False)
class Job:
    """A job of this pool.

    Attributes:
        id: its ID in Slurm.
        folder: its folder on the shared disk.
        context: TLS context with the client's identity towards it.
        claim: this client's connection to it; None before it waits to become a node.
        machine: name of its node.
        address: IP address of that node in the cluster.
        port: the port it listens on.
        seen: its entry when the queue was last read.
        noticed: whether it is about to reach its time limit, and may still finish its calls.
    """

    id: str
    folder: str
    context: ssl.SSLContext = field(repr=False)
    claim: Claim | None = None
    machine: str = ""
    address: str = ""
    port: int = 0
    seen: QueuedJob | None = None
    silent_since: float | None = None
    hopeless_since: float | None = None
    noticed: bool = False
    given_up: bool = False


class Jobs:
    """The jobs of one pool.

    Args:
        login: connection to the cluster.
        request: the pool's request.
        options: options of sbatch for all jobs.
        environment: the environment they run.
        folder: the pool's folder on the shared disk.
        controllers: addresses of Slurm's controllers, as `host:port`.
        on_time: called with a claimed job that is about to reach its time limit, and the seconds left.
        ended: set when the pool has ended, which ends all waiting.
    """

    def __init__(
        self,
        login: Login,
        request: PoolRequest,
        options: Mapping[str, str | None],
        environment: Environment,
        folder: str,
        controllers: Sequence[str],
        on_time: Callable[[Job, float], None],
        ended: threading.Event,
    ) -> None:
        self._login, self._pool, self._options, self._environment = login, request.pool_id, options, environment
        self.folder, self._report = folder, request.report
        env = dict(environment.env)
        self._settings = {"pool": self._pool, "lease_s": request.lease_s, "controllers": controllers, "env": env}
        self._on_time, self._ended = on_time, ended
        self._numbers = itertools.count()
        self._lock = threading.Lock()  # guards the attributes below
        self._jobs: dict[str, Job] = {}
        self._ready: deque[Job] = deque()
        self._waiting = 0
        self._lost: dict[str, float] = {}  # machines that new jobs avoid, and since when
        self._looking = threading.Lock()  # one caller reads the queue for all
        self._looked = -math.inf
        self._said = ""

    # submitting ------------------------------------------------------------------------------------------------

    def submit(self, count: int) -> None:
        """Submit a number of jobs together.

        Raises:
            ProviderError: Slurm rejected them; the message contains its error.
            PoolClosedError: the pool has ended, or another client has ended it and removed its folder.
        """
        with self._lock:
            self._submit(count)

    def _submit(self, count: int) -> None:
        self._check_open()
        numbers = [next(self._numbers) for _ in range(count)]
        client, theirs = identities("Slurm", self._pool, count)
        files = {}
        for number, identity in zip(numbers, theirs, strict=True):
            files[f"{number}/{IDENTITY}"] = json.dumps(asdict(identity)).encode()
            files[f"{number}/{SETTINGS}"] = json.dumps(self._settings).encode()
        options = {**self._options, "exclude": ",".join(self._excluded()) or None}
        lines = ["umask 077", f"cd {shlex.quote(self.folder)} || exit 4", "tar -xf - || exit 1"]
        for number in numbers:
            folder = f"{self.folder}/{number}"
            words = shlex.join(sbatch(self._pool, folder, self._labels(-1), options))
            lines.append(f"printf '%s %s\\n' {shlex.quote(self._environment.script)} {folder} | {words} || exit 3")
        try:
            said = self._login.run("\n".join(lines), archive_of(files))
        except ProviderError as error:
            raise self._refusal(error) from error
        ids = submitted(said)
        if len(ids) != count:
            raise ProviderError(f"sbatch did not print the numbers of {count} jobs, but: {said.strip()}")
        for number, job, identity in zip(numbers, ids, client, strict=True):
            self._jobs[job] = Job(job, f"{self.folder}/{number}", identity.context(server=False))

    def _refusal(self, error: ProviderError) -> ProviderError | PoolClosedError:
        text = str(error)
        if "status 4:" in text:
            return PoolClosedError(f"Pool {self._pool} was ended by another client: its folder is gone.")
        if "status 3:" in text:
            why = " ".join(text.partition("status 3:")[2].replace("sbatch: error:", "").split())
            return ProviderError(f"Slurm refuses the jobs of pool {self._pool}: {why}. `sinfo` lists its partitions.")
        return error

    def _labels(self, node: int) -> dict[str, str]:
        return {
            "pool": self._pool,
            "node": str(node),
            "user": current_user(),
            "owner": ProcessId.of(os.getpid()).for_people,
            "image": self._environment.reference,
        }

    def _excluded(self) -> list[str]:
        now = time.monotonic()
        self._lost = {machine: since for machine, since in self._lost.items() if now - since < _EXCLUDE_S}
        return sorted(self._lost)

    def avoid(self, machine: str) -> None:
        """Exclude a lost machine for jobs submitted from now on."""
        with self._lock:
            self._lost[machine] = time.monotonic()

    # waiting ---------------------------------------------------------------------------------------------------

    def take(self) -> Job:
        """Wait for a running job that belongs to no node yet, submitting one if too few are pending.

        Raises:
            ProviderError: it can never run, and was cancelled; or the login node is lost.
            NodeStartError: it ended before it was ready.
            PoolClosedError: the pool has ended.
        """
        with self._lock:
            on_their_way = sum(not job.given_up and job.claim is None for job in self._jobs.values())
            if on_their_way + len(self._ready) <= self._waiting:
                self._submit(1)
            self._waiting += 1
        look_s = _LOOKS_S[0]
        try:
            while True:
                self._check_open()
                with self._looking:
                    changed = time.monotonic() - self._looked >= look_s and self._look()
                with self._lock:
                    if self._ready:
                        return self._ready.popleft()
                look_s = _LOOKS_S[0] if changed else min(look_s * 1.3, _LOOKS_S[1])
                self._ended.wait(look_s)
        finally:
            with self._lock:
                self._waiting -= 1

    def _check_open(self) -> None:
        if self._ended.is_set():
            raise PoolClosedError(f"Pool {self._pool} has ended; no job is waited for any more.")

    def _look(self) -> bool:
        """Read the queue and the jobs' addresses, and act on them; return whether anything has changed."""
        script = (
            f"{LIST} -n {job_name(self._pool)} || exit 1\necho; cd {shlex.quote(self.folder)} 2>/dev/null || exit 0\n"
        )
        script += f'for file in */{ADDRESS}; do [ -f "$file" ] && echo "address ${{file%/*}} $(cat "$file")"; done\n'
        script += "date +now\\ %s"
        try:
            said = self._login.run(script)
        except ProviderError as error:
            if self._login.why_gone():
                raise
            self._say(f"the queue could not be read and is asked again: {error}")
            return False
        finally:
            self._looked = time.monotonic()
        found = {job.id: job for job in queued_jobs(said)}
        lines = [line.split(" ", 2) for line in said.splitlines()]
        addresses = {f"{self.folder}/{line[1]}": json.loads(line[2]) for line in lines if line[0] == "address"}
        now = next((float(line[1]) for line in lines if line[0] == "now"), 0.0)
        with self._lock:
            jobs = [job for job in self._jobs.values() if job.claim is None and not job.given_up]
        before = [job.seen and job.seen.state for job in jobs]
        for job in jobs:
            job.seen = found.get(job.id, job.seen)
            self._advance(job, addresses.get(job.folder), is_listed=job.id in found)
        waiting = [
            f"job {job.id} ({job.seen.reason}){job.seen.expected(now)}" for job in jobs if job.seen and job.seen.waits
        ]
        if waiting:
            self._say(f"waiting in the queue: {', '.join(waiting)}")
        return before != [job.seen and job.seen.state for job in jobs]

    def _advance(self, job: Job, address: Mapping[str, str | int] | None, *, is_listed: bool) -> None:
        """Claim a job if it runs.

        Raises:
            ProviderError: it can never run.
            NodeStartError: it has ended, or cannot be reached.
        """
        seen = job.seen
        if seen is None:
            return
        who = f"Job {job.id} of pool {self._pool}"
        if self._is_hopeless(job, seen):
            self._give_up(job)
            raise ProviderError(
                f"{who} can never run (Slurm: {seen.reason}), and was cancelled. Request something else: cpu=, "
                "memory=, accelerator=, partition=, account= or time=."
            )
        if seen.has_ended or not is_listed:
            self._give_up(job)
            lines = self._output(job)
            said = f"Its last lines:\n{lines}" if lines else "It printed nothing."
            raise NodeStartError(f"{who} {with_output(seen, lines).how_ended} before it was a node. {said}")
        if address is not None and (found := self._claim(job, address)) is not None:
            job.claim = found
            threading.Thread(
                target=self._announce_end, args=(job, seen), name=f"job-{job.id}-time", daemon=True
            ).start()
            with self._lock:
                self._ready.append(job)
        elif not seen.waits:
            job.silent_since = job.silent_since or time.monotonic()
            if time.monotonic() - job.silent_since > _ANSWER_S:
                self._give_up(job)
                raise NodeStartError(
                    f"{who} runs on {seen.machine} and cannot be reached from {self._login.address.name} after "
                    f"{_ANSWER_S:g} s. It was cancelled. Check that the folder {self.folder} is on a disk that all "
                    "nodes share, and that the firewalls between login node and compute nodes let connections through."
                )

    def _give_up(self, job: Job) -> None:
        job.given_up = True
        self.cancel(job)

    def _output(self, job: Job) -> str:
        return self._login.run(f"tail -n 20 {shlex.quote(job.folder)}/output 2>/dev/null; exit 0").strip()

    def _is_hopeless(self, job: Job, seen: QueuedJob) -> bool:
        """Return whether a job has been pending for _NEVER_S for a reason that does not go away."""
        is_of_one = "," in (self._options["partition"] or "") and seen.reason.startswith("Partition")
        if not seen.never_runs or is_of_one:  # it may still run in another one of several partitions
            job.hopeless_since = None
            return False
        job.hopeless_since = job.hopeless_since or time.monotonic()
        return time.monotonic() - job.hopeless_since >= _NEVER_S

    def _claim(self, job: Job, found: Mapping[str, str | int]) -> Claim | None:
        """Claim a listening job; return None if it does not answer yet."""
        job.machine, job.address, job.port = str(found["machine"]), str(found["address"]), int(found["port"])
        try:
            sock = self._login.dial(job.address, job.port)
            return claim(sock, job.context, f"skyward-{self._pool}-{job.id}")
        except OSError:
            return None

    def _announce_end(self, job: Job, seen: QueuedJob) -> None:
        """Report that a job is about to reach its time limit (in a separate thread)."""
        if seen.left_s is None:
            return
        left_s = min(_NOTICE_S, seen.left_s * _NOTICE_SHARE)
        if not self._ended.wait(seen.left_s - left_s):
            job.noticed = True
            self._on_time(job, left_s)

    def _say(self, text: str) -> None:
        if text != self._said:
            self._report(note(text))
        self._said = text

    # reaching and ending ---------------------------------------------------------------------------------------

    def connect(self, job: Job, address: str) -> socket.socket:
        """Return a socket that leads to an address that a node has announced.

        Raises:
            WireError: nothing is listening there any more.
        """
        where = f"{address} of job {job.id} on {job.machine} ({job.address}:{job.port})"
        dial = partial(self._login.dial, job.address, job.port)
        return open_through(dial, job.context, address, where=where, name=f"skyward-{self._pool}-{address}")

    def name_node(self, job: Job, node: int) -> None:
        """Record in a job's comment which node it is, for `skyward ps`.

        Raises:
            ProviderError: the job has ended.
        """
        words = ["scontrol", "update", f"jobid={job.id}", f"comment={comment_of(self._labels(node))}"]
        self._login.run(shlex.join(words))

    def state(self, job: Job) -> QueuedJob | None:
        """Return a job's current entry in the queue, refined by its own output if it has ended; None if Slurm has none.

        Raises:
            ProviderError: the login node cannot be queried.
        """
        found = next(iter(queued_jobs(self._login.run(f"{LIST} -j {job.id} || exit 0"))), None)
        return with_output(found, self._output(job)) if found and found.has_ended else found

    def exists(self) -> bool:
        """Return whether the pool's folder exists, which is only removed when the pool ends.

        Raises:
            ProviderError: the login node cannot be queried.
        """
        return self._login.run(f"[ -d {shlex.quote(self.folder)} ] && echo there; exit 0").strip() == "there"

    def cancel(self, job: Job) -> None:
        """Cancel a job in any state."""
        self._login.run(f"scancel {job.id} 2>/dev/null; exit 0")

    def close(self) -> None:
        """Tell all claimed jobs to end, without waiting."""
        with self._lock:
            claims = [job.claim for job in self._jobs.values() if job.claim is not None]
        for each in claims:
            end(each.session)
            each.session.close()


class SlurmProcess(ClaimedProcess):
    """A runner in a job.

    Args:
        login: connection to the cluster.
        jobs: the pool's jobs.
        job: the claimed job.
        launch: the node to start.

    Raises:
        ProviderError: the job has ended.
    """

    def __init__(self, login: Login, jobs: Jobs, job: Job, launch: Launch) -> None:
        self._login, self._jobs, self._job = login, jobs, job
        self._is_told_to_end = False
        jobs.name_node(job, launch.node)
        assert job.claim
        super().__init__(launch, job.claim, f"job {job.id} on {job.machine}")

    def dial(self, address: str) -> socket.socket:
        """Return an encrypted socket to an address that the runner announced."""
        return self._jobs.connect(self._job, address)

    def is_unreachable(self) -> bool:
        """Return whether the login node is lost."""
        return bool(self._login.why_gone())

    def end(self) -> None:
        """End the runner at once."""
        self._is_told_to_end = True
        super().end()

    def how_exited(self, code: int) -> Exit:
        """Return how it ended; only Slurm knows whether the job was cancelled, preempted, or exceeded its memory."""
        is_signalled = code == 0 or code > 128
        job = self._ended_job() if is_signalled and not self._is_told_to_end else None
        return exit_of(code) if job is None or job.state in ("COMPLETED", "FAILED") else _exit_of_job(job)

    def how_lost(self) -> Exit:
        """Return what Slurm knows about a job that ended without reporting its exit status."""
        if job := self._ended_job():
            return _exit_of_job(job)
        gone = self._login.why_gone()
        return Exit(code=None, text=gone or f"is lost: its connection to {self._job.machine} ended")

    def _ended_job(self) -> QueuedJob | None:
        """Return the job once Slurm reports its end; None if it does not do so in time or cannot be queried."""
        deadline = time.monotonic() + _REASON_S
        try:
            while (job := self._jobs.state(self._job)) is not None and not job.has_ended:
                if time.monotonic() > deadline:
                    return None
                time.sleep(_ASK_S)
        except SkywardError:
            return None  # the login node is lost
        return job


def _exit_of_job(job: QueuedJob) -> Exit:
    return Exit(code=None, oom=job.state == "OUT_OF_MEMORY", text=job.how_ended)
