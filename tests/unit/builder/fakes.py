"""Images that are dictionaries: what an engine says of them, and their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from skyward.engine.images import ImageFiles

# what a Debian with a Python of its own has, as far as builds look at it; a string that begins with "->" is a link
DEBIAN: Mapping[str, str] = {
    **{f"/usr/bin/{name}": "" for name in ("cat", "chmod", "cp", "find", "grep", "mkdir", "sleep", "touch", "apt-get")},
    "/bin/sh": "->/usr/bin/dash",
    "/usr/bin/dash": "",
    "/usr/bin/python3": "->/usr/bin/python3.11",
    "/usr/bin/python3.11": "",
    "/usr/lib/x86_64-linux-gnu/libc.so.6": "GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.",
    "/etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
}


class Files(ImageFiles):
    """The files of an image."""

    def __init__(self, files: Mapping[str, str] = DEBIAN) -> None:
        self._files = files

    def find(self, path: str) -> str | None:
        content = self._files.get(path)
        if content is not None and content.startswith("->"):
            return self.find(content.removeprefix("->"))
        return None if content is None else path

    def read(self, path: str) -> bytes | None:
        found = self.find(path)
        return None if found is None else self._files[found].encode()


@contextmanager
def opened(files: Mapping[str, str] = DEBIAN) -> Iterator[Files]:
    """As an engine gives them."""
    yield Files(files)
