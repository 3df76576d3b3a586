"""The private dockerd: its settings, its start, its end. Data, sockets and logs stay inside the clone's place."""

import json
import os
import re
import shutil
import signal
import socket
import time
from pathlib import Path

from . import processes
from .console import SetupError, capture, say, step, tail
from .place import Place

START_LIMIT_S = 60
STOP_LIMIT_S = 30
STANDS = "10.77.0.0/16"  # the networks of `make stand` and the clusters, whose registries speak plain http
KEPT_CACHE = "8GB"  # what builds may keep beside the images, before the engine drops what was used longest ago
# A login shell of a plain user, and some build systems, leave the system folders out.
_SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"


def answers(path: Path, *, timeout_s: float = 5) -> bool:
    """Whether a Docker engine answers on a unix socket. `PermissionError` is the caller's to explain."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(str(path))
            connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 OK" in connection.recv(1024)
        except PermissionError:
            raise
        except OSError:
            return False


def daemon_path() -> str:
    """PATH for the engine's programs: the caller's, then the system's folders."""
    return f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}"


def command(place: Place) -> list[str]:
    """The private engine's command line: no bridge, no packet filter rules, nothing outside its place."""
    argv = [
        shutil.which("dockerd", path=daemon_path()) or "dockerd",
        f"--config-file={place.root / 'daemon.json'}",
        f"--data-root={place.data}",
        f"--exec-root={place.run}",
        f"--pidfile={place.run / 'docker.pid'}",
        f"--host={place.docker_host}",
        "--bridge=none",
        "--iptables=false",
        "--ip6tables=false",
        "--ip-forward=false",
    ]
    if not Path("/run/systemd/system").is_dir():
        argv.append("--exec-opt=native.cgroupdriver=cgroupfs")
    return argv


def pid(place: Place) -> int | None:
    """The private engine's process, when it runs."""
    return processes.ours(place.run / "docker.pid", place.root)


def ensure(place: Place) -> None:
    """Start the private engine unless it answers already."""
    running = pid(place)
    if _configure(place) and running:
        os.kill(running, signal.SIGHUP)  # it reads its settings again
    if running and answers(place.socket):
        say(f"the private engine already answers at {place.socket}")
        return
    log = place.log("dockerd")
    before = log.stat().st_size if log.exists() else 0
    with step(f"starting a private engine with its data in {place.data}"):
        _await_answer(place, running or _start(place, log), log, before)


def _start(place: Place, log: Path) -> int:
    place.run.mkdir(mode=0o700, parents=True, exist_ok=True)
    place.data.mkdir(mode=0o711, exist_ok=True)
    # dockerd refuses to start while its old pid file names any live process, be it a stranger's; and it waits 15 s in
    # vain for a killed containerd that process 1 has not reaped yet.
    (place.run / "docker.pid").unlink(missing_ok=True)
    if processes.ours(place.run / "containerd" / "containerd.pid", place.run) is None:
        (place.run / "containerd" / "containerd.pid").unlink(missing_ok=True)
    env = {name: value for name, value in os.environ.items() if name not in {"DOCKER_HOST", "NOTIFY_SOCKET"}}
    return processes.start(command(place), log=log, env={**env, "PATH": daemon_path()})


def _configure(place: Place) -> bool:
    """Write the configuration, since /etc/docker belongs to the system's engine; return whether it has changed."""
    settings: dict[str, object] = {
        # left alone, an engine keeps every layer and downloaded wheel of every build until the disk is full
        "builder": {"gc": {"enabled": True, "defaultKeepStorage": KEPT_CACHE}},
        "insecure-registries": [STANDS],
    }
    # An engine older than 23 keeps a key in /etc/docker unless told otherwise; newer ones refuse the setting.
    version = major_version(capture([command(place)[0], "--version"]) or "")
    if 0 < version < 23:
        settings["deprecated-key-path"] = str(place.root / "key.json")
    file = place.root / "daemon.json"
    before = file.read_text() if file.exists() else ""
    file.write_text(json.dumps(settings) + "\n")
    return file.read_text() != before


def major_version(version_line: str) -> int:
    """The major version in what `docker --version` or `dockerd --version` prints; 0 when there is none."""
    found = re.search(r"version (\d+)\.", version_line)
    return int(found[1]) if found else 0


def _await_answer(place: Place, process: int, log: Path, before: int) -> None:
    deadline_s = time.monotonic() + START_LIMIT_S
    while not answers(place.socket):
        if not processes.alive(process) or time.monotonic() > deadline_s:
            processes.stop(process, patience_s=5)
            raise SetupError(
                f"dockerd did not answer and was stopped. Its last words:\n{tail(log, start=before)}\n"
                f"The whole log is {log}. Where the machine forbids an engine (an unprivileged container, say), "
                "set DOCKER_HOST to one that is reachable and run this again."
            )
        time.sleep(0.05)


def end(place: Place) -> None:
    """Stop the private engine and everything that it started, also after it was killed."""
    running = pid(place)
    if running:
        with step("stopping the private engine"):
            processes.stop(running, patience_s=STOP_LIMIT_S)
    _end_orphans(place)


def _end_orphans(place: Place) -> None:
    """A killed dockerd leaves its containers, their shims and containerd behind; end these by their own records."""
    runtime_root = place.run / "runtime-runc" / "moby"
    runc = shutil.which("runc", path=daemon_path())
    if runc and runtime_root.is_dir():
        for container in sorted(runtime_root.iterdir()):
            capture([runc, "--root", str(runtime_root), "delete", "--force", container.name])
    for orphan in processes.naming(place.run / "containerd"):
        processes.stop(orphan, patience_s=5)
