"""A reader of BuildKit's plain progress, and of Podman's: events while it runs, and the step and lines of a failure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import monotonic

from skyward.builder.events import Event, Kind, Report
from skyward.image import Layer, Plan
from skyward.model.image_fields import without_logins

_LINE = re.compile(r"#(\d+) (.*)")
_STEP = re.compile(r"\[(?:\S+/\S+ )?(\S+) +(\d+)/(\d+)\] ")
_OUTPUT = re.compile(r"\d+\.\d+ ")
_FOLDER = re.compile(r"http://127\.0\.0\.1:\d+/[0-9a-f]{32}")  # how folders are served to builds
_HIDDEN = 4  # characters that a secret has at least; less would blot out ordinary words
_DONE = re.compile(r"DONE (\d+\.\d+)s")
_FETCHED = re.compile(r"(?:extracting )?sha256:[0-9a-f]{64} ")  # said of a step whose layer comes from a registry
_CACHE = re.compile(r"(?:im|ex)porting cache ")  # which may fail without harm: what is missing is then made
_BUILDAH_STEP = re.compile(r"(?:\[\d+/\d+\] )?STEP \d+/\d+: (\S+)(.*)")
_BUILDAH_STAGE = re.compile(r" AS (\S+)\s*$", re.IGNORECASE)
_BUILDAH_MADE = re.compile(r"--> ([0-9a-f]{6,}|Using cache\b.*|Pushing cache\b.*|Cache pulled from remote\b.*)")
_BUILDAH_FAILED = re.compile(r"Error: (?:error )?building at STEP .*?(?:exit status (\d+))?$")
_BUILDAH_COUNTED = ("RUN", "COPY", "ADD", "WORKDIR")


@dataclass(slots=True)
class _Step:
    title: str
    layer: Layer | None
    started: bool = False
    is_cached: bool = False
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=40))


class Progress:
    """Follows one build.

    Attributes:
        plan: what is built.
        failed: the layer whose step failed, once known.
        title: BuildKit's name of that step.
        log: the last lines of the build, or after a failure of the step that failed.
    """

    def __init__(self, plan: Plan, report: Report, secrets: Iterable[bytes] = ()) -> None:
        """`secrets` are values that no line may show, should a step print them."""
        lines = [line for value in secrets for line in value.decode("utf-8", "replace").split("\n")]
        self._hidden = [line for line in lines if len(line.strip()) >= _HIDDEN]
        self._layers = {
            (layer.stage, layer.step): layer for layer in plan.layers if layer.step and layer.text.startswith("RUN")
        }
        self.plan = plan
        self._report = report
        self._steps: dict[str, _Step] = {}
        self._last: deque[str] = deque(maxlen=40)
        self.failed: Layer | None = None
        self.title = ""

    @property
    def log(self) -> str:
        """The last lines of what failed, and of the build as a whole where no step did."""
        failed = next((step for step in self._steps.values() if step.title == self.title), None)
        lines = failed.lines if failed and failed.lines else self._last
        return "\n".join(lines)

    @property
    def ending(self) -> str:
        """The last output of BuildKit and the command, beside that of steps."""
        return "\n".join(self._last)

    def feed(self, line: str) -> None:
        """Process one line of the build's output."""
        line = _FOLDER.sub("file://", without_logins(line))
        for secret in self._hidden:
            line = line.replace(secret, "***")
        found = _LINE.fullmatch(line)
        if not found:
            if line.strip():
                self._last.append(line)
            return
        number, text = found.groups()
        step = self._steps.get(number)
        if step is None:
            self._steps[number] = _Step(text, self._layer(text))
        elif _OUTPUT.match(text):
            self._start(step)
            step.lines.append(_OUTPUT.sub("", text, count=1))
            self._tell(step, "output", line=step.lines[-1])
        elif _FETCHED.match(text):
            self._cached(step)
        elif text.startswith("ERROR") and _CACHE.match(step.title):
            self._last.append(f"{step.title}: {text}")
        elif text.startswith("ERROR"):
            self.failed, self.title = step.layer, step.title
            self._last.append(text)
            self._tell(step, "failed")
        elif text == "CACHED":
            self._cached(step)
        elif (done := _DONE.fullmatch(text)) and not step.is_cached:
            step.started = True
            self._tell(step, "done", seconds=float(done[1]))

    def _cached(self, step: _Step) -> None:
        if not step.is_cached:
            step.started = step.is_cached = True
            self._tell(step, "cached")

    def quiet(self) -> None:
        """The command has printed nothing for a moment: steps that were named and have not ended are running."""
        for step in self._steps.values():
            self._start(step)

    def _start(self, step: _Step) -> None:
        if step.started:
            return
        step.started = True
        self._tell(step, "start")

    def _tell(self, step: _Step, kind: Kind, *, line: str = "", seconds: float | None = None) -> None:
        if step.layer:
            self._report(Event(kind=kind, line=line, layer=step.layer, seconds=seconds))

    def _layer(self, text: str) -> Layer | None:
        found = _STEP.match(text)
        return self._layers.get((found[1], int(found[2]))) if found else None


class BuildahProgress:
    """Translates Podman's build output into BuildKit's.

    Buildah counts all instructions of a stage, BuildKit those that make layers, and a FROM only where it names an
    image; Buildah names no step where a command prints, and steps do not run side by side
    (https://github.com/containers/buildah/blob/main/imagebuildah/stage_executor.go).

    Args:
        progress: receives BuildKit's lines.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._first: dict[str, int] = {}  # number of the first step of each stage, as BuildKit counts
        for layer in progress.plan.layers:
            if layer.step is not None and layer.text.startswith(_BUILDAH_COUNTED):
                self._first.setdefault(layer.stage, layer.step)
        self._stage, self._step, self._number = "", 0, 0
        self._began_s: float | None = None  # of the step that runs; None between steps

    def feed(self, line: str) -> None:
        """Process one line of the build's output."""
        if found := _BUILDAH_STEP.fullmatch(line):
            self._begin(found[1].upper(), found[2])
        elif found := _BUILDAH_MADE.fullmatch(line):
            self._made(found[1])
        elif found := _BUILDAH_FAILED.fullmatch(line):
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
            named = _BUILDAH_STAGE.search(rest)
            self._stage = named[1] if named else "stage"
            self._step = self._first.get(self._stage, 1) - 1
        if instruction in _BUILDAH_COUNTED:
            self._step, self._number, self._began_s = self._step + 1, self._number + 1, monotonic()
            self._tell(f"[{self._stage} {self._step}/{self._step}] {instruction}{rest}")

    def _made(self, word: str) -> None:
        if self._began_s is None:
            return
        self._tell("CACHED" if word.startswith("Using cache") else f"DONE {monotonic() - self._began_s:.1f}s")
        self._began_s = None

    def _tell(self, text: str) -> None:
        self._progress.feed(f"#{self._number} {text}")
