"""Reports on hosts, for `skyward doctor`: what a host has, and what is wrong with it. Nothing is changed there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from skyward.builder.docker.command import find_builder
from skyward.builder.events import readable
from skyward.engine import Engine
from skyward.errors import EngineError, EngineMissingError, SkywardError
from skyward.model.protocol import PLATFORMS
from skyward.ssh.preflight import Finding, check_host, check_room, newest_cuda

if TYPE_CHECKING:
    from skyward.nodes.ssh_host import Machine

_GB = 10**9
NO_ENGINE = "Its engine does not answer. Start Docker there."


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """What is known of a host; None or empty where it could not be asked.

    Attributes:
        host: its name.
        engine: version of its engine.
        platform: what it runs, such as "linux/amd64".
        cpus: number of its processors.
        memory_gb: its memory.
        disk_gb: what is free on the engine's disk.
        gpus: names of its NVIDIA GPUs.
        driver: version of NVIDIA's driver; "" without GPUs.
        cuda: the newest major version of CUDA that the driver runs.
        ahead_s: seconds by which its clock is ahead of this machine's.
        builder: what builds images there, with its version; asked on this machine only.
        can: optional features of builders that it has.
        cannot: those that it lacks.
        ssh: the SSH client that reached it, with its version; None for this machine.
        findings: what is wrong with it.
    """

    host: str
    engine: str | None = None
    platform: str | None = None
    cpus: int | None = None
    memory_gb: float | None = None
    disk_gb: float | None = None
    gpus: tuple[str, ...] = ()
    driver: str = ""
    cuda: int | None = None
    ahead_s: float | None = None
    builder: str | None = None
    can: tuple[str, ...] = ()
    cannot: tuple[str, ...] = ()
    ssh: str | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def document(self) -> dict[str, Any]:
        """The report as JSON: the same names, and for each finding `what` and `text`."""
        return {**asdict(self), "findings": [{"what": each.what, "text": each.text} for each in self.findings]}


def finding_of(host: str, error: SkywardError) -> Finding:
    """The finding for a host that answers with an error."""
    if isinstance(error, EngineMissingError):
        return Finding(host, "engine", NO_ENGINE)
    return Finding(host, "engine" if isinstance(error, EngineError) else "ssh", str(error))


def host_report_of(machine: Machine) -> HostReport:
    """The report on a machine that is connected by SSH.

    Raises:
        SkywardError: its engine could not be asked, though it is there.
    """
    facts, name = machine.facts, machine.name
    findings = check_host(name, facts, 0, None)
    if facts.gpus and not facts.toolkit:
        text = "It has GPUs, and no NVIDIA Container Toolkit that would give them to containers. Install it."
        findings.append(Finding(name, "gpu", text))
    drivers = [driver for driver, _ in facts.gpus]
    about: Mapping[str, Any] = {}
    free = None
    if facts.engine == "there":
        try:
            about, free = machine.info, machine.free_bytes()
        except SkywardError as error:
            findings.append(finding_of(name, error))
    return HostReport(
        host=name,
        **_of_engine(about, free),
        gpus=tuple(gpu for _, gpu in facts.gpus),
        driver=next(iter(drivers), ""),
        cuda=newest_cuda(drivers[0]) if drivers else None,
        ahead_s=facts.ahead_s,
        findings=(*findings, *check_room(name, free)),
    )


def local_host_report(name: str) -> HostReport:
    """The report on this machine and its engine."""
    try:
        engine = Engine.connect()
        about = engine.info
    except SkywardError as error:
        return HostReport(host=name, findings=(Finding(name, "engine", str(error)),))
    try:
        disk = os.statvfs(str(about.get("DockerRootDir", "")))
    except OSError:  # the engine runs in a virtual machine, as Docker Desktop's does
        free = None
    else:
        free = disk.f_bavail * disk.f_frsize
    findings, built = list(check_room(name, free)), dict[str, Any]()
    try:
        in_containerd = "io.containerd.snapshotter" in json.dumps(about.get("DriverStatus"))
        builder = find_builder(engine.version, in_containerd=in_containerd, docker_host=engine.url)
        if engine.is_podman and builder.name != "Buildah":
            raise EngineError(
                f"The engine is Podman's, and images would be built by {builder.command}, which cannot build there. "
                "Install the podman command, and unset SKYWARD_DOCKER_CLI."
            )
        built = {"builder": f"{builder.name} {builder.version}", "can": builder.can, "cannot": builder.cannot}
    except EngineError as error:
        findings.append(Finding(name, "builder", str(error)))
    return HostReport(host=name, **_of_engine(about, free), ahead_s=0.0, **built, findings=tuple(findings))


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
    """A host's line in the table of `HEADINGS`; "-" for what is not known."""
    gpus = f"{len(report.gpus)} x {report.gpus[0]}" if report.gpus else ""
    cuda = f"{report.driver} (CUDA {report.cuda})" if report.cuda else report.driver
    disk, memory = (readable(int(gb * _GB)) if gb is not None else "" for gb in (report.disk_gb, report.memory_gb))
    clock = "" if report.ahead_s is None else f"{report.ahead_s:+.0f} s"
    cells = (report.engine, report.platform, report.cpus, memory, disk, gpus, cuda, clock)
    return (report.host, *(str(cell) if cell else "-" for cell in cells), "no" if report.findings else "yes")


HEADINGS = ("HOST", "ENGINE", "PLATFORM", "CPUS", "MEMORY", "DISK FREE", "GPUS", "DRIVER", "CLOCK", "READY")
