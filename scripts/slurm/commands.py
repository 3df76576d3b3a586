"""The commands: up and down; and the machines' power, which tests switch off and on."""

import contextlib
import json
import os
import shutil
import signal
import time

from scripts.engine import processes
from scripts.engine.console import SetupError, tail
from scripts.engine.daemon import daemon_path
from scripts.stand.machine import start
from scripts.stand.place import install, program

from . import configuration, network
from .place import SSH_PORT, Cluster, Machine

_PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "sshd": "openssh-server",
    "ip": "iproute2",
    "tini": "tini",
}
_START_LIMIT_S = 60
# Each machine has namespaces of its own, and below them this machine's files. Accounts and names are the cluster's, by
# a layer over /etc: a mount over a file of it would vanish as soon as this machine replaces the file (useradd does).
# The administrator's shell files stay out of the way, since nobody logs in as root.
_BOOT = r"""
set -e
mount --make-rprivate /
mount --bind "$FOLDER" /mnt
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mount -t overlay -o lowerdir=/mnt/etc:/etc overlay /etc
hostname "$NAME"
export SLURM_CONF=/mnt/etc/slurm.conf
exec "$TINI" -s -- sh "/mnt/etc/start.$NAME"
"""


def up(cluster: Cluster) -> None:
    """Bring the cluster up and leave `.slurm/cluster.json`. Does nothing if it runs."""
    started_s = time.monotonic()
    with cluster.locked():
        if cluster.facts_file.exists() and all(machine.init is not None for machine in cluster.machines):
            _say(f"the cluster is up already, see {cluster.facts_file}")
            return
        if os.geteuid() != 0:
            raise SetupError("namespaces and mounts take root; run this again as root.")
        install(cluster.engine, _PROGRAMS, "the Slurm cluster")
        _clear(cluster)
        try:
            _bring_up(cluster)
        except BaseException:
            _clear(cluster)
            raise
    _say(f"{len(cluster.nodes)} nodes are idle after {time.monotonic() - started_s:.1f} s; see {cluster.facts_file}")


def _bring_up(cluster: Cluster) -> None:
    network.up(cluster)
    configuration.write(cluster)
    for machine in cluster.machines:
        power_on(machine)
    wait_idle(cluster)
    facts = {
        "login": f"alice@{cluster.login.address}:{SSH_PORT}",
        "key": str(cluster.key),
        "known_hosts": str(cluster.known_hosts),
    }
    cluster.facts_file.write_text(json.dumps(facts, indent=2) + "\n")


def wait_idle(cluster: Cluster) -> None:
    """Block until Slurm has all nodes for use.

    Raises:
        SetupError: it has not within a minute.
    """
    deadline_s = time.monotonic() + _START_LIMIT_S
    while not _all_usable(cluster):
        if time.monotonic() > deadline_s:
            logs = sorted((cluster.root / "log").glob("*.log"))
            words = "\n".join(f"{log.name}:\n{tail(log)}" for log in logs)
            raise SetupError(f"the nodes were not idle within {_START_LIMIT_S} s. Last words:\n{words}")
        time.sleep(0.05)


def _all_usable(cluster: Cluster) -> bool:
    if cluster.login.init is None:
        return False
    # a node that does not answer has a star after its state
    states = cluster.login.run("sinfo", "-h", "-N", "-p", "main", "-o", "%t", check=False).split()
    return len(states) == len(cluster.nodes) and set(states) <= {"idle", "mix", "alloc"}


def power_on(machine: Machine) -> None:
    """Start a machine; does not wait. Nothing happens if it runs."""
    if machine.init is not None:
        return
    root = machine.cluster.root
    environment = {
        "PATH": daemon_path(),
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "FOLDER": str(root),
        "NAME": machine.name,
        "TINI": program("tini"),
    }
    words = [program("unshare"), "--mount", "--uts", "--pid", "--ipc", "--fork", "--kill-child", "sh", "-c", _BOOT]
    if machine.namespace is not None:
        words = [program("nsenter"), f"--net=/run/netns/{machine.namespace}", *words]
    pid = start(words, log=machine.cluster.log(machine.name), env=environment)
    (root / "run" / f"{machine.name}.outer").write_text(f"{pid}\n")


def power_off(machine: Machine) -> None:
    """End everything that runs on a machine, without a word to anybody."""
    outer, init = machine.outer, machine.init
    if outer is None:
        return
    os.kill(init or outer, signal.SIGKILL)
    deadline_s = time.monotonic() + 15
    while processes.alive(outer):  # it ends when process 1 has, and that when all others have
        if time.monotonic() > deadline_s:
            raise SetupError(f"{machine.name} does not end.")
        time.sleep(0.02)


def down(cluster: Cluster) -> None:
    """Take the cluster away with all its data."""
    if not cluster.root.is_dir():
        _say("nothing to take away: there is no .slurm folder")
        return
    started_s = time.monotonic()
    with cluster.locked():
        _clear(cluster)
    shutil.rmtree(cluster.root)
    _say(f"taken away after {time.monotonic() - started_s:.1f} s; nothing is left")


def _clear(cluster: Cluster) -> None:
    """End the machines and remove their network and files; the lock stays."""
    cluster.facts_file.unlink(missing_ok=True)
    for machine in cluster.machines:
        power_off(machine)
    network.down(cluster)
    for path in cluster.root.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "lock":
            with contextlib.suppress(FileNotFoundError):
                path.unlink()


def _say(line: str) -> None:
    print(f"slurm: {line}", flush=True)
