"""What runs the nodes of a cluster in the pool's image: Apptainer, with one file of each image on the shared disk."""

from __future__ import annotations

import shlex
from tempfile import TemporaryFile

from skyward.builder import plan_for
from skyward.builder.events import Report, note, readable
from skyward.builder.store import EngineImages
from skyward.delivery.deliver import ImageTarget, deliver
from skyward.engine import EngineAddress, Images, find_engine
from skyward.engine.images import save
from skyward.errors import ImageError, ProviderError
from skyward.model.image import Image
from skyward.model.protocol import PROCESSES_VAR
from skyward.model.spec import Cluster
from skyward.nodes.container import COMMAND
from skyward.providers.slurm.cluster import ClusterFacts
from skyward.providers.slurm.environment import Environment
from skyward.providers.slurm.login import Login, quoted

_MODULES = "/opt/skyward"  # of the runner, in images
_CONVERT_S = 3600.0  # images with frameworks for GPUs have gigabytes
# One client converts and the others wait. Apptainer's own cache would keep every layer a second time in the home.
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
# What Apptainer mounts by itself stays: the home directory and /tmp are those of the job, as without a container.
_RUN = "[ -e /dev/nvidiactl ] && nv=--nv; exec apptainer --quiet exec ${nv-} %s"
# Without a setuid installation each container has a user namespace of its own, and what runs in one cannot look at what
# runs in another: a session enters that of its job.
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
    """The image as a file on the shared disk, which Apptainer runs; converted there unless the file is there.

    Raises:
        ConfigError: the image's description is wrong.
        EngineError: there is no engine here that could build it, or it refuses.
        ImageError: it cannot be built or converted.
        ProviderError: the login node does not answer, or has no Apptainer.
    """
    facts.check_mode("apptainer")
    engine = find_engine()
    python, platform = cluster.spec.python, image.platform or cluster.spec.platform
    plan = plan_for(image, EngineImages(Images(engine), report), python=python, platform=platform)
    file = f"{facts.shared}/images/{plan.tag.replace(':', '-')}.sif"
    if login.run(f"if [ -e {shlex.quote(file)} ]; then echo there; fi").strip() != "there":
        reference = deliver(image, cluster, ImageTarget(engine=engine), report).reference
        _convert(login, engine, reference, plan.tag, file, report)
    env = f"{PROCESSES_VAR}=1"
    run = _RUN % quoted(["--bind", facts.shared, "--env", env, file, COMMAND[0], "-m"])
    inside = ["env", env, f"PYTHONPATH={_MODULES}", COMMAND[0], "-m", "skyward.runner.entry.session"]
    return Environment(
        reference=plan.tag,
        script=f"#!/bin/sh\numask 077\n{run} skyward.runner.entry.claimed job",
        session=quoted(["sh", "-c", f"{_ENTER % quoted(inside)}{run} skyward.runner.entry.session"]),
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
            if gone := login.why_gone():
                raise ProviderError(f"The login node {gone}.") from error
            last = "\n".join(str(error).splitlines()[-12:])
            raise ImageError(
                f"{tag} could not be converted by Apptainer on {login.address.name}, which takes room in the folder "
                f"of {file} and in /tmp (or APPTAINER_TMPDIR) there. The last lines were:\n{last}"
            ) from error
