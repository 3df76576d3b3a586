"""The check whether a registry has an image: yes, no, or unknown with a reason. Unknown never counts as yes or no.

Found images are cached on disk for a day, so that a start with a known image asks no registry. Absence is never cached,
and neither are credentials.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from time import time

from skyward.builder.events import Report, note
from skyward.builder.folders import cache_path, drop_old, read, remove, write
from skyward.builder.registry.reference import DIGEST, Reference, parse_reference
from skyward.builder.store import known_contents, note_content
from skyward.errors import RegistryError

TRUST_S = 24 * 3600.0  # a tag that is an identity never changes its meaning, but its image may be deleted


@dataclass(frozen=True, slots=True)
class Exists:
    """The registry has the image.

    Attributes:
        digest: digest of its manifest for the requested platform.
        reference: `repository@digest`, which nodes run.
        content: digest of the executed content; see `skyward.builder.store`.
    """

    digest: str
    reference: str
    content: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Absent:
    """The registry reports that it does not have the image, or not for that platform."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The answer is currently unavailable.

    Attributes:
        reason: the question and the response.
        remedy: what to do.
    """

    reason: str
    remedy: str

    def error(self) -> RegistryError:
        """Return an error to raise if an unknown answer is not acceptable."""
        return RegistryError(self.reason, self.remedy)


def check(reference: str, *, platform: str, trust_s: float = TRUST_S) -> Exists | Absent | Unknown:
    """Ask a registry for an image, with the credentials of this user.

    Args:
        reference: a reference with tag or digest.
        platform: the platform, such as "linux/amd64".
        trust_s: maximum age of an earlier answer, in seconds; 0 asks again. For a tag that moves, such as that of a
            base image, a few minutes are appropriate.

    Raises:
        ConfigError: the reference is invalid.
    """
    wanted = parse_reference(reference)
    known = _recall(wanted, platform)
    if known and known.age_s < trust_s:
        return known.found(wanted)
    # not needed for a known answer, and loading it takes longer than that answer
    from skyward.builder.registry.client import RegistryClient, find_image

    try:
        with RegistryClient(wanted) as client:
            if known and client.digest_of(wanted.wanted) == known.tagged:
                remember(wanted, platform, known.digest, known.tagged, known.content)
                return known.found(wanted)
            image = find_image(client, wanted.wanted, platform)
    except RegistryError as error:
        return Unknown(error.reason, error.remedy)
    if image is None:
        forget(reference, platform=platform)
        return Absent()
    remember(wanted, platform, image.digest, image.tagged, image.content)
    return Exists(image.digest, f"{wanted.name}@{image.digest}", image.content)


def check_content(tag: str, reference: str, *, platform: str, report: Report) -> Exists | Absent | Unknown:
    """Ask a registry for the image of one of skyward's tags; another image under that name counts as absent.

    If nothing is recorded for the tag (see `skyward.builder.store`), the registry's image is recorded: clients that
    have not built an image accept it from anybody who may push to the repository.

    Args:
        tag: tag of the image on engines.
        reference: a reference with tag.
        platform: the platform, such as "linux/amd64".
        report: receives a message about another image.

    Raises:
        ConfigError: the reference is invalid.
    """
    found = check(reference, platform=platform)
    if isinstance(found, Exists):
        known = known_contents(tag)
        if known and found.content not in known:
            report(note(f"{reference} was another image in the registry ({found.digest[:19]}); ours takes its place"))
            forget(reference, platform=platform)
            return Absent()
        note_content(tag, found.content)
    return found


@dataclass(frozen=True, slots=True)
class _Known:
    """A cached answer: digests of the image, of the former target of the tag and of its content, and its age."""

    digest: str
    tagged: str
    content: str
    age_s: float

    def found(self, reference: Reference) -> Exists:
        return Exists(self.digest, f"{reference.name}@{self.digest}", self.content)


def trusted_until(reference: str, *, platform: str) -> float:
    """Return when to ask the registry again for an image it has, in seconds since the epoch; 0 for now."""
    known = _recall(parse_reference(reference), platform)
    return time() - known.age_s + TRUST_S if known else 0.0


def remember(reference: Reference, platform: str, digest: str, tagged: str, content: str) -> None:
    """Record that the registry has an image. Nothing is recorded if the cache is not writable.

    Args:
        reference: the requested reference, with tag or digest.
        platform: platform of the image.
        digest: digest of its manifest.
        tagged: digest of the target of the tag: the manifest, or an index that contains it.
        content: digest of the executed content.
    """
    path = _file(reference, platform)
    digests = {"digest": digest, "tagged": tagged, "content": content}
    seen = {"reference": str(reference), "platform": platform, **digests, "seen_at": time()}
    if write(path, json.dumps(seen)):
        drop_old(path.parent)


def forget(reference: str, *, platform: str) -> None:
    """Drop a cached answer, for example when a pull shows that the image was deleted."""
    remove(_file(parse_reference(reference), platform))


def _recall(reference: Reference, platform: str) -> _Known | None:
    try:
        seen = json.loads(read(_file(reference, platform)) or "{}")
        known = _Known(
            digest=str(seen["digest"]),
            tagged=str(seen["tagged"]),
            content=str(seen["content"]),
            age_s=time() - float(seen["seen_at"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None  # unknown, or half written before a crash: the registry is asked
    return known if DIGEST.fullmatch(known.digest) and known.age_s >= 0 else None


def _file(reference: Reference, platform: str) -> Path:
    key = hashlib.sha256(f"{reference.url}\n{reference}\n{platform}".encode()).hexdigest()
    return cache_path("registry", f"{key[:32]}.json")
