"""The check whether a registry has an image: yes, no, or unknown and why. Unknown is never taken for yes or no.

What was found is cached on disk for a day, so that a start with a known image asks no registry. Absence is never
cached, and neither are credentials.
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
        digest: of its manifest for the platform asked for.
        reference: `repository@digest`, which nodes run.
        content: digest of what runs, see `skyward.builder.store`.
    """

    digest: str
    reference: str
    content: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Absent:
    """The registry says that it does not have the image, or not for that platform."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can say now.

    Attributes:
        reason: what was asked and what came back.
        remedy: what to do.
    """

    reason: str
    remedy: str

    def error(self) -> RegistryError:
        """To be raised: what is unknown stops."""
        return RegistryError(self.reason, self.remedy)


def check(reference: str, *, platform: str, trust_s: float = TRUST_S) -> Exists | Absent | Unknown:
    """Ask a registry for an image, with the credentials of this user.

    Args:
        reference: with tag or digest.
        platform: such as "linux/amd64".
        trust_s: how old an earlier answer may be, in seconds; 0 asks anew. An answer for a tag that moves, such as
            that of a base image, deserves a few minutes.

    Raises:
        ConfigError: the reference is none.
    """
    wanted = parse_reference(reference)
    known = _recall(wanted, platform)
    if known and known.age_s < trust_s:
        return known.found(wanted)
    # not needed where the answer is known, and loading it takes longer than that answer
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
    """Ask a registry for the image of a tag of ours, and count another image under that name as absent.

    Where nothing is noted for the tag (see `skyward.builder.store`), what the registry has is noted: clients that
    have not built an image take it from whoever may push to the repository.

    Args:
        tag: of the image on engines.
        reference: with tag.
        platform: such as "linux/amd64".
        report: receives a note of another image.

    Raises:
        ConfigError: the reference is none.
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
    """A cached answer: digests of the image, of what the tag stood for and of its content, and its age."""

    digest: str
    tagged: str
    content: str
    age_s: float

    def found(self, reference: Reference) -> Exists:
        return Exists(self.digest, f"{reference.name}@{self.digest}", self.content)


def trusted_until(reference: str, *, platform: str) -> float:
    """When the registry has to be asked again for an image that it has, in seconds since the epoch; 0 for now."""
    known = _recall(parse_reference(reference), platform)
    return time() - known.age_s + TRUST_S if known else 0.0


def remember(reference: Reference, platform: str, digest: str, tagged: str, content: str) -> None:
    """Note that the registry was seen to have an image. Where nothing can be written, nothing is remembered.

    Args:
        reference: with the tag or digest that was asked for.
        platform: of the image.
        digest: of its manifest.
        tagged: digest of what the tag stands for: the manifest, or an index that has it.
        content: digest of what runs.
    """
    path = _file(reference, platform)
    digests = {"digest": digest, "tagged": tagged, "content": content}
    seen = {"reference": str(reference), "platform": platform, **digests, "seen_at": time()}
    if write(path, json.dumps(seen)):
        drop_old(path.parent)


def forget(reference: str, *, platform: str) -> None:
    """Drop a cached answer, for example when a pull shows that the image is gone."""
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
        return None  # not known, or half written by a machine that went down: then it is asked
    return known if DIGEST.fullmatch(known.digest) and known.age_s >= 0 else None


def _file(reference: Reference, platform: str) -> Path:
    key = hashlib.sha256(f"{reference.url}\n{reference}\n{platform}".encode()).hexdigest()
    return cache_path("registry", f"{key[:32]}.json")
