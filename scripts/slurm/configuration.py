"""The files of the cluster's configuration: Slurm's, the users', sshd's, and what each machine runs."""

import os
import secrets
import shutil
from pathlib import Path

from scripts.stand.machine import make_key

from .place import ROOT, SSH_PORT, USERS, Cluster

# A lost node is known to be lost after ten seconds, jobs start as soon as they can, and one that uses more memory than
# it may is ended: without control groups Slurm looks by itself. Else it is as it comes.
_SLURM = """
ClusterName=skyward
SlurmctldHost=login({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/run/munge.socket
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny
SlurmctldPort=6917
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd.%n.pid
SlurmctldLogFile={root}/logs/slurmctld.log
SlurmdLogFile={root}/logs/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=100000
SlurmdTimeout=10
KillWait=3
MinJobAge=120
ReturnToService=2
MpiDefault=none
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
GresTypes=gpu
DefMemPerCPU=500
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
"""
_SSHD = """
ListenAddress {address}
Port {port}
HostKey {root}/keys/host_key
AuthorizedKeysFile {root}/keys/authorized_keys
PidFile /run/sshd.pid
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
MaxStartups 100
MaxSessions 100
SetEnv SLURM_CONF={root}/etc/slurm.conf
"""
_LOGIN = """
munged --force --socket={root}/run/munge.socket --key-file={root}/etc/munge.key --pid-file={root}/run/munged.pid \
    --log-file={root}/logs/munged.log --seed-file={root}/state/munge.seed
slurmctld
mkdir -p /run/sshd
/usr/sbin/sshd -f {root}/etc/sshd_config -E {root}/logs/sshd.log
exec sleep infinity
"""
_NODE = """
slurmd -N "$(hostname)"
exec sleep infinity
"""


def write(cluster: Cluster) -> None:
    """Write all of it into the cluster's folder."""
    root = cluster.root
    for name in ("etc", "state", "logs", "run", "spool", "home", "keys"):
        (root / name).mkdir(mode=0o755, exist_ok=True)
    for machine in cluster.hosts:
        (root / "spool" / machine.name).mkdir(exist_ok=True)
    _write_slurm(cluster)
    key = root / "etc" / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    _write_users(root)
    names = "".join(f"{machine.address} {machine.name}\n" for machine in cluster.machines)
    (root / "etc" / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
    make_key(root / "keys" / "host_key", "login")
    make_key(cluster.key, "skyward-slurm")
    shutil.copyfile(cluster.key.with_suffix(".pub"), root / "keys" / "authorized_keys")
    kind, public, *_ = (root / "keys" / "host_key.pub").read_text().split()
    cluster.known_hosts.write_text(f"[{cluster.login.address}]:{SSH_PORT} {kind} {public}\n")
    sshd = _SSHD.format(root=ROOT, address=cluster.login.address, port=SSH_PORT)
    (root / "etc" / "sshd_config").write_text(sshd)
    (root / "etc" / "start.login").write_text(_LOGIN.format(root=ROOT))
    for machine in cluster.hosts:
        (root / "etc" / f"start.{machine.name}").write_text(_NODE)


def _write_slurm(cluster: Cluster) -> None:
    names = ",".join(machine.name for machine in cluster.hosts)
    nodes = [
        f"NodeName={machine.name} NodeAddr={machine.address} CPUs=4 RealMemory=4000 Gres=gpu:a100:2 State=UNKNOWN"
        for machine in cluster.hosts
    ]
    partitions = [
        f"PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP",
        f"PartitionName=pairs Nodes={names} MinNodes=2 State=UP",  # takes no job of one node
    ]
    # device files that exist stand in for GPUs
    gpus = [f"NodeName={machine.name} Name=gpu Type=a100 File=/dev/tty6[0-1]" for machine in cluster.hosts]
    general = _SLURM.format(root=ROOT, controller=cluster.login.address)
    etc = cluster.root / "etc"
    (etc / "slurm.conf").write_text("\n".join([general, *nodes, *partitions, ""]))
    (etc / "gres.conf").write_text("\n".join([*gpus, ""]))
    (etc / "cgroup.conf").write_text("CgroupAutomount=no\n")


def _write_users(root: Path) -> None:
    """The accounts of this machine and two ordinary users, as its machines see them; this machine is not changed."""
    for name, line in (("passwd", "{user}:x:{id}:{id}::{root}/home/{user}:/bin/bash"), ("group", "{user}:x:{id}:")):
        own = "".join(f"{line.format(user=user, id=number, root=ROOT)}\n" for user, number in USERS.items())
        (root / "etc" / name).write_text(Path(f"/etc/{name}").read_text().rstrip("\n") + f"\n{own}")
    for user, number in USERS.items():
        home = root / "home" / user
        home.mkdir(mode=0o755, exist_ok=True)
        os.chown(home, number, number)
