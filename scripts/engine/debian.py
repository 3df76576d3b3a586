"""Debian and Ubuntu: which packages, how they are installed without starting a service, the machine's sources."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from .console import SetupError, capture, run, say, step
from .place import Place

# Split off docker.io from Debian 13 on; older releases have the client in docker.io and no buildx.
CLIENT_PACKAGES = ("docker-cli", "docker-buildx")
BASE_PACKAGES = ("mmdebstrap",)

_POLICY = Path("/usr/sbin/policy-rc.d")
_POLICY_KEPT = Path("/usr/sbin/policy-rc.d.before-skyward")
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


def installed(packages: Iterable[str]) -> set[str]:
    """Those of the packages that are installed and configured."""
    out = capture(["dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package}\n"]) or ""
    present = {line[4:].strip() for line in out.splitlines() if line.startswith("ii ")}
    return present & set(packages)


def available(packages: Sequence[str]) -> set[str]:
    """Those of the packages that apt can install."""
    return parse_policy(capture(["apt-cache", "policy", *packages], env={**os.environ, "LC_ALL": "C"}) or "")


def parse_policy(text: str) -> set[str]:
    """Package names in the answer of `apt-cache policy` that have a candidate."""
    found = re.findall(r"^(\S+):\n  Installed: .*\n  Candidate: (.*)$", text, re.MULTILINE)
    return {name for name, candidate in found if candidate != "(none)"}


def python_minor() -> str | None:
    """The minor version of the Python that the distribution packages as python3."""
    policy = capture(["apt-cache", "policy", "python3"], env={**os.environ, "LC_ALL": "C"}) or ""
    found = re.search(r"Candidate: (\d+\.\d+)", policy)
    return found[1] if found else None


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


def ensure(place: Place, packages: Sequence[str], *, optional: Sequence[str] = (), purpose: str) -> None:
    """Install what is missing of the packages; of the optional ones, what this release has."""
    wanted = [*packages, *optional]
    present = installed(wanted)
    if present.issuperset(packages):
        say(f"packages for {purpose} are there")
        return
    _require_root(purpose, packages)
    offered = available(wanted)
    if not offered.issuperset(packages):
        with step("reading the package lists"):
            _apt(place, "update")
        offered = available(wanted)
    unknown = [name for name in packages if name not in offered | present]
    if unknown:
        raise SetupError(
            f"the package sources of this machine have no {' or '.join(unknown)}, needed for {purpose}"
            f"{complaint(place.log('apt').read_text(errors='replace'))}. Check the network and proxy settings, and "
            "that the apt sources have the distribution's main (on Ubuntu also universe) component; or set "
            "DOCKER_HOST to an engine that is reachable."
        )
    missing = [name for name in wanted if name in offered and name not in present]
    new_services = [service for service in _SERVICES if not _known(service)]
    with step(f"installing {', '.join(missing)}"):
        _install_quietly(place, missing, new_services)


def complaint(apt_log: str) -> str:
    """What the last apt command had against a source, as a part of a sentence; apt itself calls that a success."""
    last = apt_log.rpartition("\n$ ")[2]
    found = re.findall(r"^[EW]: (?!Some index files)(.+)$", last, re.MULTILINE)
    return f" (apt says: {found[0].rstrip('.')})" if found else ""


def _require_root(purpose: str, packages: Sequence[str]) -> None:
    wanted = ", ".join(packages)
    if not is_debian():
        name = release().get("PRETTY_NAME", "this system")
        raise SetupError(
            f"{purpose} needs {wanted}, and {name} is neither Debian nor Ubuntu, where this script could "
            "install them. Start a Docker engine by this system's own means, or set DOCKER_HOST to a reachable one."
        )
    if os.geteuid() != 0:
        raise SetupError(
            f"{purpose} needs the packages {wanted}, which only root can install. Run this again as root, "
            "or start a Docker engine that this user may use, or set DOCKER_HOST to a reachable one."
        )


def _apt(place: Place, *arguments: str) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1", "LC_ALL": "C.UTF-8"}
    # A fresh Ubuntu holds dpkg's lock for its first automatic upgrade.
    run(["apt-get", "-y", "-o", "DPkg::Lock::Timeout=300", *arguments], log=place.log("apt"), env=env)


def _install(place: Place, packages: Sequence[str]) -> None:
    # --no-remove: an engine from another source conflicts with these packages and must never be removed for them.
    arguments = ("install", "--no-install-recommends", "--no-remove", *packages)
    try:
        _apt(place, *arguments)
    except SetupError:
        # Stale package lists, or an earlier run that was killed in the middle: both heal like this.
        run(["dpkg", "--configure", "-a"], log=place.log("apt"))
        _apt(place, "update")
        _apt(place, *arguments)


def _install_quietly(place: Place, packages: Sequence[str], new_services: Sequence[str]) -> None:
    """Install without starting a service, now or at the next boot.

    Only services that were not there before are switched off. Debian's registry, for one, would listen on every
    address. The note stays until all is done, so that a later run can complete one that failed or was killed.
    """
    draft = _note(place).with_suffix(".draft")
    draft.write_text(json.dumps({"packages": packages, "new_services": new_services}))
    draft.replace(_note(place))
    _set_policy()
    try:
        _install(place, packages)
    finally:
        _restore_policy()
    abandon_interrupted(place)


def finish_interrupted(place: Place) -> None:
    """Complete an installation that was killed. Its apt may still be at work; then this waits for it."""
    if _note(place).exists():
        noted = json.loads(_note(place).read_text())
        with step(f"completing the interrupted installation of {', '.join(noted['packages'])}"):
            _install_quietly(place, noted["packages"], noted["new_services"])


def abandon_interrupted(place: Place) -> None:
    """Switch off what an installation newly brought, and forget it."""
    if not _note(place).exists():
        return
    _restore_policy()
    for service in filter(_known, json.loads(_note(place).read_text())["new_services"]):
        # What `systemctl disable` does, which a machine without systemd does not have.
        for link in Path("/etc/systemd/system").glob(f"*.wants/{service}"):
            link.unlink()
        name = service.removesuffix(".service")
        if Path("/etc/init.d", name).exists():
            capture(["update-rc.d", name, "disable"])
    _note(place).unlink()


def _set_policy() -> None:
    if _POLICY.exists() and not _policy_is_ours():
        _POLICY.rename(_POLICY_KEPT)
    _POLICY.write_text(_POLICY_TEXT)
    _POLICY.chmod(0o755)


def _restore_policy() -> None:
    if _policy_is_ours():
        _POLICY.unlink()
    if _POLICY_KEPT.exists():
        _POLICY_KEPT.rename(_POLICY)


def _policy_is_ours() -> bool:
    return _POLICY.exists() and _POLICY.read_text(errors="replace") == _POLICY_TEXT


def _note(place: Place) -> Path:
    return place.root / "installing.json"


def _known(service: str) -> bool:
    folders = ("/etc/systemd/system", "/lib/systemd/system", "/usr/lib/systemd/system")
    return any((Path(folder) / service).exists() for folder in folders)
