"""Checks of hosts before anything is changed on any of them; all findings are reported as one table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from skyward.builder.events import readable
from skyward.errors import ProviderError
from skyward.model.accelerator import Accelerator, fits
from skyward.model.image import Image
from skyward.model.protocol import PLATFORMS
from skyward.ssh.watchdog import Facts

_CLOCK_S = 30.0  # TLS and the signatures of cloud storage bear no more than a few minutes
_UNPACKED = 2.2  # a layer needs its archive's room and its own while it is unpacked
_SPARE_BYTES = 200 * 10**6  # for what nodes write
# the oldest driver that runs anything of a major version of CUDA (NVIDIA: CUDA compatibility, table 1)
_DRIVERS = {11: (450, 80), 12: (525, 60), 13: (580, 65)}


@dataclass(frozen=True, slots=True)
class Finding:
    """A reason why a host cannot be used.

    Attributes:
        host: its name.
        what: in a word: "ssh", "engine", "disk", "gpu", "driver", "clock", "architecture".
        text: what was found and what to do, in sentences.
    """

    host: str
    what: str
    text: str


def refuse(findings: Sequence[Finding], total: int) -> None:
    """Raise ProviderError with one table of all findings; nothing happens if there are none."""
    if not findings:
        return
    bad = len({finding.host for finding in findings})
    raise ProviderError(f"{bad} of {total} hosts cannot be used, and nothing was changed on any:\n{table(findings)}")


def table(findings: Sequence[Finding]) -> str:
    """Findings as lines: host, what, and the sentences."""
    wide, deep = (max(map(len, column)) for column in zip(*((f.host, f.what) for f in findings), strict=True))
    return "\n".join(f"  {f.host.ljust(wide)}  {f.what.ljust(deep)}  {f.text}" for f in findings)


def check_host(host: str, facts: Facts, gpus: int, accelerator: Accelerator | None) -> list[Finding]:
    """The findings that do not depend on the image: engine, docker command, clock, GPUs.

    Args:
        host: its name.
        facts: as its watchdog reports them.
        gpus: how many GPUs the pool needs there.
        accelerator: which.
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
    """Check that a host runs images of a platform."""
    machine = facts.machine.rpartition(" ")[2]
    own = PLATFORMS.get(machine, machine)
    if facts.machine.startswith("Linux ") and platform.startswith(own):
        return []
    text = f"It is {facts.machine}, and the image is for {platform}. Leave it out, or set architecture=."
    return [Finding(host, "architecture", text)]


def check_driver(host: str, facts: Facts, image: Image) -> list[Finding]:
    """Check that a host's driver is new enough for the CUDA that an image holds."""
    cuda = cuda_of(image)
    if cuda is None or not facts.gpus or cuda not in _DRIVERS:
        return []
    driver = facts.gpus[0][0]
    if _numbers(driver) >= _DRIVERS[cuda]:
        return []
    least = ".".join(map(str, _DRIVERS[cuda]))
    text = f"The image holds CUDA {cuda}, which needs NVIDIA's driver {least}; there is {driver}. Install a newer one."
    return [Finding(host, "driver", text)]


def _numbers(driver: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", driver)[:2])


def cuda_of(image: Image) -> int | None:
    """The major version of CUDA that an image brings: by its base, its package indexes, or its packages."""
    text = " ".join([str(image.base or ""), *(str(index) for index in image.pip_indexes), *image.pip])
    found = re.search(r"cuda:(\d+)|/cu(\d\d)\d\b|-cu(\d\d)\b|\[[^]]*cuda(\d\d)[^]]*\]", text)
    return int(next(filter(None, found.groups()))) if found else None


def newest_cuda(driver: str) -> int | None:
    """The newest major version of CUDA that a driver runs; None if it runs none that is known."""
    version = _numbers(driver)
    return max((cuda for cuda, least in _DRIVERS.items() if version >= least), default=None)


def check_room(host: str, free: int | None) -> list[Finding]:
    """Check that an engine's disk has room at all."""
    if free is None or free >= _SPARE_BYTES:
        return []
    text = f"The engine's disk has {readable(free)} left. Free some, for example with `docker system prune`."
    return [Finding(host, "disk", text)]


def check_disk(host: str, free: int | None, needed: int) -> list[Finding]:
    """Check that an engine's disk has room for the bytes of an image that it lacks."""
    wanted = int(needed * _UNPACKED) + _SPARE_BYTES
    if free is None or free >= wanted:
        return []
    text = (
        f"The image takes {readable(needed)}, and while it is unpacked {readable(wanted)}; the engine's disk has "
        f"{readable(free)} left. Free some, for example with `docker system prune`."
    )
    return [Finding(host, "disk", text)]
