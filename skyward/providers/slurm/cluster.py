"""What a pool has to know of a cluster before it submits a job: one question to the login node, and its checks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

from skyward.errors import ProviderError
from skyward.model.image_fields import PLATFORMS
from skyward.providers.base import PoolRequest
from skyward.providers.slurm.login import Login

# Nothing is changed but that the folder is made. A name or number that a command does not tell is left empty.
_SCRIPT = r"""
say() { printf 'skyward %s %s\n' "$1" "$2"; }
folder=@FOLDER@
case $folder in '~') folder=$HOME ;; '~/'*) folder=$HOME/${folder#??} ;; esac
(umask 077; mkdir -p "$folder") && say shared "$(cd "$folder" && pwd -P)"
say slurm "$(sbatch --version 2>/dev/null)"
say machine "$(uname -s) $(uname -m)"
say libc "$(getconf GNU_LIBC_VERSION 2>/dev/null)"
for name in python@PYTHON@ python3; do
    found=$(command -v $name) && [ "$("$found" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" = @PYTHON@ ] &&
        say python "$found" && { "$found" -c 'import ensurepip' 2>/dev/null && say venv yes; break; }
done
say apptainer "$(apptainer --version 2>/dev/null)"
scontrol show config 2>/dev/null | sed -n 's/^\(SlurmctldHost\|SlurmctldPort\)[^=]*= */skyward \1 /p'
sinfo -h -o '%R|%P|%a|%G' 2>/dev/null | sed 's/^/skyward partition /'
exit 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition of a cluster.

    Attributes:
        name: its name.
        is_default: whether jobs that name none go there.
        state: "up", or why it takes no jobs.
        gres: generic resources of its nodes, in Slurm's words; a line for each kind of node.
    """

    name: str
    is_default: bool
    state: str
    gres: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What the login node tells.

    Attributes:
        login: its name.
        version: of Slurm, such as "22.05.8".
        shared: absolute path of the folder on the shared disk.
        platform: OCI platform of the login node, which its compute nodes are taken to have as well.
        libc: its C library, such as "glibc 2.36".
        interpreter: the Python of the client's version there; "" if there is none.
        has_venv: whether that makes virtual environments.
        apptainer: version of Apptainer there; "" if there is none.
        controllers: where Slurm's controllers are, as `host:port`.
        partitions: those that it lists.
    """

    login: str
    version: str
    shared: str
    platform: str
    libc: str
    interpreter: str
    has_venv: bool
    apptainer: str
    controllers: tuple[str, ...]
    partitions: tuple[Partition, ...]

    def python(self, minor: str) -> str:
        """The path of Python there.

        Raises:
            ProviderError: it has none of this version.
        """
        if self.interpreter:
            return self.interpreter
        raise ProviderError(
            f"There is no Python {minor} on the login node {self.login}, and functions travel as bytecode of this "
            f"client's version. Have `python{minor}` in the PATH of commands there (a module loaded in ~/.profile is "
            "not), or run the client on a version that the cluster has."
        )

    @property
    def modes(self) -> Mapping[str, str]:
        """What is missing for each `image_mode` of sky.Slurm, the preferred one first; "" for nothing."""
        return {
            "apptainer": "" if self.apptainer else f"there is no Apptainer on {self.login}",
            "venv": ""
            if self.has_venv
            else f"{self.interpreter} on {self.login} has no venv module with pip (Debian: python3-venv)"
            if self.interpreter
            else f"there is no Python of this client's version on {self.login}",
        }

    def check_mode(self, mode: str) -> None:
        """Refuse a way to run images that the cluster does not have.

        Raises:
            ProviderError: it is missing; says what.
        """
        if missing := self.modes[mode]:
            raise ProviderError(
                f"sky.Slurm(image_mode={mode!r}): {missing}. Have it in the PATH of commands there (a module loaded in "
                "~/.profile is not), or choose another image_mode; `skyward doctor --slurm LOGIN` says which there are."
            )

    def partition(self, name: str | None) -> Partition:
        """The partition of that name, or the default one; of several, as "short,long", those that take jobs as one.

        Raises:
            ProviderError: there is none, or none of them takes jobs.
        """
        known = {each.name: each for each in self.partitions}
        names = ", ".join(known) or "none"
        wanted = name.split(",") if name else [each.name for each in self.partitions if each.is_default][:1]
        missing = next((each for each in wanted if each not in known), None)
        if missing is not None or not wanted:
            what = f"no partition {missing!r}" if missing is not None else "no default partition"
            raise ProviderError(f"The cluster of {self.login} has {what}. Its partitions: {names}. Name one.")
        found = [known[each] for each in wanted if known[each].state == "up"]
        if not found:
            states = ", ".join(dict.fromkeys(known[each].state for each in wanted))
            raise ProviderError(
                f"Partition {','.join(wanted)} of {self.login} takes no jobs: it is {states}. Others: {names}."
            )
        return replace(found[0], gres="\n".join(each.gres for each in found))


def ask(login: Login, folder: str, python: str) -> ClusterFacts:
    """Ask the login node.

    Raises:
        ProviderError: it has no Slurm, no controller answers, or the folder cannot be made.
    """
    script = _SCRIPT.replace("@FOLDER@", shlex.quote(folder)).replace("@PYTHON@", python)
    return facts_in(login.run(script), login.address.name, folder)


def facts_in(text: str, login: str, folder: str) -> ClusterFacts:
    """The facts in the answer of a login node.

    Raises:
        ProviderError: something is missing that every pool takes.
    """
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        mark, _, rest = line.partition(" ")
        name, _, value = rest.partition(" ")
        if mark == "skyward":
            found.setdefault(name, []).append(value.strip())

    def one(name: str) -> str:
        return (found.get(name) or [""])[0]

    if not one("slurm"):
        raise ProviderError(
            f"There is no sbatch on {login}: it is not a login node of a Slurm cluster, or Slurm is not in the PATH of "
            "commands there."
        )
    if not one("SlurmctldHost"):
        raise ProviderError(f"Slurm's controller does not answer {login}. `scontrol ping` there says more.")
    if not one("shared"):
        raise ProviderError(
            f"The folder {folder} cannot be made on {login}. Give sky.Slurm(folder=...) one on a disk that all "
            "nodes share."
        )
    system, _, machine = one("machine").partition(" ")
    if system != "Linux" or machine not in PLATFORMS:
        raise ProviderError(
            f"The login node {login} is {one('machine')}; packages are made for Linux on amd64 and arm64."
        )
    port = one("SlurmctldPort").partition("-")[0] or "6817"
    return ClusterFacts(
        login=login,
        version=one("slurm").rpartition(" ")[2],
        shared=one("shared"),
        platform=PLATFORMS[machine],
        libc=one("libc"),
        interpreter=one("python"),
        has_venv=bool(one("venv")),
        apptainer=one("apptainer").rpartition(" ")[2],
        controllers=tuple(f"{_address(host)}:{port}" for host in found["SlurmctldHost"]),
        partitions=_partitions(found.get("partition", [])),
    )


def _address(host: str) -> str:
    """The address in `host(address)`, or the host alone."""
    inner = re.fullmatch(r"[^(]+\(([^)]+)\)", host)
    return inner[1] if inner else host


def _partitions(lines: list[str]) -> tuple[Partition, ...]:
    found: dict[str, Partition] = {}
    for line in lines:
        fields = line.split("|")
        if len(fields) != 4:
            continue
        name, shown, state, gres = fields
        known = found.get(name)
        found[name] = Partition(
            name=name,
            is_default=shown.endswith("*"),
            state=state,
            gres=f"{known.gres}\n{gres}" if known else gres,
        )
    return tuple(found.values())


def check_room(request: PoolRequest, cluster: ClusterFacts, partition: str | None) -> Partition:
    """The partition that a pool's jobs go to.

    Raises:
        ProviderError: there is none, or it takes no jobs; or the image is for another kind of machine.
    """
    wanted = request.image.platform or request.platform
    if wanted != cluster.platform:
        raise ProviderError(f"The nodes of {cluster.login} are {cluster.platform}, and the image is for {wanted}.")
    return cluster.partition(partition)
