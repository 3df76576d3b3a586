"""A client that runs in a container itself, with the socket of the engine that started that: where it sees our files.

What is mounted into the client's container has another path on the engine's machine. What is not mounted lies in the
container's own layer, whose place some engines tell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

_MOUNTS = Path("/proc/self/mountinfo")
# files that engines give each container
_OF_ENGINE = re.compile(r"/containers/([0-9a-f]{64})/(?:hostname|hosts|resolv\.conf) /etc/")


def this_container() -> str | None:
    """The identifier of the container that this process is in; None outside of Docker's containers."""
    try:
        found = _OF_ENGINE.search(_MOUNTS.read_text())
    except OSError:  # no Linux
        return None
    return found[1] if found else None


def seen_by_engine(path: Path, about: Mapping[str, Any]) -> Path:
    """Where the engine sees a file of this container; the path itself where that is not known.

    Args:
        path: of the file here, absolute.
        about: what the engine says of this container.
    """
    mounts = [(PurePosixPath(each["Destination"]), str(each["Source"])) for each in about.get("Mounts") or ()]
    layer = ((about.get("GraphDriver") or {}).get("Data") or {}).get("MergedDir")
    places = [*mounts, *([(PurePosixPath("/"), str(layer))] if layer else [])]
    holding = [(inside, source) for inside, source in places if path.is_relative_to(inside)]
    if not holding:
        return path
    inside, source = max(holding, key=lambda place: len(place[0].parts))
    return Path(source) / path.relative_to(inside)
