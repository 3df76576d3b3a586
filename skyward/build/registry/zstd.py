"""Layers compressed with zstd: pushed by buildx from an engine that keeps its images in containerd, on request.

Such images take Docker 23 or newer to be pulled. Other engines keep layers unpacked and can push gzip only.
"""

from __future__ import annotations

import os
import subprocess

from skyward.build.command import find_command
from skyward.build.events import Report, note
from skyward.build.registry.existence import Exists
from skyward.build.registry.login import login, logins_for
from skyward.build.registry.pushing import find_pushed, prepare, refused
from skyward.errors import EngineError, RegistryError

_OUTPUT = "type=image,push=true,compression=zstd,force-compression=true,oci-mediatypes=true"
_PROBE_LIMIT_S = 20


def push_zstd(image: str, target: str, *, platform: str, report: Report, docker_host: str | None = None) -> Exists:
    """Push an image of an engine with its layers compressed by zstd, and see that the registry has it so.

    Args:
        image: its tag on the engine.
        target: where to, with a tag.
        platform: of the image, such as "linux/amd64".
        report: is told what happens.
        docker_host: address of the engine; None for what the docker command takes by itself.

    Raises:
        ConfigError: the target is not the name of an image, or has a digest.
        EngineError: there is no buildx here, or the engine cannot compress so.
        RegistryError: the registry cannot be reached or refuses.
    """
    environment = {**os.environ, **({"DOCKER_HOST": docker_host} if docker_host else {})}
    cli = _able_cli(environment)
    reference = prepare(target)
    report(note(f"pushing {reference} with zstd"))
    words = [cli, "buildx", "build", "--builder", "default", "--progress=plain", "--provenance=false"]
    words += ["--platform", platform, "--output", f"{_OUTPUT},name={reference.name}:{reference.tag}", "-"]
    with login(logins_for([reference.registry])) as known:
        done = subprocess.run(
            words,
            input=f"FROM {image}\n",
            env=environment | known,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        raise refused(reference, "\n".join(done.stdout.strip().splitlines()[-5:]))
    found = find_pushed(reference, platform)
    kinds = {layer["mediaType"].rpartition("+")[2] for layer in found.document["layers"]}
    if kinds - {"zstd"}:
        raise RegistryError(f"The image {reference} was to be compressed with zstd, but the registry has {kinds}.")
    return Exists(found.digest, f"{reference.name}@{found.digest}")


def _able_cli(environment: dict[str, str]) -> str:
    """A docker command with buildx, whose engine can compress so."""
    command = find_command(environment)
    if not command.is_buildx:
        raise EngineError(
            f"Compressing layers with zstd takes the docker command with its buildx plugin; {command.words[0]} has "
            "none. Install buildx, or push with gzip."
        )
    asked = [command.words[0], "info", "--format", "{{json .DriverStatus}}"]
    try:
        done = subprocess.run(
            asked, env=environment, capture_output=True, text=True, timeout=_PROBE_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"The engine was silent for {_PROBE_LIMIT_S} s when asked to describe itself.") from error
    if "io.containerd.snapshotter" not in done.stdout:
        found = done.stderr.strip() or "it keeps its images in a store of its own"
        raise EngineError(
            f'The engine cannot compress layers with zstd: {found}. Set {{"features": '
            '{"containerd-snapshotter": true}} in its daemon.json (Docker 23 or newer), or push with gzip.'
        )
    return command.words[0]
