"""The files of an image, read through its engine without running anything of it."""

from __future__ import annotations

import base64
import io
import json
import posixpath
import tarfile
from collections.abc import Callable
from email.message import Message
from urllib.parse import urlencode

Exchange = tuple[int, Message, bytes]  # status, header, content
_STAT = "X-Docker-Container-Path-Stat"  # https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Container

_DIRECTORY, _LINK = 1 << 31, 1 << 27  # of modes as Go's os.FileMode has them


class ImageFiles:
    """Answers for the container that `Images.files` makes.

    Args:
        ask: sends a request (method, path below the container) to the engine.
    """

    def __init__(self, ask: Callable[[str, str], Exchange]) -> None:
        self._ask = ask

    def find(self, path: str) -> str | None:
        """Where the path of a file leads, all links followed; None if there is no file."""
        seen = [path]
        while True:
            status, header, _ = self._ask("HEAD", _archive(seen[-1]))
            about = json.loads(base64.b64decode(header[_STAT])) if status == 200 else {}
            target = str(about.get("linkTarget") or "")
            if not about or not about["mode"] & _LINK or not target:  # of a file itself Podman says its own path
                return seen[-1] if about and not about["mode"] & _DIRECTORY else None
            target = posixpath.normpath(posixpath.join(posixpath.dirname(seen[-1]), target))
            if target in seen:  # links that lead to each other
                return None
            seen.append(target)

    def read(self, path: str) -> bytes | None:
        """The content of a file, links followed; None if there is none."""
        found = self.find(path)
        status, _, content = self._ask("GET", _archive(found)) if found else (404, {}, b"")
        if status != 200:
            return None
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            member = archive.next()
            file = archive.extractfile(member) if member and member.isfile() else None
            return file.read() if file else None


def _archive(path: str) -> str:
    return f"/archive?{urlencode({'path': path})}"
