"""Checks of hosts before any of them is changed, with one table of findings; reports for `skyward doctor`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from skyward.builder.events import readable
from skyward.engine import Engine
from skyward.errors import EngineError, EngineMissingError, PoolClosedError, ProviderError, SkywardError
from skyward.model.image_fields import PLATFORMS
from skyward.model.spec import Accelerator, fits
from skyward.model.ssh import SshHost
from skyward.ssh.watchdog import Facts
from skyward.system.futures import ThreadPoolExecutor

if TYPE_CHECKING:
    from skyward.nodes.ssh_host import Machine

AT_ONCE = 8  # sshd refuses more than 10 unauthenticated connections (MaxStartups); a jump host counts all of them
_CLOCK_S = 30.0  # TLS and signatures of cloud storage tolerate only a few minutes
_UNPACKED = 2.2  # unpacking a layer needs space for the archive and the files
_SPARE_BYTES = 200 * 10**6  # for what nodes write
_GB = 10**9
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Finding:
    """A reason why a host cannot be used.

    Attributes:
        host: its name.
        what: a category: "ssh", "engine", "disk", "gpu", "clock", "architecture".
        text: the problem and what to do, in sentences.
    """

    host: str
    what: str
    text: str


def refuse(findings: Sequence[Finding], total: int) -> None:
    """Raise ProviderError with all findings, several as a table; do nothing if there are none."""
    if not findings:
        return
    if len(findings) == 1:
        raise ProviderError(f"{findings[0].host} cannot be used: {findings[0].text}")
    bad = len({finding.host for finding in findings})
    raise ProviderError(f"{bad} of {total} hosts cannot be used. Nothing was changed on them.\n{table(findings)}")


def table(findings: Sequence[Finding]) -> str:
    """Format findings as lines: host, category, and text."""
    wide, deep = (max(map(len, column)) for column in zip(*((f.host, f.what) for f in findings), strict=True))
    return "\n".join(f"  {f.host.ljust(wide)}  {f.what.ljust(deep)}  {f.text}" for f in findings)


def check_host(host: str, facts: Facts, gpus: int, accelerator: Accelerator | None) -> list[Finding]:
    """Return the findings that do not depend on the image: engine, docker command, clock, GPUs.

    Args:
        host: its name.
        facts: the facts reported by its watchdog.
        gpus: number of GPUs the pool needs there.
        accelerator: their kind.
    """
    found = []
    if facts.engine == "missing":
        text = f"No Docker engine listens at {facts.socket}. Install Docker there, or start it."
        found.append(Finding(host, "engine", text))
    elif facts.engine == "forbidden":
        text = f"The user may not use the engine at {facts.socket}. Add them to the group docker there."
        found.append(Finding(host, "engine", text))
    if not facts.docker:
        found.append(Finding(host, "engine", "There is no docker command on PATH. Install Docker's client there."))
    if abs(facts.ahead_s) > _CLOCK_S:
        way = "ahead of" if facts.ahead_s > 0 else "behind"
        text = f"Its clock is {abs(facts.ahead_s):.0f} s {way} this machine's. Set both, for example by NTP."
        found.append(Finding(host, "clock", text))
    return found + (_check_gpus(host, facts, gpus, accelerator) if accelerator else [])


def _check_gpus(host: str, facts: Facts, wanted: int, accelerator: Accelerator) -> list[Finding]:
    if not accelerator.cuda:
        return [Finding(host, "gpu", f"sky.SSH() gives containers NVIDIA GPUs; {accelerator.name} is something else.")]
    found = []
    if len(facts.gpus) < wanted:
        there = f"shows {len(facts.gpus)} GPUs" if facts.gpus else "shows no GPU (nvidia-smi)"
        text = f"The pool needs {wanted} x {accelerator.name} there; it {there}. Install the driver, or ask for less."
        found.append(Finding(host, "gpu", text))
    elif sum(fits(accelerator, name) for _, name in facts.gpus) < wanted:
        there = ", ".join(f"{count} x {name}" for name, count in Counter(name for _, name in facts.gpus).items())
        text = f"The pool needs {wanted} x {accelerator.name} there; it shows {there}. Ask for these, or leave it out."
        found.append(Finding(host, "gpu", text))
    elif not facts.toolkit:
        text = "It has no NVIDIA Container Toolkit. Install it, run `nvidia-ctk runtime configure`, restart the engine."
        found.append(Finding(host, "gpu", text))
    return found


def check_architecture(host: str, facts: Facts, platform: str) -> list[Finding]:
    """Check that a host can run images of a platform."""
    machine = facts.machine.rpartition(" ")[2]
    own = PLATFORMS.get(machine, machine)
    if facts.machine.startswith("Linux ") and platform.startswith(own):
        return []
    text = f"It is {facts.machine}, and the image is for {platform}. Leave it out, or set architecture=."
    return [Finding(host, "architecture", text)]


def check_disk(host: str, free: int | None, needed: int = 0) -> list[Finding]:
    """Check that an engine's disk has space for the missing bytes of an image, and some to spare."""
    wanted = int(needed * _UNPACKED) + _SPARE_BYTES
    if free is None or free >= wanted:
        return []
    what = f"The image needs {readable(wanted)} while it is unpacked" if needed else "Nodes need some to write"
    text = f"Too little disk space. {what}; {readable(free)} are free. Free some with `docker system prune`."
    return [Finding(host, "disk", text)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """The facts about a host; None or empty if they could not be determined.

    Attributes:
        host: its name.
        engine: version of its engine.
        platform: the platform it runs, such as "linux/amd64".
        cpus: number of its processors.
        memory_gb: its memory in GB.
        disk_gb: free space on the engine's disk, in GB.
        gpus: names of its NVIDIA GPUs.
        driver: version of the NVIDIA driver; "" without GPUs.
        ahead_s: seconds that its clock is ahead of this machine's.
        builder: the command that builds images, with its version; determined on this machine only.
        ssh: name and version of the SSH client that reached it; None for this machine.
        findings: its problems.
    """

    host: str
    engine: str | None = None
    platform: str | None = None
    cpus: int | None = None
    memory_gb: float | None = None
    disk_gb: float | None = None
    gpus: tuple[str, ...] = ()
    driver: str = ""
    ahead_s: float | None = None
    builder: str | None = None
    ssh: str | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def document(self) -> dict[str, Any]:
        """The report as JSON: the same names, and for each finding `what` and `text`."""
        return {**asdict(self), "findings": [{"what": each.what, "text": each.text} for each in self.findings]}


class UnfitError(ProviderError):
    """A host cannot be used, for some reasons."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__(table(findings))
        self.findings = tuple(findings)


def findings_of(host: str, error: SkywardError) -> tuple[Finding, ...]:
    """Return the findings for a host whose check raised an error."""
    if isinstance(error, UnfitError):
        return error.findings
    if isinstance(error, EngineMissingError):
        return (Finding(host, "engine", "Its engine does not answer. Start Docker there."),)
    return (Finding(host, "engine" if isinstance(error, EngineError) else "ssh", str(error)),)


def on_all(actions: Mapping[SshHost, Callable[[], R]]) -> tuple[dict[SshHost, R], dict[SshHost, tuple[Finding, ...]]]:
    """Run an action for each host, several at a time; return their results, and the findings of those that failed."""
    answers, unfit = dict[SshHost, R](), dict[SshHost, tuple[Finding, ...]]()
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="skyward-host") as threads:
        for host, done in [(host, threads.submit(action)) for host, action in actions.items()]:
            try:
                answers[host] = done.result()
            except PoolClosedError:
                raise
            except SkywardError as error:
                unfit[host] = findings_of(host.name, error)
    return answers, unfit


def host_report_of(machine: Machine) -> HostReport:
    """Return the report on a machine connected by SSH.

    Raises:
        SkywardError: its engine exists but could not be queried.
    """
    facts, name = machine.facts, machine.name
    findings = check_host(name, facts, 0, None)
    if facts.gpus and not facts.toolkit:
        text = "It has GPUs, and no NVIDIA Container Toolkit that would give them to containers. Install it."
        findings.append(Finding(name, "gpu", text))
    about: Mapping[str, Any] = {}
    free = None
    if facts.engine == "there":
        try:
            about, free = machine.info, machine.free_bytes()
        except SkywardError as error:
            findings += findings_of(name, error)
    return HostReport(
        host=name,
        **_of_engine(about, free),
        gpus=tuple(gpu for _, gpu in facts.gpus),
        driver=facts.gpus[0][0] if facts.gpus else "",
        ahead_s=facts.ahead_s,
        findings=(*findings, *check_disk(name, free)),
    )


def local_host_report(name: str) -> HostReport:
    """Return the report on this machine and its engine."""
    from skyward.builder.docker.command import find_command  # not loaded for checks of hosts for a pool

    try:
        engine = Engine.connect()
        about = engine.info
    except SkywardError as error:
        return HostReport(host=name, findings=(Finding(name, "engine", str(error)),))
    try:
        disk = os.statvfs(str(about.get("DockerRootDir", "")))
    except OSError:  # the engine runs in a virtual machine, as with Docker Desktop
        free = None
    else:
        free = disk.f_bavail * disk.f_frsize
    findings, builder = list(check_disk(name, free)), None
    try:
        command = find_command(docker_host=engine.url)
        if engine.is_podman and not command.is_podman:
            raise EngineError(
                f"The engine is Podman's, on which {command.words[0]} cannot build images. Install the podman command, "
                "and set SKYWARD_DOCKER_CLI=podman."
            )
        builder = command.version
    except EngineError as error:
        findings.append(Finding(name, "builder", str(error)))
    return HostReport(host=name, **_of_engine(about, free), ahead_s=0.0, builder=builder, findings=tuple(findings))


def _of_engine(about: Mapping[str, Any], free: int | None) -> dict[str, Any]:
    if not about:
        return {}
    return {
        "engine": str(about["ServerVersion"]),
        "platform": PLATFORMS.get(about["Architecture"], f"{about['OSType']}/{about['Architecture']}"),
        "cpus": int(about["NCPU"]),
        "memory_gb": round(int(about["MemTotal"]) / _GB, 1),
        "disk_gb": None if free is None else round(free / _GB, 1),
    }


def as_row(report: HostReport) -> tuple[str, ...]:
    """Return a host's row in the table of `HEADINGS`; "-" for unknown values."""
    gpus = f"{len(report.gpus)} x {report.gpus[0]}" if report.gpus else ""
    disk, memory = (readable(int(gb * _GB)) if gb is not None else "" for gb in (report.disk_gb, report.memory_gb))
    clock = "" if report.ahead_s is None else f"{report.ahead_s:+.0f} s"
    cells = (report.engine, report.platform, report.cpus, memory, disk, gpus, report.driver, clock)
    return (report.host, *(str(cell) if cell else "-" for cell in cells), "no" if report.findings else "yes")


HEADINGS = ("HOST", "ENGINE", "PLATFORM", "CPUS", "MEMORY", "DISK FREE", "GPUS", "DRIVER", "CLOCK", "READY")
