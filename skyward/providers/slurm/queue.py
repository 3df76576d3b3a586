"""Slurm's queue as text: the arguments of `sbatch`, the output of `squeue`, `sinfo` and `scontrol`. Runs no commands.

The commands' own formats are used, which are the same in all versions. Their JSON is not: it requires plugins that many
clusters lack, and its states and numbers changed between 22.05 and 24.11.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from skyward.model.spec import Accelerator

# Fields that contain no "|"; the comment, which may, is last.
FORMAT = "%i|%T|%r|%S|%N|%L|%u|%k"
_LABEL = "skyward."
_ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("REVOKED", "TIMEOUT"),
}
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"}
# Reasons for which a job waits forever, unless an administrator changes the cluster:
# https://slurm.schedmd.com/job_reason_codes.html
_NEVER = re.compile(
    r"PartitionConfig|PartitionNodeLimit|PartitionTimeLimit|InvalidAccount|InvalidQOS|AccountNotAllowed"
    r"|QOSNotAllowed|BadConstraints|DependencyNeverSatisfied|JobHeld(User|Admin)|JobLaunchFailure|launch_failed.*"
    r"|(Assoc|QOS|Association|Assoc_?Group)\w*(PerJob|PerNode|WallDuration)\w*|QOSMin\w+|DeadLine|FedJobLock"
)
# Output of Slurm's step in a job that it, or the kernel, killed for its memory. Without control groups the state of
# such a job is FAILED, with another reason.
_MEMORY = re.compile(r"slurmstepd.*(exceeded memory limit|oom[_-]kill)")
_ENDS = {
    "TIMEOUT": "was ended by Slurm: its time limit was reached",
    "NODE_FAIL": "is lost: Slurm says that its machine failed",
    "PREEMPTED": "was ended by Slurm for a job of higher priority",
    "CANCELLED": "was cancelled (scancel)",
    "OUT_OF_MEMORY": "was killed because it used more memory than it may (out of memory). Ask for more with memory=",
    "DEADLINE": "was ended by Slurm at its deadline",
    "BOOT_FAIL": "is lost: its machine failed to start",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job in the output of `squeue`.

    Attributes:
        id: its ID.
        state: its state, such as "PENDING" or "RUNNING".
        reason: why it waits, or how it ended, as Slurm reports it.
        start: actual or expected start in seconds since 1970; None if unknown.
        machine: the node it runs on; "" while it waits.
        left_s: seconds until its time limit; None if it has none.
        user: its owner.
        labels: labels in its comment.
    """

    id: str
    state: str
    reason: str = ""
    start: float | None = None
    machine: str = ""
    left_s: float | None = None
    user: str = ""
    labels: Mapping[str, str]

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.state in _ENDED

    @property
    def waits(self) -> bool:
        """Whether it has not started."""
        return self.state in _WAITING

    @property
    def never_runs(self) -> bool:
        """Whether it waits for something that will not happen."""
        return self.waits and bool(_NEVER.fullmatch(self.reason))

    def expected(self, now: float) -> str:
        """Return when it is expected to start, as text; "" if unknown. `now` is the cluster's time."""
        if self.start is None or not now:
            return ""
        minutes = max(0, round((self.start - now) / 60))
        when = f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
        return f", estimated to start in {when}"

    @property
    def how_ended(self) -> str:
        """How it ended, to complete "Node 1 ..."."""
        text = _ENDS.get(self.state, f"has ended (Slurm: {self.state})")
        why = "" if self.reason in ("", "None", "NonZeroExitCode", "TimeLimit") else f" ({self.reason})"
        return text + why


def with_output(job: QueuedJob, said: str) -> QueuedJob:
    """Return an ended job, refined by what the last lines of its output reveal about its end."""
    return replace(job, state="OUT_OF_MEMORY", reason="") if _MEMORY.search(said) else job


def submitted(text: str) -> list[str]:
    """Return the job IDs in the output of `sbatch --parsable`; a site's wrappers and filters may print other lines."""
    return [found[1] for line in text.splitlines() if (found := re.fullmatch(r"(\d+)(;\S+)?", line.strip()))]


def queued_jobs(text: str) -> list[QueuedJob]:
    """Return the jobs in the output of `squeue -h -o FORMAT` with SLURM_TIME_FORMAT=%s; other lines are ignored."""
    found = []
    for line in text.splitlines():
        fields = line.split("|", 7)
        if len(fields) < 8 or not fields[0].strip().isdigit():
            continue
        job, state, reason, start, machine, left, user, comment = map(str.strip, fields)
        found.append(
            QueuedJob(
                id=job,
                state=state,
                reason=reason.strip("()"),
                start=float(start) if start.isdigit() else None,
                machine="" if machine.startswith("(") else machine,
                left_s=seconds(left),
                user=user,
                labels=labels_in(comment),
            )
        )
    return found


def seconds(text: str) -> float | None:
    """Parse a duration of Slurm, `days-hours:minutes:seconds`; None for an unlimited or unknown one."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)", text)
    if found is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)


def comment_of(labels: Mapping[str, str]) -> str:
    """Return labels in the format of a job's comment."""
    return ",".join(f"{_LABEL}{name}={value}" for name, value in labels.items())


def labels_in(comment: str) -> dict[str, str]:
    """Return the labels in a job's comment; empty for other people's jobs."""
    parts = (part.partition("=") for part in comment.split(",") if part.startswith(_LABEL))
    return {name.removeprefix(_LABEL): value for name, _, value in parts}


def job_name(pool: str) -> str:
    """Return the name of all jobs of a pool."""
    return f"skyward-{pool}"


def sbatch(pool: str, folder: str, labels: Mapping[str, str], options: Mapping[str, str | None]) -> list[str]:
    """Return the command line of sbatch for one job, whose script it reads from standard input.

    Args:
        pool: identifier of the pool.
        folder: the job's folder on the shared disk.
        labels: what its comment says.
        options: further options of sbatch; those that are None are left out.
    """
    return [
        *("sbatch", "--parsable", "--no-requeue", "--nodes=1", "--ntasks=1"),
        *(f"--job-name={job_name(pool)}", f"--comment={comment_of(labels)}"),
        # nothing from the submitter's environment that might contain a secret
        *("--export=HOME,USER,LOGNAME,PATH,LANG,SLURM_CONF", f"--chdir={folder}"),
        *(f"--output={folder}/output", "--open-mode=append"),
        *(f"--{name}={value}" for name, value in options.items() if value is not None),
    ]


def gres_for(accelerator: Accelerator, text: str) -> str:
    """Return the generic resource for an accelerator, from the output of `sinfo -h -o %G` for a partition's nodes.

    Slurm rejects the job if no node has it.
    """
    types = re.findall(r"gpu:([^:,()\s]*[^\d:,()\s][^:,()\s]*):\d", text)
    fits = [each for each in types if _plain(accelerator.name) in _plain(each)]
    kind = f"{fits[0]}:" if fits else f"{accelerator.name.lower()}:" if types else ""
    return f"gpu:{kind}{accelerator.count}"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
