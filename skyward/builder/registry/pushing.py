"""Pushing an engine's image to a registry: by the engine, or with zstd by buildx; followed by a check of the result.

Besides an image's own tag, a push sets a second one, `cache-<architecture>`, which moves from build to build: builders
without layers take those that others have pushed. Builders that can store the layers of every step under it do so while
they build; for the others it is the last pushed image, whose configuration lists the layer of each step.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from skyward.builder.docker.command import find_command
from skyward.builder.events import Report, note
from skyward.builder.registry import existence
from skyward.builder.registry.auth import ensure_repository, is_ecr, login, logins_for, registry_credentials
from skyward.builder.registry.client import ImageManifest, RegistryClient, find_image
from skyward.builder.registry.existence import Exists
from skyward.builder.registry.http import Patience, wait_for_registry
from skyward.builder.registry.reference import Reference, parse_reference
from skyward.builder.store import EngineImages
from skyward.errors import ConfigError, EngineError, RegistryError
from skyward.model.image_fields import without_logins

_SAY_EVERY_S = 2.0
_THERE = ("Layer already exists", "Mounted from")
# errors of engines, and what to do
_KNOWN = (
    (
        r"unauthorized|denied|authentication required|no basic auth|insufficient_scope",
        "Log in with `docker login {registry}`, and make sure that this user may push to {name}, and that it exists.",
    ),
    (
        r"HTTP response to HTTPS client",
        'The engine wants TLS of it: name it under "insecure-registries" in the engine\'s daemon.json, for Podman as '
        "insecure in registries.conf.",
    ),
    (
        r"x509|certificate",
        "The engine does not trust its certificate: put the CA into /etc/docker/certs.d/{registry}/ca.crt there.",
    ),
    (r"name unknown|repository .*not (found|exist)", "Create the repository {name} first."),
    (r"no space left", "Free some space where the registry keeps its images."),
)
_OUTPUT = "type=image,push=true,compression=zstd,force-compression=true,oci-mediatypes=true"
_PROBE_LIMIT_S = 20
# reports by engines and builders of a registry's temporary error status
_BUSY = re.compile("toomanyrequests|too many requests|service unavailable|bad gateway|gateway time-?out", re.IGNORECASE)
_PAUSES_S = (1.0, 4.0, 15.0)
_INLINE = "moby.buildkit.cache.v0"  # the key of an image's configuration with the cache metadata of its steps
_WHOLE = "mode=max,image-manifest=true,oci-mediatypes=true,ignore-error=true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """An image pushed to a registry.

    Attributes:
        reference: `repository@digest`, which nodes run.
        digest: digest of its manifest.
        size_bytes: size of all its layers in the registry.
        sent_bytes: size of the layers that the registry did not have.
        content: digest of the executed content; see `skyward.builder.store`.
    """

    reference: str
    digest: str
    size_bytes: int
    sent_bytes: int
    content: str


def push(image: str, target: str, *, platform: str, engine: EngineImages, report: Report) -> Pushed:
    """Push an image of an engine, and check that the registry has it.

    On the engine the image keeps the target as a second name.

    Args:
        image: its tag on the engine.
        target: the destination, with a tag.
        platform: platform of the image, such as "linux/amd64".
        engine: the engine that has the image and reaches the registry.
        report: receives progress.

    Raises:
        ConfigError: the target is not the name of an image, or has a digest.
        ImageNotFoundError: the engine does not have the image.
        RegistryError: the registry cannot be reached or refuses; credentials are unavailable.
        EngineError: the engine does not answer.
    """
    reference = _prepare(target)
    credentials = registry_credentials(reference.registry)
    auth = credentials.for_engine(reference.registry) if credentials else {}
    progress = _Progress(reference, report)

    def attempt() -> str:
        patience = Patience(reference, f"The engine's push of {reference}", report)
        with closing(engine.push(image, reference.name, reference.tag, auth, patience)) as messages:  # type: ignore[type-var]
            for message in messages:
                if "error" in message:
                    return str(message["error"]) or "an error"
                progress.feed(message)
        return ""

    _until_taken(reference, attempt, report)
    found = _find_pushed(reference, platform, report)
    return Pushed(
        reference=f"{reference.name}@{found.digest}",
        digest=found.digest,
        size_bytes=sum(size for _, _, size in found.layers),
        sent_bytes=_sent_bytes(found, progress.states),
        content=found.content,
    )


def _prepare(target: str) -> Reference:
    """Return the reference to push to, after creating its repository if the registry requires that.

    Raises:
        ConfigError: the target is not the name of an image, or has a digest.
        RegistryError: the repository cannot be created.
    """
    reference = parse_reference(target)
    if reference.digest:
        raise ConfigError(f"An image cannot be pushed to {target!r}: its digest follows from its content. Give a tag.")
    if is_ecr(reference.registry):
        ensure_repository(reference)
    return reference


def _until_taken(reference: Reference, attempt: Callable[[], str], report: Report) -> None:
    """Push, and repeat while the registry is busy: engines retry layers on their own, but not the manifest.

    Args:
        reference: the image in the registry.
        attempt: pushes it; returns the error of the engine or builder, "" if there is none.
        report: receives messages about the wait.

    Raises:
        RegistryError: the push was refused, or the registry is busy for too long.
    """
    for pause_s in (*_PAUSES_S, None):
        answer = attempt()
        if not answer:
            return
        if pause_s is None or not _BUSY.search(answer):
            raise _refused(reference, answer)
        report(note(f"{reference.registry} is busy ({_unsecret(answer)}); pushing again in {pause_s:.0f} s"))
        wait_for_registry(reference, pause_s)


def _find_pushed(reference: Reference, platform: str, report: Report) -> ImageManifest:
    """Return the pushed image as the registry has it, after recording it and making it the cache of the next builds.

    If the registry refuses the cache tag, which moves, the push is still successful.

    Raises:
        RegistryError: the registry does not have it, or cannot be asked.
    """
    with RegistryClient(reference) as client:
        found = find_image(client, reference.tag, platform)
    if found is None:
        raise RegistryError(
            f"The engine says that it pushed {reference}, but the registry has no such image for {platform}.",
            "The engine may reach another registry by that name than this machine does.",
        )
    existence.remember(reference, platform, found.digest, found.tagged, found.content)
    try:
        leave_cache(found, reference, platform)
    except RegistryError as error:
        report(note(f"the next builds elsewhere start without layers of this one: {error.reason}"))
    return found


class _Progress:
    """Follows a push; `states` is the last status of each layer, by its short name."""

    def __init__(self, reference: Reference, report: Report) -> None:
        self.states: dict[str, str] = {}
        self._bytes: dict[str, tuple[int, int]] = {}
        self._report, self._to = report, reference
        self._next_s = monotonic() + _SAY_EVERY_S
        report(note(f"pushing {reference}"))

    def feed(self, message: Mapping[str, Any]) -> None:
        """Process a message of the engine."""
        name, detail = message.get("id"), message.get("progressDetail") or {}
        if not name or name == self._to.tag:
            return
        self.states[name] = str(message.get("status", ""))
        if "total" in detail:
            self._bytes[name] = int(detail.get("current", 0)), int(detail["total"])
        if monotonic() >= self._next_s:
            self._next_s = monotonic() + _SAY_EVERY_S
            done = sum(state.startswith(("Pushed", *_THERE)) for state in self.states.values())
            sent, total = (sum(pair[i] for pair in self._bytes.values()) / 1e6 for i in (0, 1))
            sent = min(sent, total)  # engines count compressed bytes, but report sizes before compression
            self._report(note(f"pushing: {done} of {len(self.states)} layers, {sent:.0f} of {total:.0f} MB"))


def _sent_bytes(image: ImageManifest, states: Mapping[str, str]) -> int:
    """Return the size of the layers that were not there; engines name layers by content, newer ones by blob."""
    there = {name for name, state in states.items() if state.startswith(_THERE)}
    short = len("sha256:"), len("sha256:") + 12
    return sum(
        size
        for content, blob, size in image.layers
        if not there & {content[short[0] : short[1]], blob[short[0] : short[1]]}
    )


def _refused(reference: Reference, answer: str) -> RegistryError:
    """Return the error for an engine or builder that could not push, with its own message."""
    advice = next((text for pattern, text in _KNOWN if re.search(pattern, answer, re.IGNORECASE)), "")
    return RegistryError(
        f"The engine could not push {reference}. It answered: {_unsecret(answer)}.",
        advice.format(registry=reference.registry, name=reference.name)
        or "Check that the registry runs and that the engine's machine can reach it.",
    )


def _unsecret(answer: str) -> str:
    """Return an engine's message without logins in addresses, and without its full stop."""
    return without_logins(answer.strip().rstrip("."))


