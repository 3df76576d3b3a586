"""One host as processes and mounts: its root over this machine's, its init, its sshd, its engine."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from scripts.engine import processes
from scripts.engine.console import SetupError, tail
from scripts.engine.daemon import answers, daemon_path

from .place import Host, program

START_LIMIT_S = 60
SOCKET = "var/run/docker.sock"
# Runs in namespaces of its own. The root is this machine's, read-only below a layer in memory; /var/lib/docker is on
# the disk. `ip netns exec` would hide the control groups, hence nsenter around this. The administrator's shell files
# stay out: they would run at each login, and one that takes a lock (pyenv does) may leave it to all later ones.
_BOOT = r"""
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$FOLDER/memory"
cd "$FOLDER/memory"
mkdir upper work root
mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work overlay root
cd root
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --rbind /sys/fs/cgroup sys/fs/cgroup
mount --rbind /dev dev
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
[ -e var/run ] || ln -s /run var/run
mkdir -p var/lib/docker run/sshd run/boot
mount --bind "$FOLDER/docker" var/lib/docker
mount --bind "$FOLDER/boot" run/boot
hostname "$NAME"
echo "$NAME" > etc/hostname
printf '127.0.0.1 localhost\n%s %s\n' "$ADDRESS" "$NAME" > etc/hosts
rm -rf etc/docker
rm -f root/.bashrc root/.bash_profile root/.bash_login root/.profile
pivot_root . mnt
umount -l /mnt
exec "$TINI" -s -- sh /run/boot/start
"""
_START = r"""
/usr/sbin/sshd -f /run/boot/sshd_config -E /run/boot/sshd.log
sh /run/boot/engine &
exec sleep infinity
"""
_ENGINE = r"""
rm -f /run/docker.pid /run/docker/containerd/containerd.pid
exec dockerd --storage-driver=overlay2 --exec-opt=native.cgroupdriver=cgroupfs --cgroup-parent=/{cgroup} \
    --insecure-registry={subnet}.0/24 --log-level=warn >>/run/boot/dockerd.log 2>&1
"""
_SSHD = """
ListenAddress {address}
HostKey /run/boot/host_key
AuthorizedKeysFile /run/boot/authorized_keys .ssh/authorized_keys
PidFile /run/sshd.pid
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
"""


def prepare(host: Host) -> None:
    """Make its folder, host key and configuration."""
    boot = host.folder / "boot"
    for folder in (boot, host.folder / "docker", host.folder / "memory"):
        folder.mkdir(parents=True, exist_ok=True)
    make_key(boot / "host_key", host.name)
    shutil.copyfile(host.stand.key.with_suffix(".pub"), boot / "authorized_keys")
    (boot / "sshd_config").write_text(_SSHD.format(address=host.address))
    (boot / "start").write_text(_START)
    (boot / "engine").write_text(_ENGINE.format(cgroup=host.stand.cgroup, subnet=host.stand.subnet))


def make_key(path: Path, comment: str) -> None:
    """A key pair without a password, unless it is there."""
    if not path.exists():
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)


def power_on(host: Host) -> None:
    """Start its init, which starts the rest; does not wait. Nothing happens if it runs."""
    launch(host, _BOOT, host.folder / "boot" / "boot.log")


def launch(host: Host, boot: str, log: Path, **variables: str) -> None:
    """Start a shell script in namespaces of the host's own; nothing happens if one runs."""
    if host.init is not None:
        return
    host.folder.mkdir(exist_ok=True)
    own = {"FOLDER": str(host.folder), "NAME": host.name, "ADDRESS": host.address, "TINI": program("tini")}
    environment = {"PATH": daemon_path(), "HOME": "/root", "LANG": "C.UTF-8", **own, **variables}
    words = [program("nsenter"), f"--net=/run/netns/{host.namespace}"] if host.namespace else []
    words += [program("unshare"), "--mount", "--uts", "--pid", "--ipc", "--fork", "--kill-child", "sh", "-c", boot]
    pid = processes.start(words, log=log, env=environment)
    (host.folder / "pid").write_text(f"{pid}\n")


def wait_up(host: Host) -> None:
    """Block until its sshd and its engine answer.

    Raises:
        SetupError: they do not, within a minute.
    """
    deadline_s = time.monotonic() + START_LIMIT_S
    while not (host.init is not None and _sshd_answers(host) and _engine_answers(host)):
        if time.monotonic() > deadline_s:
            logs = [host.folder / "boot" / name for name in ("boot.log", "sshd.log", "dockerd.log")]
            words = "\n".join(f"{log.name}:\n{tail(log)}" for log in logs if log.exists())
            raise SetupError(f"{host.name} did not come up within {START_LIMIT_S} s. Its last words:\n{words}")
        time.sleep(0.02)


def _sshd_answers(host: Host) -> bool:
    try:
        with socket.create_connection((host.address, 22), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _engine_answers(host: Host) -> bool:
    # /var/run may be an absolute link, which from here would lead to this machine's
    return answers(Path(f"/proc/{host.init}/root/run/docker.sock"), timeout_s=2)


def power_off(host: Host) -> None:
    """End everything that runs on it, without a word to anybody."""
    outer, init = host.outer, host.init
    if outer is None:
        return
    os.kill(init or outer, signal.SIGKILL)
    deadline_s = time.monotonic() + 15
    while processes.alive(outer):  # it ends when process 1 has, and that when all others have
        if time.monotonic() > deadline_s:
            raise SetupError(f"{host.name} does not end.")
        time.sleep(0.02)
    (host.folder / "pid").unlink(missing_ok=True)


def remove_cgroups(name: str) -> None:
    """Remove the control groups of this name, in every hierarchy, and all below them."""
    places = [Path(place) for place, _, _ in os.walk("/sys/fs/cgroup")]  # which passes over those that end meanwhile
    for top in (place for place in places if place.name == name):
        folders = sorted((path for path in top.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
        for folder in (*folders, top):
            with contextlib.suppress(OSError):  # a process that is just ending
                folder.rmdir()


def start_sshd(host: Host) -> None:
    """Start its sshd again."""
    host.run("/usr/sbin/sshd", "-f", "/run/boot/sshd_config", "-E", "/run/boot/sshd.log")


def start_engine(host: Host) -> None:
    """Start its engine again, and wait for it."""
    host.run("sh", "-c", "setsid sh /run/boot/engine </dev/null >/dev/null 2>&1 &")
    wait_up(host)
