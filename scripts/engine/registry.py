"""The image registry on loopback: its port, its start, its end, and what it holds."""

import http.client
import os
import shutil
import socket
import time
from pathlib import Path

from . import processes
from .console import SetupError, say, step, tail
from .daemon import daemon_path
from .place import Place

START_LIMIT_S = 15
_CONFIG = """version: 0.1
log:
  level: warn
  accesslog:
    disabled: true
storage:
  filesystem:
    rootdirectory: {data}
  delete:
    enabled: true
http:
  addr: {address}
"""
_MANIFESTS = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"


def binary() -> str | None:
    """Path of the registry's program, when the machine has it."""
    return shutil.which("docker-registry", path=daemon_path())


def _files(place: Place) -> tuple[Path, Path, Path]:
    return place.root / "registry.yml", place.root / "registry.pid", place.root / "registry.address"


def pid(place: Place) -> int | None:
    """The registry's process, when it runs."""
    config, pid_file, _ = _files(place)
    return processes.ours(pid_file, config)


def answers(address: str, path: str = "/v2/") -> bool:
    """Whether a registry answers at host:port, and has what lies at this path."""
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("HEAD", path, headers={"Accept": _MANIFESTS})
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def ensure(place: Place) -> str:
    """Start the registry unless it answers already; return its host:port."""
    _, _, address_file = _files(place)
    address = address_file.read_text().strip() if address_file.exists() else ""
    if pid(place) and address and answers(address):
        say(f"the registry already answers at {address}")
        return address
    stale = pid(place)
    if stale:
        processes.stop(stale, patience_s=5)
    address = address if address and _free(address) else _free_address()
    with step(f"starting a registry at {address}"):
        _start(place, address)
    return address


def _start(place: Place, address: str) -> None:
    config, pid_file, address_file = _files(place)
    address_file.write_text(address)
    serve(place, address, config, pid_file, place.log("registry"))


def serve(place: Place, address: str, config: Path, pid_file: Path, log: Path) -> None:
    """Start a registry on the files of the place, and wait until it answers.

    Raises:
        SetupError: it does not.
    """
    config.write_text(_CONFIG.format(data=place.root / "registry", address=address))
    # The registry reads REGISTRY_* as settings, which are another registry's.
    env = {name: value for name, value in os.environ.items() if not name.startswith("REGISTRY_")}
    process = processes.start([binary() or "docker-registry", "serve", str(config)], log=log, env=env)
    pid_file.write_text(f"{process}\n")
    deadline_s = time.monotonic() + START_LIMIT_S
    while not answers(address):
        if time.monotonic() > deadline_s or not processes.alive(process):
            processes.stop(process, patience_s=5)
            raise SetupError(f"docker-registry does not answer at {address}. Its last words:\n{tail(log)}\nSee {log}.")
        time.sleep(0.02)


def _free(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return False
    return True


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def end(place: Place) -> None:
    """Stop the registry."""
    running = pid(place)
    if running:
        with step("stopping the registry"):
            processes.stop(running, patience_s=10)
