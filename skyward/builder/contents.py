"""The known contents of image tags, by digest, and when each image was last used; both in the user's cache.

Whoever may use an engine or push to a registry can move a tag, so a tag alone proves nothing. The content that was
built or first found is noted here, and every host's image is compared with it before it runs.

The digest covers the layers and the part of the configuration that decides what runs. An image's id would not do: with
images in containerd it is the digest of the manifest, elsewhere that of the configuration.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward.builder.cache import cache_path, read, remove, write

if TYPE_CHECKING:
    from skyward.builder.store import ImageFacts


# of https://github.com/opencontainers/image-spec/blob/main/config.md, and what Docker has besides
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


_noted: dict[str, frozenset[str]] = {}  # by file: what could not be written, for as long as this process lives


def content_digest(layers: Sequence[str], config: Mapping[str, Any], system: str, architecture: str) -> str:
    """The digest of an image's content, the same from every engine and registry that has it.

    Args:
        layers: digests of the unpacked layers, the lowest first.
        config: environment, command, user, labels and so on, with the names that engines and registries give them.
        system: operating system.
        architecture: of the processor.
    """
    deciding = {name: config[name] for name in _DECIDING if config.get(name)}
    document = [system, architecture, list(layers), deciding]
    return f"sha256:{hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()}"


def is_known(tag: str, facts: ImageFacts | None) -> bool:
    """Whether an image is one that its tag was noted for; False for None."""
    return facts is not None and bool({facts.id, facts.content} & known_contents(tag))


def known_contents(tag: str) -> frozenset[str]:
    """The digests noted for a tag: of contents, and ids of images on engines."""
    try:
        found = json.loads(read(_file(tag)) or "[]")
        kept = frozenset(str(digest) for digest in found if digest)
    except (ValueError, TypeError):  # half written by a machine that went down
        kept = frozenset()
    return kept | _noted.get(str(_file(tag)), frozenset())


def note_content(tag: str, content: str, image_id: str = "") -> None:
    """Note what a tag stands for, besides what is noted already: builds on two engines need not give the same bytes.

    Args:
        tag: of the image.
        content: its content's digest.
        image_id: what the engine that has it calls it; known again without a look at its layers.
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
    """Remember that an image is used now, and by what: the file that declares it, else the program that runs here."""
    write(file_of_use(tag), source or str(getattr(sys.modules.get("__main__"), "__file__", None) or ""))


def source_of(tag: str) -> str:
    """What an image was used by last; "" if that is not known."""
    return read(file_of_use(tag)) or ""


def last_use(tag: str) -> float | None:
    """When an image was last used, in seconds since the epoch; None if that is not known."""
    try:
        return file_of_use(tag).stat().st_mtime
    except OSError:  # none, or a cache that cannot be read, which only this figure is taken from
        return None


def forget_use(tag: str) -> None:
    """Drop what is known of an image that is gone."""
    remove(file_of_use(tag))


def file_of_use(tag: str) -> Path:
    """The file that remembers when an image was used."""
    # the tag is the identity: in whatever repository, it names the same image
    return cache_path("used", tag.rpartition(":")[2])
