"""A node in a job: told what to be, listened to, reached, asked after when it is gone; and the way in for others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from skyward.errors import ProviderError, SkywardError
from skyward.model.resource import Resource
from skyward.nodes.access import NodeAccess, ProcessStream
from skyward.nodes.claimed import ClaimedProcess
from skyward.nodes.node import Exit, Launch, exit_of
from skyward.providers.slurm.jobs import ClaimedJob, Jobs
from skyward.providers.slurm.login import MARK, SAY_MARK, Login, quoted
from skyward.providers.slurm.queue import QueuedJob
from skyward.system import socket, time

_END_S = 10.0
_REASON_S = 3.0  # how long Slurm may take to tell how a job ended
_LOOK_S = 0.2
_SIGNALLED = 128  # exit statuses above tell a signal
_PLAIN_ENDS = ("COMPLETED", "FAILED")  # states of jobs of which the exit status tells more


class SlurmProcess(ClaimedProcess):
    """A runner in a job.

    Args:
        login: the way to the cluster.
        jobs: those of the pool.
        job: the job, claimed.
        launch: what it is to be.

    Raises:
        ProviderError: the job has ended.
    """

    def __init__(self, login: Login, jobs: Jobs, job: ClaimedJob, launch: Launch) -> None:
        self._login, self._jobs, self._job = login, jobs, job
        self._is_told_to_end = False
        title = f"job {job.id} on {job.machine}"
        try:
            jobs.name_node(job, launch.node)
        except ProviderError as error:
            raise ProviderError(
                f"Node {launch.node} of pool {launch.pool} cannot be started: its {title} has ended ({error})."
            ) from error
        super().__init__(launch, job.claim, title)

    def dial(self, address: str) -> socket.socket:
        """A socket that leads, encrypted, to an address that the runner announced."""
        return self._jobs.connect(self._job, address)

    def is_unreachable(self) -> bool:
        """Whether the login node is gone."""
        return bool(self._login.why_gone())

    def end(self) -> None:
        """End the runner at once."""
        self._is_told_to_end = True
        super().end()

    def how_exited(self, code: int) -> Exit:
        """How it ended; that its job was cancelled, preempted, or used too much memory, only Slurm knows."""
        is_signalled = code == 0 or code > _SIGNALLED
        job = self._ended_job() if is_signalled and not self._is_told_to_end else None
        return exit_of(code) if job is None or job.state in _PLAIN_ENDS else _exit_of_job(job)

    def how_lost(self) -> Exit:
        """What Slurm knows of a job that exited without reporting."""
        if job := self._ended_job():
            return _exit_of_job(job)
        gone = self._login.why_gone()
        return Exit(code=None, text=gone or f"is lost: its connection to {self._job.machine} ended")

    def _ended_job(self) -> QueuedJob | None:
        """The job, once Slurm says that it has ended; None if it does not say so, or cannot be asked."""
        deadline = time.monotonic() + _REASON_S
        while True:
            try:
                job = self._jobs.state(self._job.id)
            except SkywardError:
                return None  # the login node is gone
            if job is None or job.has_ended or time.monotonic() > deadline:
                return job if job is None or job.has_ended else None
            time.sleep(_LOOK_S)


def _exit_of_job(job: QueuedJob) -> Exit:
    return Exit(code=None, oom=job.state == "OUT_OF_MEMORY", text=job.how_ended)


class SlurmAccess(NodeAccess):
    """Into a node, by a step of its job.

    Args:
        node: as `Provider.find` lists it.
        login: the way to the cluster.
        session: the words that start the program of a session there.
        close: ends what leads there.
    """

    def __init__(self, node: Resource, login: Login, session: str, close: Callable[[], None]) -> None:
        super().__init__(node, f"job {node['id']}", close)
        self._login, self._job, self._session = login, node["id"], session
        self.cwd = "/tmp"  # a job is processes among others of its machine

    def open_session(self) -> _StepStream:
        """Start the program."""
        step = quoted(["sh", "-c", f"{SAY_MARK}; exec {self._session}"])
        words = f"exec srun --quiet --jobid={self._job} --overlap --nodes=1 --ntasks=1 {step}"
        return _StepStream(self._login.shell(words), end_s=_END_S)

    def loss_reason(self) -> str:
        """Whether the job has ended, or the login node is gone."""
        if gone := self._login.why_gone():
            return gone
        try:
            state = self._login.run(f"squeue -h -j {self._job} -o %T 2>/dev/null; exit 0").strip()
        except SkywardError as error:
            return f"is gone: {str(error).rstrip('.')}"
        return "" if state in ("RUNNING", "COMPLETING", "SUSPENDED") else "has ended"


class _StepStream(ProcessStream):
    """The standard streams of a step of a job, from where its program begins."""

    def received(self) -> Iterator[bytes]:
        chunks, said = super().received(), b""
        for data in chunks:
            said += data
            _, mark, rest = said.partition(MARK)
            if mark:
                yield rest
                yield from chunks
