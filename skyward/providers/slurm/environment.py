"""The nodes' environments on a cluster's shared disk, one per image: virtual environments, or files for Apptainer."""

from __future__ import annotations

import io
import shlex
import tarfile
from dataclasses import dataclass
from tempfile import TemporaryFile

from skyward.builder.events import Report, note, readable
from skyward.builder.files.copied import runner_files
from skyward.builder.plans import plan_for, plan_on_machine
from skyward.engine import EngineAddress, Images, find_engine
from skyward.engine.images import save
from skyward.errors import ConfigError, ImageError, ProviderError
from skyward.image import Plan
from skyward.model.image import Image
from skyward.model.instance import PROCESSES_VAR
from skyward.model.spec import Cluster
from skyward.nodes.container import COMMAND
from skyward.providers.slurm.login import ClusterFacts, Login

_INSTALL_S = _CONVERT_S = 3600.0  # frameworks for GPUs are gigabytes large
_MODULES = "/opt/skyward"  # the runner's modules in images
_RUNNER = "runner"  # folder with skyward's own files


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The environment in which a job runs its node.

    Attributes:
        reference: its name for messages and `skyward ps`.
        script: a job's script, without its last argument, the folder of the job.
        session: the command that enters a running node.
        env: the image's variables.
    """

    reference: str
    script: str
    session: str
    env: tuple[tuple[str, str], ...] = ()


# a virtual environment ----------------------------------------------------------------------------------------------

# One client installs while the others wait. If it is interrupted, the next one starts over.
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


def check_image(image: Image) -> None:
    """Reject an image with fields that a virtual environment cannot provide.

    Raises:
        ConfigError: it uses such fields.
    """
    fields = ("apt", "run", "base", "secrets", "build_env", "bake")
    if asked := [name for name in fields if getattr(image, name)]:
        raise ConfigError(
            f"With image_mode='venv' sky.Slurm installs Python packages only, and this image has {', '.join(asked)}. "
            "Leave that out, and let the cluster provide it (modules), or run images by Apptainer "
            "(image_mode='apptainer'), which the cluster must have."
        )


def virtual_environment(login: Login, cluster: ClusterFacts, image: Image, python: str, report: Report) -> Environment:
    """Return an image's virtual environment on the shared disk, which is created unless it exists.

    Raises:
        ConfigError: see `check_image`; or requirements conflict.
        ImageError: a package or an index is unavailable.
        ProviderError: the login node does not answer.
    """
    check_image(image)
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
        _install(login, plan, folder, cluster.interpreter)
    run = (f"PYTHONPATH={folder}/{_RUNNER}", "SKYWARD_PROCESSES=1", f"{folder}/venv/bin/python", "-m")
    return Environment(
        reference=plan.tag,
        script=f"#!/bin/sh\numask 077\nexec env {shlex.join([*run, 'skyward.runner.entry.claimed', 'job'])}",
        session=f"env {shlex.join([*run, 'skyward.runner.entry.session'])}",
        env=tuple(image.env.items()),
    )


def _install(login: Login, plan: Plan, folder: str, interpreter: str) -> None:
    script = f"set -- {shlex.join([folder, interpreter])}\n{_SCRIPT}{_pip_lines(plan)}\n"
    script += '"$1/venv/bin/python" -m compileall -q "$1/runner" || true\n: >"$1/ready"\n'
    try:
        login.run(script, _archive(plan), timeout_s=_INSTALL_S)
    except ProviderError as error:
        if login.why_gone():
            raise
        lines = str(error).splitlines()
        raise ImageError(
            f"The packages of {plan.tag} could not be installed on {login.address.name}: it needs Python's venv and "
            "pip, and a way to the package indexes (pip's own configuration there says which). The last lines were:\n"
            + "\n".join(lines[-12:])
        ) from error


def _pip_lines(plan: Plan) -> str:
    """Return the commands that install a lock: one for each file of requirements, with its indexes."""
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
        words = shlex.join([*pip, *hashes, *where, "-r", f"{number}.txt"])
        lines.append(f'"$1/venv/bin/python" {words} 2>&1')
    return "\n".join(lines)


def _files(plan: Plan) -> dict[tuple[str, bool], list[str]]:
    """Return requirements grouped by their single index ("" for any) and by whether they have hashes."""
    assert plan.lock is not None
    found: dict[tuple[str, bool], list[str]] = {}
    for package in plan.lock.packages:
        found.setdefault((package.index, bool(package.hashes)), []).append(package.line)
    return found


def _archive(plan: Plan) -> bytes:
    """Return a tar archive of the requirements and skyward's own files."""
    files = {f"{_RUNNER}/{path}": content for path, content in runner_files()}
    for number, lines in enumerate(_files(plan).values()):
        files[f"requirements/{number}.txt"] = "".join(f"{line}\n" for line in lines).encode()
    files.setdefault("requirements/none", b"")  # creates the folder even if the image has no packages
    return archive_of(files)


