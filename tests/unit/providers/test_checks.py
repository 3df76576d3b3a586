"""What is wrong with hosts, by what their watchdogs say: one table, before anything is changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from skyward.errors import ProviderError
from skyward.model.spec import Accelerator
from skyward.ssh import preflight as checks
from skyward.ssh.preflight import Finding
from skyward.ssh.watchdog import Facts

READY = Facts(
    address="10.0.0.1",
    machine="Linux x86_64",
    ahead_s=0.0,
    socket="/var/run/docker.sock",
    engine="there",
    docker="/usr/bin/docker",
    gpus=(("535.104.05", "NVIDIA A100-SXM4-40GB"),) * 4,
    toolkit="/usr/bin/nvidia-ctk",
)
A100 = Accelerator("A100", 2)


def found(facts: Facts, gpus: int = 0, accelerator: Accelerator | None = None) -> list[tuple[str, str]]:
    return [(finding.what, finding.text) for finding in checks.check_host("gpu1", facts, gpus, accelerator)]


@pytest.mark.parametrize(
    ("facts", "what", "text"),
    [
        (replace(READY, engine="missing"), "engine", "No Docker engine listens at /var/run/docker.sock."),
        (replace(READY, engine="forbidden"), "engine", "Add them to the group docker there."),
        (replace(READY, docker=""), "engine", "There is no docker command on PATH."),
        (replace(READY, ahead_s=90.0), "clock", "Its clock is 90 s ahead of this machine's."),
        (replace(READY, ahead_s=-3600.0), "clock", "Its clock is 3600 s behind this machine's."),
    ],
)
def test_what_is_wrong_is_said(facts: Facts, what: str, text: str) -> None:
    """One finding each, with what to do."""
    ((kind, said),) = found(facts)
    assert kind == what
    assert text in said


def test_everything_that_is_wrong_is_said_at_once() -> None:
    """Not one thing after the other."""
    wrong = replace(READY, docker="", ahead_s=99.0, gpus=())
    assert [what for what, _ in found(wrong, 2, A100)] == ["engine", "clock", "gpu"]


@pytest.mark.parametrize(
    ("facts", "accelerator", "text"),
    [
        (replace(READY, gpus=READY.gpus[:3]), A100, "The pool needs 4 x A100 there; it shows 3 GPUs."),
        (replace(READY, gpus=()), A100, "it shows no GPU (nvidia-smi)"),
        (replace(READY, toolkit=""), A100, "no NVIDIA Container Toolkit"),
        (READY, Accelerator("Trainium"), "Trainium is something else"),
        (READY, Accelerator("H100"), "needs 4 x H100 there; it shows 4 x NVIDIA A100-SXM4-40GB. Ask for these"),
    ],
)
def test_gpus_are_counted_by_host(facts: Facts, accelerator: Accelerator, text: str) -> None:
    """As many as all nodes on the host need together."""
    ((what, said),) = found(facts, 4, accelerator)
    assert what == "gpu"
    assert text in said


@pytest.mark.parametrize(
    ("machine", "platform", "fits"),
    [
        ("Linux x86_64", "linux/amd64", True),
        ("Linux aarch64", "linux/arm64/v8", True),
        ("Linux aarch64", "linux/amd64", False),
        ("Darwin arm64", "linux/arm64", False),
        ("Linux riscv64", "linux/amd64", False),
    ],
)
def test_architectures_are_compared(machine: str, platform: str, fits: bool) -> None:
    """By what `uname` says; a variant of the platform matters no more than it does to engines."""
    assert (checks.check_architecture("gpu1", replace(READY, machine=machine), platform) == []) is fits


def test_room_is_that_of_the_image_and_of_unpacking_it() -> None:
    """An engine that does not say how much room it has is believed to have enough."""
    assert checks.check_disk("gpu1", 10**9, 10**8) == []
    assert checks.check_disk("gpu1", None, 10**12) == []
    ((finding),) = checks.check_disk("gpu1", 5 * 10**9, 3 * 10**9)
    assert "The image needs 6.8 GB while it is unpacked; 5 GB are free." in finding.text


def test_findings_are_one_table() -> None:
    """A line for each, in columns, and how many hosts of how many."""
    checks.refuse([], 3)
    findings = [
        Finding("gpu1", "engine", "Its engine does not answer."),
        Finding("gpu1", "clock", "It is wrong."),
        Finding("ubuntu@gpu2", "ssh", "No way there."),
    ]
    with pytest.raises(ProviderError) as caught:
        checks.refuse(findings, 4)
    assert str(caught.value).splitlines() == [
        "2 of 4 hosts cannot be used. Nothing was changed on them.",
        "  gpu1         engine  Its engine does not answer.",
        "  gpu1         clock   It is wrong.",
        "  ubuntu@gpu2  ssh     No way there.",
    ]
