"""Debian and Ubuntu: which packages there are, and how they are installed without starting a service."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from .console import SetupError, capture, run, step
from .place import Place

# Split off docker.io from Debian 13 on; older releases have the client in docker.io and no buildx.
CLIENT_PACKAGES = ("docker-cli", "docker-buildx")
_POLICY = Path("/usr/sbin/policy-rc.d")
_POLICY_TEXT = "#!/bin/sh\n# skyward: start no service while packages are installed\nexit 101\n"
_SERVICES = (
    *("docker.socket", "docker.service", "containerd.service", "docker-registry.service"),
    *("ssh.service", "ssh.socket", "etcd.service"),
)


def release() -> dict[str, str]:
    """The fields of /etc/os-release; empty where there is none."""
    try:
        text = Path("/etc/os-release").read_text()
    except OSError:
        return {}
    return {name: value.strip("\"'") for name, _, value in (line.partition("=") for line in text.splitlines()) if value}


def is_debian() -> bool:
    """Whether this is Debian, Ubuntu or a child of theirs."""
    fields = release()
    family = {fields.get("ID", ""), *fields.get("ID_LIKE", "").split()}
    return bool(family & {"debian", "ubuntu"})


def available(packages: Sequence[str]) -> set[str]:
    """Those of the packages that apt can install."""
    policy = capture(["apt-cache", "policy", *packages], env={**os.environ, "LC_ALL": "C"}) or ""
    found = re.findall(r"^(\S+):\n  Installed: .*\n  Candidate: (.*)$", policy, re.MULTILINE)
    return {name for name, candidate in found if candidate != "(none)"}


def acquire_options() -> list[str]:
    """The machine's settings for archives that are older than they say, as options for mmdebstrap."""
    text = capture(["apt-config", "dump"]) or ""
    kept = re.findall(r"^Acquire::Check-(?:Valid-Until|Date) .*;$", text, re.MULTILINE)
    return [f"--aptopt={line}" for line in kept]


def proxies() -> dict[str, str]:
    """The proxies of the machine's apt configuration, as variables: these stay out of an image."""
    text = capture(["apt-config", "dump"]) or ""
    found = re.findall(r'^Acquire::(https?)::Proxy "(.+)";$', text, re.IGNORECASE | re.MULTILINE)
    return {f"{scheme.lower()}_proxy": address for scheme, address in found}


def install(place: Place, packages: Iterable[str], *, purpose: str) -> None:
    """Install packages without starting a service, now or at the next boot; services that were there before go on.

    Raises:
        SetupError: this system or user cannot, or apt fails.
    """
    wanted = sorted(set(packages))
    if not is_debian() or os.geteuid() != 0:
        raise SetupError(
            f"{purpose} needs the packages {', '.join(wanted)}, which only root can install, on Debian or Ubuntu. Run "
            "this again as root, or install them, or set DOCKER_HOST to an engine that is reachable."
        )
    new = [service for service in _SERVICES if not _known(service)]
    with step(f"installing {', '.join(wanted)}"):
        is_ours = not _POLICY.exists()
        if is_ours:
            _POLICY.write_text(_POLICY_TEXT)
            _POLICY.chmod(0o755)
        try:
            _install(place, wanted)
        finally:
            if is_ours:
                _POLICY.unlink()
        for service in filter(_known, new):
            _switch_off(service)


def _install(place: Place, packages: Sequence[str]) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1", "LC_ALL": "C.UTF-8"}
    # A fresh Ubuntu holds dpkg's lock for its first automatic upgrade.
    apt = ["apt-get", "-y", "-o", "DPkg::Lock::Timeout=300"]
    # --no-remove: an engine from another source conflicts with these packages and must never be removed for them.
    words = [*apt, "install", "--no-install-recommends", "--no-remove", *packages]
    try:
        run(words, log=place.log("apt"), env=env)
    except SetupError:
        # Stale package lists, or an earlier run that was killed in the middle: both heal like this.
        run(["dpkg", "--configure", "-a"], log=place.log("apt"))
        run([*apt, "update"], log=place.log("apt"), env=env)
        run(words, log=place.log("apt"), env=env)


def _switch_off(service: str) -> None:
    """Do what `systemctl disable` does, which a machine without systemd does not have."""
    for link in Path("/etc/systemd/system").glob(f"*.wants/{service}"):
        link.unlink()
    name = service.removesuffix(".service")
    if Path("/etc/init.d", name).exists():
        capture(["update-rc.d", name, "disable"])


def _known(service: str) -> bool:
    folders = ("/etc/systemd/system", "/lib/systemd/system", "/usr/lib/systemd/system")
    return any((Path(folder) / service).exists() for folder in folders)
