"""The images of an engine as builds need them: inspect, pull, read files; and the contents recorded for tags.

Anybody who may use an engine or push to a registry can move a tag, so a tag alone proves nothing. The content that was
built or first found is recorded in the user's cache, and every host's image is compared with it before it runs; the
time of an image's last use is recorded there as well.

The digest of a content covers the layers and the part of the configuration that determines what runs. An image's id is
not suitable: with images in containerd it is the digest of the manifest, elsewhere that of the configuration.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward.builder.events import Report, note, paced
from skyward.builder.folders import cache_path, read, write
from skyward.errors import RegistryError

if TYPE_CHECKING:
    from skyward.engine import Images
    from skyward.model.ssh import SshHost

# fields of https://github.com/opencontainers/image-spec/blob/main/config.md, and Docker's own
_DECIDING = (
    "User",
    "ExposedPorts",
    "Env",
    "Entrypoint",
    "Cmd",
    "Volumes",
    "WorkingDir",
    "Labels",
    "StopSignal",
    "ArgsEscaped",
    "Healthcheck",
    "OnBuild",
    "Shell",
)
_noted: dict[str, frozenset[str]] = {}  # by file: what could not be written, for the lifetime of this process


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """An engine's description of an image.

    Attributes:
        id: the engine's own identifier, `sha256:...`: the digest of the image's configuration or, on engines that keep
            images in containerd, of its manifest.
        repo_digests: its names in registries, `repository@sha256:...`; empty for images made here.
        size: bytes on the engine's disk.
        config: the part of its configuration that describes how it is run, with the engine's key names.
        content: digest of the executed content, the same from every engine and registry that has it.
    """

    id: str
    repo_digests: tuple[str, ...] = ()
    size: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)
    content: str = ""


class EngineImages:
    """The images of one engine.

    Args:
        images: the engine's own interface to them.
        report: receives messages about pulls and builds of bases; None for no messages.
        builder: the machine whose docker command builds; None if the one here builds on the engine.

    Attributes:
        report: receives messages.
        builder: address of the engine for the docker command, or the machine whose docker command builds.
    """

    builder: str | SshHost | None = None

    def __init__(self, images: Images, report: Report | None = None, builder: SshHost | None = None) -> None:
        self.images = images
        self.report: Report = report or (lambda _: None)
        self.builder = builder or images.address.socket_url

    def inspect(self, ref: str) -> ImageFacts | None:
        """Return facts on the image of that name or id; None if the engine does not have it. May raise EngineError."""
        found = self.images.inspect(ref)
        if found is None:
            return None
        return facts_of(found)

    def run(self, ref: str, script: str, arguments: Sequence[str]) -> str:
        """Run a script in a container of an image, as root, and return what it prints; see `Images.run`."""
        return self.images.run(ref, script, arguments)

    def pull(self, ref: str) -> None:
        """Pull an image from its registry, with this user's credentials for it.

        Raises:
            ConfigError: it is not the name of an image.
            ImageNotFoundError: the registry has none, refuses it, or cannot be reached; with the registry's message.
            EngineError: the engine does not answer.
        """
        from skyward.builder.registry.auth import registry_login
        from skyward.builder.registry.reference import parse_reference

        reference = parse_reference(ref)
        auth: Mapping[str, str] = {}
        try:
            auth = registry_login(reference.registry)
        except RegistryError as error:  # relevant only if the image is not public
            self.report(note(f"{reference.registry} is asked without a login. {error}"))
        tagged = ref if "@" in ref or ref.endswith(f":{reference.tag}") else f"{ref}:{reference.tag}"
        self.report(note(f"pulling {tagged}"))
        if not auth and not isinstance(self.builder, str | None):  # the user of that machine may have a login there
            command = self.builder.command("docker", "pull", "--quiet", tagged)
            if not subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL).returncode:
                return
        self.images.pull(tagged, auth, paced(self.report, f"pulling {tagged}"))


def facts_of(found: Mapping[str, Any]) -> ImageFacts:
    """Convert an engine's description of an image to facts."""
    config = found.get("Config") or {}
    deciding = {name: config[name] for name in _DECIDING if config.get(name)}
    layers = (found.get("RootFS") or {}).get("Layers") or []
    document = json.dumps([found["Os"], found["Architecture"], layers, deciding], sort_keys=True)
    return ImageFacts(
        id=found["Id"],
        repo_digests=tuple(found.get("RepoDigests") or ()),
        size=found.get("Size", 0),
        config=config,
        content=f"sha256:{hashlib.sha256(document.encode()).hexdigest()}",
    )


def is_known(tag: str, facts: ImageFacts | None) -> bool:
    """Return whether an image is one recorded for its tag; False for None."""
    return facts is not None and bool({facts.id, facts.content} & known_contents(tag))


def known_contents(tag: str) -> frozenset[str]:
    """Return the digests recorded for a tag: of contents, and ids of images on engines."""
    try:
        found = json.loads(read(_file(tag)) or "[]")
        kept = frozenset(str(digest) for digest in found if digest)
    except (ValueError, TypeError):  # half written before a crash
        kept = frozenset()
    return kept | _noted.get(str(_file(tag)), frozenset())


def note_content(tag: str, content: str, image_id: str = "") -> None:
    """Record the content of a tag beside those already recorded: builds on two engines may differ in their bytes.

    Args:
        tag: tag of the image.
        content: digest of its content.
        image_id: the engine's id of it, which identifies it without reading its layers.
    """
    known = known_contents(tag)
    fresh = known | {digest for digest in (content, image_id) if digest}
    if fresh == known:
        return
    if not write(_file(tag), json.dumps(sorted(fresh))):
        _noted[str(_file(tag))] = fresh


def _file(tag: str) -> Path:
    return cache_path("contents", f"{tag.rpartition(':')[2]}.json")


def note_use(tag: str, source: str = "") -> None:
    """Record that an image is used now, and by what: the file that declares it, or else the program running here."""
    write(file_of_use(tag), source or str(getattr(sys.modules.get("__main__"), "__file__", None) or ""))


def source_of(tag: str) -> str:
    """Return what last used an image; "" if unknown."""
    return read(file_of_use(tag)) or ""


def last_use(tag: str) -> float | None:
    """Return when an image was last used, in seconds since the epoch; None if unknown."""
    try:
        return file_of_use(tag).stat().st_mtime
    except OSError:  # no record, or an unreadable cache, in which case only this time is missing
        return None


def forget_use(tag: str) -> None:
    """Drop the record of a removed image."""
    with suppress(OSError):
        file_of_use(tag).unlink(missing_ok=True)


def file_of_use(tag: str) -> Path:
    """Return the path of the file that records when an image was used."""
    # the tag is the identity: it names the same image in any repository
    return cache_path("used", tag.rpartition(":")[2])
