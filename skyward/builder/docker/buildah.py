"""A translator of Podman's build output into BuildKit's, which `Progress` reads.

Buildah counts all instructions of a stage, BuildKit those that make layers, and a FROM only where it names an image;
Buildah names no step where a command prints, and steps do not run side by side
(https://github.com/containers/buildah/blob/main/imagebuildah/stage_executor.go).
"""

from __future__ import annotations

import re
from time import monotonic

from skyward.builder.docker.progress import Progress

_STEP = re.compile(r"(?:\[\d+/\d+\] )?STEP \d+/\d+: (\S+)(.*)")
_STAGE = re.compile(r" AS (\S+)\s*$", re.IGNORECASE)
_MADE = re.compile(r"--> ([0-9a-f]{6,}|Using cache\b.*|Pushing cache\b.*|Cache pulled from remote\b.*)")
_FAILED = re.compile(r"Error: (?:error )?building at STEP .*?(?:exit status (\d+))?$")
_COUNTED = ("RUN", "COPY", "ADD", "WORKDIR")


class BuildahProgress:
    """Translates Buildah's lines.

    Args:
        progress: receives BuildKit's lines.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._first: dict[str, int] = {}  # number of the first step of each stage, as BuildKit counts
        for layer in progress.plan.layers:
            if layer.step is not None and layer.text.startswith(_COUNTED):
                self._first.setdefault(layer.stage, layer.step)
        self._stage, self._step, self._number = "", 0, 0
        self._began_s: float | None = None  # of the step that runs; None between steps

    def feed(self, line: str) -> None:
        """Process one line of the build's output."""
        if found := _STEP.fullmatch(line):
            self._begin(found[1].upper(), found[2])
        elif found := _MADE.fullmatch(line):
            self._made(found[1])
        elif found := _FAILED.fullmatch(line):
            if self._began_s is not None:
                self._tell(f"ERROR: process did not complete successfully: exit code: {found[1] or 'unknown'}")
                self._began_s = None
            self._progress.feed(line)
        elif self._began_s is not None:
            self._tell(f"{monotonic() - self._began_s:.3f} {line}")
        else:
            self._progress.feed(line)

    def quiet(self) -> None:
        """The command has printed nothing for a moment."""
        self._progress.quiet()

    def _begin(self, instruction: str, rest: str) -> None:
        self._began_s = None
        if instruction == "FROM":
            named = _STAGE.search(rest)
            self._stage = named[1] if named else "stage"
            self._step = self._first.get(self._stage, 1) - 1
        if instruction in _COUNTED:
            self._step, self._number, self._began_s = self._step + 1, self._number + 1, monotonic()
            self._tell(f"[{self._stage} {self._step}/{self._step}] {instruction}{rest}")

    def _made(self, word: str) -> None:
        if self._began_s is None:
            return
        self._tell("CACHED" if word.startswith("Using cache") else f"DONE {monotonic() - self._began_s:.1f}s")
        self._began_s = None

    def _tell(self, text: str) -> None:
        self._progress.feed(f"#{self._number} {text}")
