"""Images that were delivered before a detached run began: its driver finds them by their descriptions.

The driver has neither the locks nor the bases nor the docker command that they were made with, and needs none of them:
an image that is where it is wanted, with the content that was delivered, is used as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from skyward.builder.contents import known_contents, note_content
from skyward.model.image import Image
from skyward.model.spec import ClusterSpec
from skyward.records.run import FOLDER_VARIABLE, write_json

_FILE = "images.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """An image that has been delivered.

    Attributes:
        tag: its name on the engines that have it.
        user: the user that it names; "" for none.
        contents: digests that its content may have, and its ids.
        reference: `repository@digest` where it went to a registry for others to pull.
    """

    tag: str
    user: str
    contents: tuple[str, ...]
    reference: str = ""

    @classmethod
    def of(cls, tag: str, user: str, reference: str) -> Prepared:
        """An image that was delivered now, by this user."""
        return cls(tag=tag, user=user, contents=tuple(sorted(known_contents(tag))), reference=reference)


def description(image: Image, spec: ClusterSpec) -> str:
    """What tells an image from others, before anything is looked up: its fields, and what it is compiled for."""
    told = {field.name: getattr(image, field.name) for field in fields(image) if field.compare}
    wanted = [told, image.platform or spec.platform, spec.python]
    return hashlib.sha256(json.dumps(wanted, sort_keys=True, default=_plain).encode()).hexdigest()


def write_prepared(folder: Path, images: Mapping[str, Prepared]) -> None:
    """Leave the images, by their descriptions, to the driver of the run with this directory."""
    write_json(folder / _FILE, {key: asdict(image) for key, image in images.items()})


def prepared_image(image: Image, spec: ClusterSpec) -> Prepared | None:
    """What was delivered of an image for the run that this process belongs to; None for nothing, or outside of one."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder or not (Path(folder) / _FILE).is_file():
        return None
    found = json.loads((Path(folder) / _FILE).read_text()).get(description(image, spec))
    if found is None:
        return None
    for content in found["contents"]:  # what engines have is compared with these
        note_content(found["tag"], content)
    return Prepared(**{**found, "contents": tuple(found["contents"])})


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return dict(value) if isinstance(value, Mapping) else str(value)