def archive_of(files: dict[str, bytes]) -> bytes:
    """Return a tar archive of files that only their owner can access."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o600
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


# Apptainer: one file per image ----------------------------------------------------------------------------------------

# One client converts while the others wait. Apptainer's own cache would store every layer again in the home directory.
_CONVERT = r"""
set -eu
umask 077
mkdir -p "${1%/*}"
exec 9>"$1.lock"
if command -v flock >/dev/null 2>&1; then flock 9; fi
[ ! -e "$1" ] || exit 0
trap 'rm -f "$1.tar" "$1.new"' EXIT
cat >"$1.tar"
apptainer --quiet build --force --disable-cache "$1.new" "docker-archive:$1.tar" >&2
mv "$1.new" "$1"
"""
# Apptainer's default mounts are kept: the home directory and /tmp are the job's own, as without a container.
_RUN = "[ -e /dev/nvidiactl ] && nv=--nv; exec apptainer --quiet exec ${nv-} %s"
# Without a setuid installation each container has its own user namespace, and processes in one cannot inspect those of
# another: a session therefore enters its job's namespace.
_ENTER = r"""
for found in $(grep -lsaxz skyward.runner.entry.claimed /proc/[0-9]*/cmdline); do
    process=${found%%/cmdline}
    grep -qsaxz "SLURM_JOB_ID=$SLURM_JOB_ID" "$process/environ" && break
done
if [ "$(readlink /proc/self/ns/user)" != "$(readlink "$process/ns/user")" ]; then
    exec nsenter --preserve-credentials --user --mount --target "${process#/proc/}" %s
fi
"""


def sif_environment(login: Login, facts: ClusterFacts, image: Image, cluster: Cluster, report: Report) -> Environment:
    """Return the image as a file on the shared disk, run by Apptainer; it is converted there unless the file exists.

    Raises:
        ConfigError: the image's description is invalid.
        EngineError: there is no local engine that could build it, or it refused.
        ImageError: it cannot be built or converted.
        ProviderError: the login node does not answer.
    """
    from skyward.builder.store import EngineImages
    from skyward.delivery.deliver import ImageTarget, deliver  # not loaded for virtual environments

    engine = find_engine()
    python, platform = cluster.spec.python, image.platform or cluster.spec.platform
    plan = plan_for(image, EngineImages(Images(engine), report), python=python, platform=platform)
    file = f"{facts.shared}/images/{plan.tag.replace(':', '-')}.sif"
    if login.run(f"if [ -e {shlex.quote(file)} ]; then echo there; fi").strip() != "there":
        reference = deliver(image, cluster, ImageTarget(engine=engine), report).reference
        _convert(login, engine, reference, plan.tag, file, report)
    env = f"{PROCESSES_VAR}=1"
    run = _RUN % shlex.join(["--bind", facts.shared, "--env", env, file, COMMAND[0], "-m"])
    inside = shlex.join(["env", env, f"PYTHONPATH={_MODULES}", COMMAND[0], "-m", "skyward.runner.entry.session"])
    enter = _ENTER % f'{inside} "$@"'
    return Environment(
        reference=plan.tag,
        script=f"#!/bin/sh\numask 077\n{run} skyward.runner.entry.claimed job",
        session=shlex.join(["sh", "-c", f'{enter}{run} skyward.runner.entry.session "$@"', "sh"]),
    )


def _convert(login: Login, engine: EngineAddress, reference: str, tag: str, file: str, report: Report) -> None:
    with TemporaryFile() as archive:
        for chunk in save(engine, reference):
            archive.write(chunk)
        report(note(f"sending {readable(archive.tell())} to {login.address.name}, to be converted into {file}"))
        archive.seek(0)
        try:
            login.run(f"set -- {shlex.quote(file)}\n{_CONVERT}", archive, timeout_s=_CONVERT_S)
        except ProviderError as error:
            if login.why_gone():
                raise
            last = "\n".join(str(error).splitlines()[-12:])
            raise ImageError(
                f"{tag} could not be converted by Apptainer on {login.address.name}, which needs room in the folder "
                f"of {file} and in /tmp (or APPTAINER_TMPDIR) there. The last lines were:\n{last}"
            ) from error
