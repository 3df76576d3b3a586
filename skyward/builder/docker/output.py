"""The output of a build: events in the plain progress of BuildKit, and the errors of failed builds.

The error for a failure names the step, who requested it, its last lines, and what to do. Podman's command names no
steps in its output: its steps are reported as notes.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from skyward.builder.events import Event, Kind, Report, note
from skyward.errors import BuildError, ImageError, ImageNotFoundError
from skyward.image import Layer, Plan
from skyward.model.image_fields import without_logins

_LINE = re.compile(r"#(\d+) (.*)")
_STEP = re.compile(r"\[(?:\S+/\S+ )?(\S+) +(\d+)/(\d+)\] ")
_OUTPUT = re.compile(r"\d+\.\d+ ")
_HIDDEN = 4  # minimum length of secrets to hide; shorter ones would hide ordinary words
_DONE = re.compile(r"DONE (\d+\.\d+)s")
_FETCHED = re.compile(r"(?:extracting )?sha256:[0-9a-f]{64} ")  # for a step whose layer comes from a registry
_CACHE = re.compile(r"(?:im|ex)porting cache ")  # may fail without harm: missing layers are then built
_PODMAN_STEP = re.compile(r"(?:\[\d+/\d+\] )?STEP \d+/\d+: .*")

_ENGINE_GONE = re.compile(
    r"Cannot connect to the Docker daemon|error reading from server|transport is closing|code = Unavailable"
    r"|connection reset by peer|docker\.sock: connect:|connection refused.*docker|unexpected EOF|no such host.*docker",
    re.IGNORECASE,
)
_BASE = re.compile(  # what a registry has done, or the way to it
    r"pull access denied|manifest unknown|failed to resolve source metadata|failed to do request|: not found"
    r"|repository does not exist|insufficient_scope|failed to authorize|pulling from host|unexpected status",
    re.IGNORECASE,
)
_FROM = re.compile(r"\[internal\] load metadata for |.*STEP \d+/\d+: FROM ")  # the step that looks for a base
# advice on what a failed step has printed; the first match is used, with its group in place of {}
_ADVICE = tuple(
    (re.compile(pattern, re.IGNORECASE | re.MULTILINE), advice)
    for pattern, advice in (
        (
            r"no space left on device|disk quota exceeded|os error 28",
            "No space is left on the engine's disk. Free some ('docker system df' shows what is used, 'docker builder "
            "prune' removes caches of builds) and repeat.",
        ),
        (
            r"no trusted hash was provided for: `([\w.-]+)`",
            "While it is built, a package asks for {!r}, which the lock does not have. Choose a version that has a "
            "wheel, or build one and name that file in pip. A build tool such as cmake can come from apt instead.",
        ),
        (
            r"^skyward: (the base has .*, wanted is Python .*)$",
            "Client and nodes need the same minor version of Python, but {}. Choose a base with that Python; or set "
            "UV_PYTHON_INSTALL_MIRROR to a place that has uv's builds of Python.",
        ),
        (
            r"UnknownIssuer|certificate.verify.failed|invalid peer certificate|self.signed certificate",
            "A server's certificate was not trusted. If this site intercepts TLS, point SSL_CERT_FILE to the bundle "
            "that has its CA.",
        ),
        (
            r"HTTP (?:status (?:client|server) error \(|error )(\d+)",
            "A package source answered with HTTP status {}. If it wants a name and password, put them into this "
            "machine's settings of pip or uv.",
        ),
        (
            r"Failed to fetch|error sending request|Temporary failure|Could not (?:connect|resolve)"
            r"|Connection (?:refused|timed out|reset)|dns error|operation timed out|Max retries exceeded",
            "A package source could not be reached. Check network and proxy settings; an index can be replaced by a "
            "mirror or a folder of wheels in SKYWARD_INDEXES.",
        ),
        (
            r"Unable to locate package (\S+)|No matching distribution found for ([\w.-]+)",
            "No version of {!r} satisfies the requirements. Check its name, version and index.",
        ),
        (
            r"Failed to (?:download and )?build|build backend (?:returned an error|failed)",
            "A package is built from source. If its build misses a compiler, a program or a header, add the Debian "
            "package that has it to the image, such as apt=['build-essential'].",
        ),
    )
)


@dataclass(slots=True)
class _Step:
    title: str
    layer: Layer | None
    started: bool = False
    is_cached: bool = False
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=40))


class Progress:
    """Parser of the output of one build.

    Attributes:
        failed: the layer whose step failed, once known.
        title: BuildKit's name of that step.
        log: the last lines of the build, or after a failure of the failed step.
    """

    def __init__(
        self, layers: Iterable[Layer], report: Report, secrets: Iterable[bytes] = (), running: str = ""
    ) -> None:
        """Follow a build of these layers.

        Args:
            layers: the layers of the plan.
            report: receives the events.
            secrets: values to hide in all lines, in case a step prints them.
            running: a note to report once a step runs.
        """
        lines = [line for value in secrets for line in value.decode("utf-8", "replace").split("\n")]
        self._hidden = [line for line in lines if len(line.strip()) >= _HIDDEN]
        runs = [layer for layer in layers if layer.step and layer.text.startswith("RUN")]
        self._layers = {(layer.stage, layer.step): layer for layer in runs}
        self._report = report
        self._running = running
        self._steps: dict[str, _Step] = {}
        self._last: deque[str] = deque(maxlen=40)
        self.failed: Layer | None = None
        self.title = ""

    @property
    def log(self) -> str:
        """The last lines of the failed step, or of the whole build if none failed."""
        failed = next((step for step in self._steps.values() if step.title == self.title), None)
        lines = failed.lines if failed and failed.lines else self._last
        return "\n".join(lines)

    @property
    def ending(self) -> str:
        """The last output of BuildKit and the command, without that of steps."""
        return "\n".join(self._last)

    def feed(self, line: str) -> None:
        """Process one line of the build's output."""
        line = without_logins(line)
        for secret in self._hidden:
            line = line.replace(secret, "***")
        found = _LINE.fullmatch(line)
        if not found:
            if _PODMAN_STEP.fullmatch(line):
                self.title = line
                self._report(note(line))
            elif line.strip():
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
        elif text == "CACHED" or _FETCHED.match(text):
            if not step.is_cached:
                step.started = step.is_cached = True
                self._tell(step, "cached")
        elif text.startswith("ERROR") and _CACHE.match(step.title):
            self._last.append(f"{step.title}: {text}")
        elif text.startswith("ERROR"):
            self.failed, self.title = step.layer, step.title
            self._last.append(text)
            self._tell(step, "failed")
        elif (done := _DONE.fullmatch(text)) and not step.is_cached:
            step.started = True
            self._tell(step, "done", seconds=float(done[1]))

    def quiet(self) -> None:
        """Handle a silence of the command: steps that were named and have not ended are running."""
        for step in self._steps.values():
            self._start(step)

    def _start(self, step: _Step) -> None:
        if step.started:
            return
        step.started = True
        self._tell(step, "start")
        if self._running and _STEP.match(step.title):
            self._report(note(self._running))
            self._running = ""

    def _tell(self, step: _Step, kind: Kind, *, line: str = "", seconds: float | None = None) -> None:
        if step.layer:
            self._report(Event(kind=kind, line=line, layer=step.layer, seconds=seconds))

    def _layer(self, text: str) -> Layer | None:
        found = _STEP.match(text)
        return self._layers.get((found[1], int(found[2]))) if found else None


