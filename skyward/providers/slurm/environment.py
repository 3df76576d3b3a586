"""What runs the nodes of a cluster without containers: a virtual environment on its shared disk, one for each image."""

from __future__ import annotations

import io
import shlex
import tarfile
from dataclasses import dataclass

from skyward.builder.events import Report, note
from skyward.builder.files.copied import runner_files
from skyward.builder.planning import plan_on_machine
from skyward.errors import ConfigError, ImageError, ProviderError
from skyward.image import Plan
from skyward.model.image import Image
from skyward.providers.slurm.cluster import ClusterFacts
from skyward.providers.slurm.login import Login, quoted

_INSTALL_S = 3600.0  # frameworks for GPUs have gigabytes
_RUNNER = "runner"  # folder with skyward's own files
# One client installs and the others wait. Where that was interrupted, the next one begins again.
_SCRIPT = r"""
set -eu
umask 077
mkdir -p "$1"
if [ -e "$1/ready" ]; then echo there; exit; fi
exec 9>"$1/lock"
if command -v flock >/dev/null 2>&1; then flock 9; fi
if [ -e "$1/ready" ]; then echo there; exit; fi
rm -rf "$1/venv" "$1/requirements" "$1/runner"
tar -xf - -C "$1"
"$2" -m venv "$1/venv" 2>&1
cd "$1/requirements"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What a job runs its node in.

    Attributes:
        reference: its name, for messages and `skyward ps`.
        script: the script of a job, up to the folder of the job, which is its last argument.
        session: the command that enters a node which runs there.
        env: variables of the image.
    """

    reference: str
    script: str
    session: str
    env: tuple[tuple[str, str], ...] = ()


def check_image(image: Image) -> None:
    """Refuse what an image has that a virtual environment cannot have.

    Raises:
        ConfigError: it names such things.
    """
    fields = ("apt", "run", "base", "secrets", "build_env", "bake", "verify")
    if asked := [name for name in fields if getattr(image, name)]:
        raise ConfigError(
            f"With image_mode='venv' sky.Slurm installs Python packages only, and this image has {', '.join(asked)}. "
            "Leave that out, and let the cluster provide it (modules), or run images by Apptainer "
            "(image_mode='apptainer'), which the cluster must have."
        )


def virtual_environment(login: Login, cluster: ClusterFacts, image: Image, python: str, report: Report) -> Environment:
    """The virtual environment of an image on the shared disk; made there unless it is there.

    Raises:
        ConfigError: see `check_image`; or requirements contradict each other.
        ImageError: a package or an index cannot be had.
        ProviderError: the login node does not answer, or has no Python of this version.
    """
    check_image(image)
    interpreter = cluster.python(python)
    plan = plan_on_machine(image, python=python, platform=cluster.platform, libc=cluster.libc)
    if plan.copied:
        raise ConfigError(
            "sky.Slurm(image_mode='venv') installs no wheels and projects of this machine: "
            f"{', '.join(copied.entry for copied in plan.copied)}. Send modules with Image(includes=...), or put the "
            "packages into an index."
        )
    folder = f"{cluster.shared}/images/{plan.tag.replace(':', '-')}"
    there = login.run(f"if [ -e {shlex.quote(folder)}/ready ]; then echo there; fi").strip() == "there"
    if not there:
        assert plan.lock is not None
        count = len(plan.lock.packages)
        report(note(f"installing {count} packages into {folder} on {login.address.name}"))
        _install(login, plan, folder, interpreter)
    run = (f"PYTHONPATH={folder}/{_RUNNER}", "SKYWARD_PROCESSES=1", f"{folder}/venv/bin/python", "-m")
    return Environment(
        reference=plan.tag,
        script=f"#!/bin/sh\numask 077\nexec env {quoted([*run, 'skyward.runner.entry.claimed', 'job'])}",
        session=f"env {quoted([*run, 'skyward.runner.entry.session'])}",
        env=tuple(image.env.items()),
    )


def _install(login: Login, plan: Plan, folder: str, interpreter: str) -> None:
    script = f"set -- {quoted([folder, interpreter])}\n{_SCRIPT}{_pip_lines(plan)}\n"
    script += '"$1/venv/bin/python" -m compileall -q "$1/runner" || true\n: >"$1/ready"\n'
    try:
        login.run(script, _archive(plan), timeout_s=_INSTALL_S)
    except ProviderError as error:
        if gone := login.why_gone():
            raise ProviderError(f"The login node {gone}.") from error
        lines = str(error).splitlines()
        raise ImageError(
            f"The packages of {plan.tag} could not be installed on {login.address.name}: it needs Python's venv and "
            "pip, and a way to the package indexes (pip's own configuration there says which). The last lines were:\n"
            + "\n".join(lines[-12:])
        ) from error


def _pip_lines(plan: Plan) -> str:
    """The commands that install a lock: for each file of requirements, with the indexes that it names."""
    assert plan.lock is not None
    sources, lines = plan.lock.sources, []
    places = [
        *(("--index-url", sources.default) if sources.default else ()),
        *(word for url in sources.extra for word in ("--extra-index-url", url)),
        *(word for url in sources.find_links for word in ("--find-links", url)),
    ]
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    for number, (index, has_hashes) in enumerate(_files(plan)):
        hashes = ["--require-hashes"] if has_hashes else []
        where = ["--index-url", index] if index else places
        words = quoted([*pip, *hashes, *where, "-r", f"{number}.txt"])
        lines.append(f'"$1/venv/bin/python" {words} 2>&1')
    return "\n".join(lines)


def _files(plan: Plan) -> dict[tuple[str, bool], list[str]]:
    """The requirements by the one index that they come from ("" for any), and by whether they have hashes."""
    assert plan.lock is not None
    found: dict[tuple[str, bool], list[str]] = {}
    for package in plan.lock.packages:
        found.setdefault((package.index, bool(package.hashes)), []).append(package.line)
    return found


def _archive(plan: Plan) -> bytes:
    """The requirements and skyward's own files, as a tar archive."""
    files = {f"{_RUNNER}/{path}": content for path, content in runner_files()}
    for number, lines in enumerate(_files(plan).values()):
        files[f"requirements/{number}.txt"] = "".join(f"{line}\n" for line in lines).encode()
    files.setdefault("requirements/none", b"")  # the folder is there, also for an image without packages
    return archive_of(files)


def archive_of(files: dict[str, bytes]) -> bytes:
    """A tar archive of files that open for their owner only."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o600
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
