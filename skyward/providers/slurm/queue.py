"""Slurm's queue as text: what `sbatch` is given, and what `squeue`, `sinfo` and `scontrol` say. Pure.

The commands' own formats are used, which are the same in all versions. Their JSON is not: it takes plugins that many
clusters lack, and states and numbers in it changed between 22.05 and 24.11.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from skyward.errors import ProviderError
from skyward.model.spec import Accelerator

# Fields that hold no "|"; the comment, which may, is last.
FORMAT = "%i|%T|%r|%S|%N|%L|%u|%k"
_LABEL = "skyward."
_ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("REVOKED", "TIMEOUT"),
}
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"}
# Reasons for which a job waits for ever, unless an administrator changes the cluster:
# https://slurm.schedmd.com/job_reason_codes.html
_NEVER = re.compile(
    r"PartitionConfig|PartitionNodeLimit|PartitionTimeLimit|InvalidAccount|InvalidQOS|AccountNotAllowed"
    r"|QOSNotAllowed|BadConstraints|DependencyNeverSatisfied|JobHeld(User|Admin)|JobLaunchFailure|launch_failed.*"
    r"|(Assoc|QOS|Association|Assoc_?Group)\w*(PerJob|PerNode|WallDuration)\w*|QOSMin\w+|DeadLine|FedJobLock"
)
_ADVICE = {
    "PartitionConfig": "No node of the partition has what the job asks for: see cpu=, memory_gb= and accelerator=.",
    "PartitionNodeLimit": "The partition takes no jobs of one node; name another one with partition=.",
    "PartitionTimeLimit": "time= is longer than the partition allows; `sinfo` shows its limit.",
    "InvalidAccount": "Name an account that may run jobs here with account=.",
    "AccountNotAllowed": "Name an account that may use the partition with account=.",
}
# What Slurm's step says in the output of a job that it, or the kernel, killed for its memory. Without control groups
# such a job is in the state FAILED, with another reason.
_MEMORY = re.compile(r"slurmstepd.*(exceeded memory limit|oom[_-]kill)")
_ENDS = {
    "TIMEOUT": "was ended by Slurm: its time limit was reached",
    "NODE_FAIL": "is lost: Slurm says that its machine failed",
    "PREEMPTED": "was ended by Slurm for a job of higher priority",
    "CANCELLED": "was cancelled (scancel)",
    "OUT_OF_MEMORY": "was killed because it used more memory than it may (out of memory). Ask for more with memory_gb=",
    "DEADLINE": "was ended by Slurm at its deadline",
    "BOOT_FAIL": "is lost: its machine failed to start",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job as `squeue` shows it.

    Attributes:
        id: its number.
        state: such as "PENDING" or "RUNNING".
        reason: why it waits, or how it ended, in Slurm's words.
        start: when it started or is expected to, in seconds since 1970; None where that is not known.
        machine: the node it runs on; "" while it waits.
        left_s: seconds until its time limit; None for no limit.
        user: whose it is.
        labels: of its comment.
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
        """Whether it has not begun."""
        return self.state in _WAITING

    @property
    def never_runs(self) -> bool:
        """Whether it waits for something that does not come."""
        return self.waits and bool(_NEVER.fullmatch(self.reason))

    @property
    def advice(self) -> str:
        """What to do about the reason for which it never runs."""
        return _ADVICE.get(self.reason, f"`scontrol show job` and the cluster's manual explain {self.reason}.")

    def expected(self, now: float) -> str:
        """When it is expected to start, for people; "" where that is not known. `now` is by the cluster's clock."""
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
    """A job that has ended, with what the last lines of its output tell of that."""
    return replace(job, state="OUT_OF_MEMORY", reason="") if _MEMORY.search(said) else job


def submitted(text: str) -> list[str]:
    """The numbers of jobs in what `sbatch --parsable` prints; a site's wrappers and filters may say more."""
    return [found[1] for line in text.splitlines() if (found := re.fullmatch(r"(\d+)(;\S+)?", line.strip()))]


