"""The commands: up and down; and the machines' power, which tests switch off and on."""

import json
import shutil
import time

from scripts.engine.console import SetupError, tail
from scripts.stand import commands, network
from scripts.stand.machine import launch
from scripts.stand.place import Host, install

from . import configuration
from .place import SSH_PORT, Cluster

_PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "sshd": "openssh-server",
    "ip": "iproute2",
    "iptables": "iptables",
    "tini": "tini",
}
_START_LIMIT_S = 60
# Each machine has namespaces of its own, and below them this machine's files. Accounts and names are the cluster's, by
# a layer over /etc: a mount over a file of it would vanish as soon as this machine replaces the file (useradd does).
# The administrator's shell files stay out of the way, since nobody logs in as root.
_BOOT = r"""
set -e
mount --make-rprivate /
mount --bind "$ROOT" /mnt
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mount -t overlay -o lowerdir=/mnt/etc:/etc overlay /etc
hostname "$NAME"
export SLURM_CONF=/mnt/etc/slurm.conf
exec "$TINI" -s -- sh "/mnt/etc/start.$NAME"
"""


def up(cluster: Cluster) -> None:
    """Bring up a login node and three compute nodes; write .slurm/cluster.json."""
    with cluster.locked():
        install(cluster, _PROGRAMS)
        commands.bring_up(cluster, lambda: _make(cluster), lambda: _clear(cluster))


def _make(cluster: Cluster) -> None:
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
    cluster.hosts_file.write_text(json.dumps(facts, indent=2) + "\n")


def wait_idle(cluster: Cluster) -> None:
    """Block until Slurm has all nodes for use.

    Raises:
        SetupError: it has not within a minute.
    """
    deadline_s = time.monotonic() + _START_LIMIT_S
    while not _all_usable(cluster):
        if time.monotonic() > deadline_s:
            logs = sorted((cluster.root / "logs").glob("*.log"))
            words = "\n".join(f"{log.name}:\n{tail(log)}" for log in logs)
            raise SetupError(f"the nodes were not idle within {_START_LIMIT_S} s. Last words:\n{words}")
        time.sleep(0.05)


def _all_usable(cluster: Cluster) -> bool:
    if cluster.login.init is None:
        return False
    # a node that does not answer has a star after its state
    states = cluster.login.run("sinfo", "-h", "-N", "-p", "main", "-o", "%t", check=False).split()
    return len(states) == len(cluster.hosts) and set(states) <= {"idle", "mix", "alloc"}


def power_on(machine: Host) -> None:
    """Start a machine; does not wait. Nothing happens if it runs."""
    launch(machine, _BOOT, machine.stand.log(machine.name), ROOT=str(machine.stand.root))


def down(cluster: Cluster) -> None:
    """Take the cluster away with all its data."""
    commands.take_down(cluster, lambda: _clear(cluster))


def _clear(cluster: Cluster) -> None:
    """End the machines and remove their network and files."""
    commands.clear(cluster)
    for path in cluster.root.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
