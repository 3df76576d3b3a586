"""From an engine to a registry: the image of a tag pushed, seen there, and named by its digest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

from skyward.build.events import Report, note
from skyward.build.registry import existence
from skyward.build.registry.caching import leave_cache
from skyward.build.registry.client import RegistryClient, registry_credentials
from skyward.build.registry.ecr import ensure_repository, is_ecr
from skyward.build.registry.manifests import ImageManifest, find_image
from skyward.build.registry.patience import Patience
from skyward.build.registry.reference import Reference, parse_reference
from skyward.errors import ConfigError, RegistryError

_SAY_EVERY_S = 2.0
_THERE = ("Layer already exists", "Mounted from")
# what engines answer, and what to do
_KNOWN = (
    (
        r"unauthorized|denied|authentication required|no basic auth|insufficient_scope",
        "Log in with `docker login {registry}`, and make sure that this user may push to {name}, and that it exists.",
    ),
    (
        r"HTTP response to HTTPS client",
        'The engine wants TLS of it: name it under "insecure-registries" in the engine\'s daemon.json.',
    ),
    (
        r"x509|certificate",
        "The engine does not trust its certificate: put the CA into /etc/docker/certs.d/{registry}/ca.crt there.",
    ),
    (r"name unknown|repository .*not (found|exist)", "Create the repository {name} first."),
    (r"no space left", "Free some space where the registry keeps its images."),
)


class PushingEngine(Protocol):
    """What a push needs from an engine."""

    def push(
        self, image: str, repository: str, tag: str, auth: Mapping[str, str], waiting: Callable[[float], None]
    ) -> Iterator[Mapping[str, Any]]:
        """Give an image of the engine the name `repository:tag` and push it; the engine's messages as they come.

        `waiting` is called again and again while the engine is silent, and ends the push by what it raises.

        Raises:
            ImageNotFoundError: the engine does not have the image.
            EngineError: it does not answer or refuses.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """An image that is in a registry now.

    Attributes:
        reference: `repository@digest`, which nodes run.
        digest: of its manifest.
        size_bytes: of all its layers as the registry keeps them.
        sent_bytes: of the layers that the registry did not have.
        content: digest of what runs, see `skyward.build.contents`.
    """

    reference: str
    digest: str
    size_bytes: int
    sent_bytes: int
    content: str


def push(image: str, target: str, *, platform: str, engine: PushingEngine, report: Report) -> Pushed:
    """Push an image of an engine, and see that the registry has it.

    On the engine the image keeps the name of the target as a second one.

    Args:
        image: its tag on the engine.
        target: where to, with a tag.
        platform: of the image, such as "linux/amd64".
        engine: has the image, and reaches the registry.
        report: is told how far it is.

    Raises:
        ConfigError: the target is not the name of an image, or has a digest.
        ImageNotFoundError: the engine does not have the image.
        RegistryError: the registry cannot be reached or refuses; credentials cannot be had.
        EngineError: the engine does not answer.
    """
    reference = prepare(target)
    credentials = registry_credentials(reference.registry)
    auth = credentials.for_engine(reference.registry) if credentials else {}
    progress = _Progress(reference, report)
    patience = Patience(reference, "push", report)
    with closing(engine.push(image, reference.name, reference.tag, auth, patience)) as messages:  # type: ignore[type-var]
        for message in messages:
            if "error" in message:
                raise refused(reference, str(message["error"]))
            progress.feed(message)
    found = find_pushed(reference, platform)
    return Pushed(
        reference=f"{reference.name}@{found.digest}",
        digest=found.digest,
        size_bytes=sum(size for _, _, size in found.layers),
        sent_bytes=_sent_bytes(found, progress.states),
        content=found.content,
    )


def prepare(target: str) -> Reference:
    """Where to push to, its repository made where the registry wants that.

    Raises:
        ConfigError: the target is not the name of an image, or has a digest.
        RegistryError: the repository cannot be made.
    """
    reference = parse_reference(target)
    if reference.digest:
        raise ConfigError(f"An image cannot be pushed to {target!r}: its digest follows from its content. Give a tag.")
    if is_ecr(reference.registry):
        ensure_repository(reference)
    return reference


def find_pushed(reference: Reference, platform: str) -> ImageManifest:
    """The image that was pushed, as the registry has it; it is known from now on, and what next builds start from.

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
    leave_cache(found, reference, platform)
    return found


class _Progress:
    """Follows a push; `states` is the last word on each layer, by its short name."""

    def __init__(self, reference: Reference, report: Report) -> None:
        self.states: dict[str, str] = {}
        self._bytes: dict[str, tuple[int, int]] = {}
        self._report, self._to = report, reference
        self._next_s = monotonic() + _SAY_EVERY_S
        report(note(f"pushing {reference}"))

    def feed(self, message: Mapping[str, Any]) -> None:
        """Take a message of the engine's."""
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
            sent = min(sent, total)  # engines count what they compress, and tell a layer's size beforehand
            self._report(note(f"pushing: {done} of {len(self.states)} layers, {sent:.0f} of {total:.0f} MB"))


def _sent_bytes(image: ImageManifest, states: Mapping[str, str]) -> int:
    """Bytes of the layers that were not there. Engines name a layer by its content, newer ones by its blob."""
    there = {name for name, state in states.items() if state.startswith(_THERE)}
    short = len("sha256:"), len("sha256:") + 12
    return sum(
        size
        for content, blob, size in image.layers
        if not there & {content[short[0] : short[1]], blob[short[0] : short[1]]}
    )


def refused(reference: Reference, answer: str) -> RegistryError:
    """The error for an engine or builder that could not push, with its own words."""
    advice = next((text for pattern, text in _KNOWN if re.search(pattern, answer, re.IGNORECASE)), "")
    return RegistryError(
        f"The engine could not push {reference}. It answered: {answer.strip().rstrip('.')}.",
        advice.format(registry=reference.registry, name=reference.name)
        or "Check that the registry runs and that the engine's machine can reach it.",
    )