def queued_jobs(text: str) -> list[QueuedJob]:
    """The jobs in what `squeue -h -o FORMAT` prints, with SLURM_TIME_FORMAT=%s; other lines are left out."""
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
    """A duration as Slurm writes it, `days-hours:minutes:seconds`; None for one without a limit, or not known."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)", text)
    if found is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)


def comment_of(labels: Mapping[str, str]) -> str:
    """Labels as the comment of a job."""
    return ",".join(f"{_LABEL}{name}={value}" for name, value in labels.items())


def labels_in(comment: str) -> dict[str, str]:
    """The labels in the comment of a job; none in one of somebody else's."""
    parts = (part.partition("=") for part in comment.split(",") if part.startswith(_LABEL))
    return {name.removeprefix(_LABEL): value for name, _, value in parts}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What every job of a pool asks for.

    Attributes:
        pool: identifier of the pool.
        partition, account, qos: where it runs and who pays, in the cluster's names; None for the cluster's defaults.
        time: limit in one of Slurm's forms; None for the partition's default.
        cpus: of a node; None for the cluster's default.
        memory_gb: of a node, in GiB; None for the cluster's default.
        gres: GPUs of a node, such as "gpu:a100:2"; "" for none.
        options: further words for sbatch.
    """

    pool: str
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    cpus: float | None = None
    memory_gb: float | None = None
    gres: str = ""
    options: Sequence[str] = ()

    def words(self, folder: str, labels: Mapping[str, str], excluded: Collection[str]) -> list[str]:
        """The command line of sbatch for one job, whose script it reads from its input."""
        wanted = {
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "time": self.time,
            "cpus-per-task": None if self.cpus is None else str(max(1, -int(-self.cpus // 1))),
            "mem": None if self.memory_gb is None else f"{int(self.memory_gb * 1024)}M",
            "gres": self.gres or None,
            "exclude": ",".join(sorted(excluded)) or None,
        }
        return [
            *("sbatch", "--parsable", "--no-requeue", "--nodes=1", "--ntasks=1"),
            *(f"--job-name={name_of(self.pool)}", f"--comment={comment_of(labels)}"),
            # of the submitter's environment nothing that could hold a secret
            *("--export=HOME,USER,LOGNAME,PATH,LANG,SLURM_CONF", f"--chdir={folder}"),
            *(f"--output={folder}/output", "--open-mode=append"),
            *(f"--{name}={value}" for name, value in wanted.items() if value is not None),
            *self.options,
        ]


def name_of(pool: str) -> str:
    """Name of all jobs of a pool."""
    return f"skyward-{pool}"


def gres_for(accelerator: Accelerator, text: str) -> str:
    """The generic resource of an accelerator, from what `sinfo -h -o %G` prints of a partition's nodes.

    Raises:
        ProviderError: no node has enough of these GPUs.
    """
    offered: dict[str, int] = {}
    for entry in re.split(r"[,\n]", re.sub(r"\([^)]*\)", "", text)):
        name, *rest = entry.strip().split(":")
        if name == "gpu" and rest and rest[-1].isdigit():
            kind = rest[0] if len(rest) > 1 else ""
            offered[kind] = max(offered.get(kind, 0), int(rest[-1]))
    fits = [kind for kind in offered if kind and _plain(accelerator.name) in _plain(kind)]
    kinds = fits or [kind for kind in offered if not kind]
    if enough := [kind for kind in kinds if offered[kind] >= accelerator.count]:
        return f"gpu:{enough[0]}:{accelerator.count}" if enough[0] else f"gpu:{accelerator.count}"
    has = ", ".join(f"{count} x {kind or 'GPU'}" for kind, count in sorted(offered.items())) or "none"
    raise ProviderError(
        f"No node of the partition has {accelerator.count} x {accelerator.name}. GPUs of its nodes: {has}. Name "
        "another partition, or another accelerator."
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