def build_failure(plan: Plan, progress: Progress, exit_code: int) -> ImageError:
    """Return the error for a build that ended with this exit code."""
    layer, log = progress.failed, progress.log
    if layer is None and _BASE.search(log) and not _engine_is_gone(progress):
        return ImageNotFoundError(
            f"The builder cannot get the base image {plan.base!r}. Check the name; where no registry can be "
            f"reached, set SKYWARD_BASE or Image(base=...) to an image the engine has. The builder said:\n{_tail(log)}"
        )
    origin = layer.origin if layer else ""
    where = f"at step {layer.name!r} (asked for by {origin})" if layer else _where(progress)
    return _failure(f"The build of {plan.tag} failed {where}.", progress, exit_code, origin)


def base_failure(dockerfile: str, progress: Progress, exit_code: int) -> ImageError:
    """Return the error for a base whose build from the user's Dockerfile ended with this exit code."""
    begin = f"The base from {dockerfile} failed to build {_where(progress)}."
    return _failure(begin, progress, exit_code, f"your {dockerfile}")


def _where(progress: Progress) -> str:
    return f"at step {progress.title}" if progress.title else "before or between its steps"


def _failure(begin: str, progress: Progress, exit_code: int, origin: str) -> BuildError:
    message = f"{begin} {_advice(progress, exit_code)}"
    if tail := _tail(progress.log):
        message += f" Last lines:\n{tail}"
    return BuildError(message, step=progress.title, origin=origin, log=progress.log)


def _tail(log: str) -> str:
    return "\n".join(log.splitlines()[-20:])


def _engine_is_gone(progress: Progress) -> bool:
    return any(_ENGINE_GONE.search(line) and not _BASE.search(line) for line in progress.ending.splitlines())


def _advice(progress: Progress, exit_code: int) -> str:
    if _engine_is_gone(progress):
        return "The engine went away in mid-build. Start it again and repeat; finished steps are kept."
    if _FROM.match(progress.title) and _BASE.search(progress.log):
        return (
            "The registry refused its image, or could not be reached. Check the name, your login (`docker login`) and "
            "the way from the machine that builds to the registry."
        )
    for pattern, advice in _ADVICE:
        if found := pattern.search(progress.log) or pattern.search(progress.ending):
            return advice.format(*filter(None, found.groups()))
    status = re.findall(r"exit (?:code:|status) (\d+)", progress.ending)
    return f"It ended with exit status {status[-1] if status else exit_code}; its last lines say why."