def push_zstd(image: str, target: str, *, platform: str, report: Report, docker_host: str | None = None) -> Exists:
    """Push an image of an engine with layers compressed by zstd, and check that the registry has them so.

    Args:
        image: its tag on the engine.
        target: the destination, with a tag.
        platform: platform of the image, such as "linux/amd64".
        report: receives progress.
        docker_host: address of the engine; None for the docker command's default.

    Raises:
        ConfigError: the target is not the name of an image, or has a digest.
        EngineError: there is no buildx here, or the engine does not support zstd.
        RegistryError: the registry cannot be reached or refuses.
    """
    environment = {**os.environ, **({"DOCKER_HOST": docker_host} if docker_host else {})}
    cli = _able_cli(environment)
    reference = _prepare(target)
    report(note(f"pushing {reference} with zstd"))
    words = [cli, "buildx", "build", "--builder", "default", "--progress=plain", "--provenance=false"]
    words += ["--platform", platform, "--output", f"{_OUTPUT},name={reference.name}:{reference.tag}", "-"]
    with login(logins_for([reference.registry])) as known:

        def attempt() -> str:
            done = subprocess.run(
                words,
                input=f"FROM {image}\n",
                env=environment | known,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
            return "\n".join(done.stdout.strip().splitlines()[-5:]) or "nothing" if done.returncode else ""

        _until_taken(reference, attempt, report)
    found = _find_pushed(reference, platform, report)
    kinds = {layer["mediaType"].rpartition("+")[2] for layer in found.document["layers"]}
    if kinds - {"zstd"}:
        raise RegistryError(f"The image {reference} was to be compressed with zstd, but the registry has {kinds}.")
    return Exists(found.digest, f"{reference.name}@{found.digest}")


def _able_cli(environment: dict[str, str]) -> str:
    """Return a docker command with buildx whose engine can compress with zstd."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCache:
    """The registry cache of a build, which layers are read from and written to.

    Attributes:
        place: the repository, with the tag of the cache.
        is_there: whether the registry already has it.
        is_whole: whether the builder stores all of its layers there; else they are part of the pushed image.
    """

    place: Reference
    is_there: bool
    is_whole: bool

    @property
    def words(self) -> list[str]:
        """Options of a build, supported by old docker commands and by buildx."""
        name = f"{self.place.name}:{self.place.tag}"
        found = ["--cache-from", name] if self.is_there else []
        if self.is_whole:
            return [*found, "--cache-to", f"type=registry,ref={name},{_WHOLE}"]
        return [*found, "--build-arg", "BUILDKIT_INLINE_CACHE=1"]


def shared_cache(target: str, platform: str, *, is_whole: bool) -> SharedCache:
    """Return the cache of the repository that an image will be pushed to.

    Args:
        target: the destination of the image.
        platform: platform of the image, such as "linux/amd64".
        is_whole: whether the builder can push layers itself, as buildx can with images in containerd.

    Raises:
        RegistryError: the registry cannot be reached or refuses.
    """
    place = _place_of_cache(parse_reference(target), platform)
    with RegistryClient(place) as client:
        is_there = client.digest_of(place.tag) is not None
    return SharedCache(place=place, is_there=is_there, is_whole=is_whole)


def leave_cache(pushed: ImageManifest, reference: Reference, platform: str) -> None:
    """Make a pushed image the cache of its repository if it has cache metadata; no layer is sent.

    Raises:
        RegistryError: the registry refuses.
    """
    if _INLINE not in pushed.config:  # built without cache metadata: the existing cache is kept
        return
    place = _place_of_cache(reference, platform)
    with RegistryClient(place, "pull,push") as client:
        manifest = client.manifest(pushed.digest)
        if manifest is not None:
            client.put_manifest(place.tag, manifest.media_type, manifest.content)


def _place_of_cache(reference: Reference, platform: str) -> Reference:
    return replace(reference, tag="cache-" + "-".join(platform.split("/")[1:]), digest="")
