"""The text of Slurm's commands, both ways."""

from __future__ import annotations

import pytest

import skyward as sky
from skyward.errors import ConfigError, ProviderError
from skyward.model.spec import Accelerator
from skyward.providers.slurm.environment import check_image
from skyward.providers.slurm.login import facts_in
from skyward.providers.slurm.queue import (
    gres_for,
    labels_in,
    queued_jobs,
    sbatch,
    seconds,
    submitted,
    with_output,
)

QUEUE = """
1|PENDING|Resources|1795427161|(Resources)|1:00|alice|skyward.pool=ab12,skyward.node=-1
2|RUNNING|None|1795427161|n1|0:59|alice|skyward.pool=ab12,skyward.node=0
3|PENDING|PartitionNodeLimit|N/A||UNLIMITED|bob|a | b
slurm_load_jobs error: something else
"""
CLUSTER = """
Welcome to the cluster
skyward shared /home/alice/.cache/skyward
skyward slurm slurm-wlm 22.05.8
skyward machine Linux x86_64
skyward libc glibc 2.36
skyward python /usr/bin/python3.11
skyward venv yes
skyward apptainer apptainer version 1.4.5
skyward SlurmctldHost login(10.91.136.1)
skyward SlurmctldHost backup
skyward SlurmctldPort 6817-6818
skyward partition main|main*|gpu:a100:2
skyward partition main|main*|(null)
skyward partition old|old|(null)
skyward partition big|big|gpu:h100:8
"""


def test_queue() -> None:
    """Waiting, running, and never to run; lines that are none are left out."""
    waiting, running, never = queued_jobs(QUEUE)
    assert (waiting.waits, waiting.never_runs, waiting.start, waiting.machine) == (True, False, 1795427161.0, "")
    assert (running.machine, running.left_s, running.labels) == ("n1", 59.0, {"pool": "ab12", "node": "0"})
    assert never.never_runs and never.left_s is None and never.labels == {}


@pytest.mark.parametrize(
    ("reason", "never"),
    [
        ("Priority", False),
        ("ReqNodeNotAvail, May be reserved for other job", False),
        ("QOSMaxJobsPerUserLimit", False),
        ("AssocGrpCpuLimit", False),
        ("QOSMaxCpuPerJobLimit", True),
        ("AssocMaxWallDurationPerJobLimit", True),
        ("PartitionTimeLimit", True),
        ("launch_failed_requeued_held", True),
    ],
)
def test_never_runs(reason: str, never: bool) -> None:
    """What waits for others' jobs is not given up."""
    (job,) = queued_jobs(f"7|PENDING|{reason}|N/A||1:00|alice|")
    assert job.never_runs is never


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("slurmstepd-n1: error: StepId=3.batch exceeded memory limit (5 > 2), being killed", "(out of memory)"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=3.batch.", "(out of memory)"),
        ("Traceback: exceeded memory limit", "(Slurm: FAILED)"),
    ],
)
def test_memory(said: str, expected: str) -> None:
    """Without control groups only the job's output tells that it was memory."""
    (job,) = queued_jobs("3|FAILED|JobLaunchFailure|1|n1|1:00|alice|")
    assert expected in with_output(job, said).how_ended


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0:59", 59.0), ("4:00:00", 14400.0), ("2-12:00:00", 216000.0), ("UNLIMITED", None), ("INVALID", None)],
)
def test_seconds(text: str, expected: float | None) -> None:
    """Durations as Slurm writes them."""
    assert seconds(text) == expected


def test_words_of_sbatch() -> None:
    """What is asked for is on the command line, the job is never requeued, and its comment has its labels."""
    labels = {"pool": "ab12", "node": "3", "user": "ann@laptop"}
    words = sbatch("ab12", "/shared/pools/ab12/0", labels, {"partition": "gpu", "exclude": "n1,n2", "time": None})
    assert {"--no-requeue", "--nodes=1", "--partition=gpu", "--exclude=n1,n2"} <= set(words)
    assert not any(word.startswith("--time") for word in words)
    comment = next(word.partition("=")[2] for word in words if word.startswith("--comment="))
    assert labels_in(comment) == labels


def test_numbers_of_jobs() -> None:
    """What a site's filters and wrappers print beside them is none."""
    assert submitted("sbatch: 12 core hours are left\n41;cluster\n42 jobs wait\n43\n") == ["41", "43"]


@pytest.mark.parametrize(
    ("accelerator", "offered", "expected"),
    [
        (Accelerator("A100", 2), "gpu:nvidia_a100-sxm4-40gb:4(S:0-1)\n(null)", "gpu:nvidia_a100-sxm4-40gb:2"),
        (Accelerator("H100", 8), "gpu:a100:2\n(null)\n\ngpu:h100:8", "gpu:h100:8"),
        (Accelerator("A100"), "gpu:8", "gpu:1"),
        (Accelerator("H100"), "gpu:a100:2", "gpu:h100:1"),  # which Slurm rejects
    ],
)
def test_gres(accelerator: Accelerator, offered: str, expected: str) -> None:
    """The type of the partition that has the accelerator's name; untyped ones take any."""
    assert gres_for(accelerator, offered) == expected


def test_facts() -> None:
    """What a login node prints before them is left out."""
    facts = facts_in(CLUSTER, "login", "~/.cache/skyward")
    assert facts.controllers == ("10.91.136.1:6817", "backup:6817")
    assert (facts.version, facts.platform, facts.apptainer) == ("22.05.8", "linux/amd64", "1.4.5")
    assert facts.modes == {"apptainer": "", "venv": ""}
    assert facts.partitions == {
        "main": "\ngpu:a100:2\n(null)",
        "": "\ngpu:a100:2\n(null)",
        "old": "\n(null)",
        "big": "\ngpu:h100:8",
    }
    with pytest.raises(ProviderError, match="no sbatch on login"):
        facts_in("", "login", "~")


def test_ways_to_run_images() -> None:
    """What is missing is named, when it is asked for and by doctor."""
    lines = [line for line in CLUSTER.splitlines() if not line.startswith(("skyward venv", "skyward apptainer"))]
    facts = facts_in("\n".join(lines), "login", "~")
    assert facts.modes["apptainer"] == "there is no Apptainer on login"
    assert facts.modes["venv"].startswith("/usr/bin/python3.11 on login has no venv module")


@pytest.mark.parametrize(
    "wrong",
    [
        {"folder": "here"},
        {"image_mode": "docker"},
        {"key": __file__},
    ],
)
def test_wrong_values(wrong: dict[str, str]) -> None:
    """They are refused when the provider is made."""
    with pytest.raises(ConfigError, match=r"sky\.Slurm"):
        sky.Slurm(**wrong)  # type: ignore[arg-type]


def test_image_that_needs_a_container() -> None:
    """It is refused before anything exists."""
    with pytest.raises(ConfigError, match="apt, run"):
        check_image(sky.Image(apt=["git"], run=["true"]))
