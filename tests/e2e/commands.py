"""The command line as the end-to-end tests run it: in a process of its own, on images that nobody has built before."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SKYWARD = (sys.executable, "-m", "skyward")


@dataclass(frozen=True)
class Done:
    """What a command printed, and how it ended."""

    status: int
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """The JSON objects on its standard output, one per line."""
        return [json.loads(line) for line in self.out.splitlines()]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind."""
        return [event for event in self.events if event["event"] == kind]


class Images:
    """Writes image files, runs the command line on them, and removes what was built."""

    def __init__(self, engine: Any, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.tags: list[str] = []

    def file(self, *commands: str, more: str = "") -> Path:
        """A TOML file of an image that nobody has built before."""
        word = secrets.token_hex(4)
        path = self.folder / f"{word}.toml"
        path.write_text(f"run = {json.dumps([f': {word}', *commands])}\n{more}")
        return path

    def __call__(self, *words: object, **env: str) -> Done:
        command = [*SKYWARD, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **env})
        if words[:1] != ("image",):  # which names the images of others, too
            self.note(done.stdout)
        return Done(done.returncode, done.stdout, done.stderr)

    def note(self, out: str) -> None:
        """Remember the images of an output, to remove them."""
        found = {word.strip('",') for word in out.split() if ":sky-" in word}
        self.tags += [tag for tag in sorted(found) if tag not in self.tags]

    def has(self, tag: str) -> bool:
        return tag in self._tags()

    def remove(self) -> None:
        """Remove every image of which an output told."""
        for tag in {*self.tags} & self._tags():
            self.engine.images.remove(tag, force=True)

    def _tags(self) -> set[str]:
        """In one request: `images.list()` asks for each image again, and one may have been removed meanwhile."""
        return {tag for image in self.engine.api.images() for tag in image["RepoTags"] or ()}
