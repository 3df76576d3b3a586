"""A registry that the hosts reach: a second one on the files of `make engine`'s, at this machine's end of the network.

What is pushed to the one is there to be pulled from the other.
"""

import json
import os
import signal
import time
from pathlib import Path

from scripts.engine import daemon, processes, registry
from scripts.engine.console import SetupError, capture, tail
from scripts.engine.place import Place

from .place import Stand, program

_START_LIMIT_S = 15


def up(stand: Stand) -> None:
    """Start it, and let the private engine push to it; nothing where `make engine` has made no registry."""
    place = stand.engine
    binary = registry.binary()
    if binary is None or not (place.root / "registry").is_dir():
        return
    address = f"{stand.gateway}:5000"
    config = stand.root / "registry.yml"
    config.write_text(registry.CONFIG.format(data=place.root / "registry", address=address))
    log = stand.log("registry")
    env = {name: value for name, value in os.environ.items() if not name.startswith("REGISTRY_")}
    words = [binary, "serve", str(config)]
    (stand.root / "registry.pid").write_text(f"{processes.start(words, log=log, env=env)}\n")
    stand.note(registry=address)
    deadline_s = time.monotonic() + _START_LIMIT_S
    while not registry.answers(address):
        if time.monotonic() > deadline_s:
            raise SetupError(f"docker-registry does not answer at {address}. Its last words:\n{tail(log)}")
        time.sleep(0.02)
    _trust(place, address, trusted=True)


def down(stand: Stand) -> None:
    """Stop it."""
    pid = processes.ours(stand.root / "registry.pid", stand.root / "registry.yml")
    if pid is not None:
        processes.stop(pid, patience_s=5)
        _trust(stand.engine, f"{stand.gateway}:5000", trusted=False)


def _trust(place: Place, registry: str, *, trusted: bool) -> None:
    """Tell the private engine whether a registry speaks plain http; it reads its settings again while it runs."""
    settings_file: Path = place.root / "daemon.json"
    running = daemon.pid(place)
    if running is None or not settings_file.exists():
        return
    with place.locked():  # several stands may share the engine
        settings = json.loads(settings_file.read_text())
        others = set(settings.get("insecure-registries", [])) - {registry}
        settings["insecure-registries"] = sorted(others | {registry}) if trusted else sorted(others)
        settings_file.write_text(json.dumps(settings) + "\n")
    os.kill(running, signal.SIGHUP)
    deadline_s = time.monotonic() + _START_LIMIT_S
    while trusted and registry not in _trusted(place):
        if time.monotonic() > deadline_s:
            raise SetupError(f"the private engine does not take {registry} for a registry; see its log.")
        time.sleep(0.02)


def _trusted(place: Place) -> list[str]:
    """The registries by name that the private engine speaks plain http to."""
    asked = [
        program("docker"),
        "--host",
        place.docker_host,
        "info",
        "--format",
        "{{json .RegistryConfig.IndexConfigs}}",
    ]
    configs = json.loads(capture(asked) or "{}")
    return [name for name, config in configs.items() if not config["Secure"]]
