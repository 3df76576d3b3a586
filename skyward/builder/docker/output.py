"""The output of a build: events in the plain progress of BuildKit and Podman, and the diagnosis of failures.

The error for a failure names the step, who requested it, and what to do.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import monotonic

from skyward.builder.events import Event, Kind, Report, note
from skyward.errors import BuildError, ImageError, ImageNotFoundError
from skyward.image import Layer, Plan
from skyward.image.plan import origin_of
from skyward.model.image import requirement_name
from skyward.model.image_fields import without_logins

_LINE = re.compile(r"#(\d+) (.*)")
_STEP = re.compile(r"\[(?:\S+/\S+ )?(\S+) +(\d+)/(\d+)\] ")
_OUTPUT = re.compile(r"\d+\.\d+ ")
_FOLDER = re.compile(r"http://127\.0\.0\.1:\d+/[0-9a-f]{32}")  # addresses at which folders are served to builds
_HIDDEN = 4  # minimum length of secrets to hide; shorter ones would hide ordinary words
_DONE = re.compile(r"DONE (\d+\.\d+)s")
_FETCHED = re.compile(r"(?:extracting )?sha256:[0-9a-f]{64} ")  # for a step whose layer comes from a registry
_CACHE = re.compile(r"(?:im|ex)porting cache ")  # may fail without harm: missing layers are then built
# of Podman's command, which does not name the step when it prints a line; steps do not run in parallel
_PODMAN_STEP = re.compile(r"(?:\[\d+/\d+\] )?STEP \d+/\d+: (.*)")
_PODMAN_MADE = re.compile(r"--> (Using cache )?[0-9a-f]{6,}.*")
_PODMAN_FAILED = re.compile(r"Error: (?:error )?building at STEP .*?(?:exit status (\d+))?$")
_BY_CONTENT = re.compile(r"(,source=[^,\s]+)-[0-9a-f]{16}(?=,)")  # see `skyward.builder.docker.build.write_context`

_ENGINE_GONE = re.compile(
    r"Cannot connect to the Docker daemon|error reading from server|transport is closing|code = Unavailable"
    r"|connection reset by peer|docker\.sock: connect:|connection refused.*docker|unexpected EOF|no such host.*docker",
    re.IGNORECASE,
)
_PODMAN = re.compile(r"unable to upgrade to h2c, received 404")
_NO_SPACE = re.compile(r"no space left on device|disk quota exceeded|os error 28", re.IGNORECASE)
_BASE = re.compile(
    r"(pull access denied|manifest unknown|failed to resolve source metadata|failed to do request|: not found"
    r"|repository does not exist|insufficient_scope|failed to authorize)",
    re.IGNORECASE,
)
_UNFIT_BASE = re.compile(r"^skyward: (the base has no pip .*)$", re.MULTILINE)
_WRONG_PYTHON = re.compile(r"^skyward: (the base has (?:no )?Python.*, wanted is Python (\S+?)(?:,.*)?)$", re.MULTILINE)
_NO_VENV = re.compile(r"No module named '?venv'?$", re.MULTILINE)
_CERTIFICATE = re.compile(
    r"UnknownIssuer|CERTIFICATE_VERIFY_FAILED|certificate verify failed|invalid peer certificate"
    r"|self.signed certificate",
    re.IGNORECASE,
)
_REFUSED = re.compile(r"(?:HTTP status (?:client|server) error \(|HTTP error )(\d+)")
_UNREACHABLE = re.compile(
    r"Failed to fetch|error sending request|Temporary failure (?:in name resolution|resolving)|Could not connect"
    r"|Connection (?:refused|timed out|reset)|NewConnectionError|Could not resolve|dns error|operation timed out"
    r"|Unable to connect|Max retries exceeded",
    re.IGNORECASE,
)
_MISSING = (
    re.compile(r"Because (?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])? was not found in the"),
    re.compile(r"there (?:is|are) no versions? of (?P<name>[A-Za-z0-9._-]+)"),
    re.compile(r"only (?P<name>[A-Za-z0-9._-]+)\S* is available"),
    re.compile(r"E: Unable to locate package (?P<name>\S+)"),
    re.compile(r"E: Package '(?P<name>[^']+)' has no installation candidate"),
    re.compile(r"E: Version '[^']+' for '(?P<name>[^']+)' was not found"),
    re.compile(r"No matching distribution found for (?P<name>[A-Za-z0-9._-]+)"),
)
_NO_LISTS = re.compile(r"^W: Failed to fetch ", re.MULTILINE)  # apt continues without them, and then finds no package
# uv's messages for a package that it had to build
_BUILT = re.compile(r"Failed to (?:download and )?build|[Bb]uild backend (?:returned an error|failed)|PEP 517")
_TOOL = (
    r"(?:[\w-]*(?:gcc|g\+\+|\bcc|\bc\+\+)|[gcn]?make|ninja|swig|git|cargo|rustc?|gfortran|pkg-config|patchelf|nvcc"
    r"|protoc|go|node|npm|mpicc|\w+[_-]config)"
)
# the line in which a compiler, linker, shell or build tool reports what it did not find
_ABSENT = re.compile(
    r"^.*(?:fatal error: \S+(?: No such file or directory| file not found)|cannot find -l[\w+-]+"
    rf"|error: command '(?:/\S*/)?{_TOOL}' failed: (?:No such file|None)"
    rf"|No such file or directory: '(?:/\S*/)?{_TOOL}'|\b{_TOOL}\b:?(?: \w+)? not found"
    rf"|\b{_TOOL}\b(?:, the Rust package manager,)? (?:must be installed|is not installed)"
    rf"|(?:can't|cannot|could not|did not|unable to) find (?:a |the )?{_TOOL}\b"
    r"|Unknown compiler\(s\)|CMAKE_C(?:XX)?_COMPILER (?:could be found|not set)|no acceptable C compiler found).*$",
    re.IGNORECASE | re.MULTILINE,
)
_UNLOCKED = re.compile(r"^.*no trusted hash was provided for: `([A-Za-z0-9._-]+)`.*$", re.MULTILINE)
_NO_VERSION = re.compile(r"^.*setuptools[-_]scm was unable to detect version.*$", re.MULTILINE)
_CONFLICT = re.compile(r"No solution found when resolving|conflicting dependencies|ResolutionImpossible", re.IGNORECASE)


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
        self._by_text = {_plain(layer.text.replace("\\\n", " ")): layer for layer in runs}
        self._report = report
        self._running = running
        self._podman: tuple[_Step, float] | None = None  # Podman's running step, and when it began
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
        line = _FOLDER.sub("file://", without_logins(line))
        for secret in self._hidden:
            line = line.replace(secret, "***")
        found = _LINE.fullmatch(line)
        if not found:
            if line.strip() and not self._feed_podman(line):
                self._last.append(line)
            return
        number, text = found.groups()
        step = self._steps.get(number)
        if step is None:
            self._steps[number] = _Step(text, self._layer(text))
        elif _OUTPUT.match(text):
            self._print(step, _OUTPUT.sub("", text, count=1))
        elif _FETCHED.match(text):
            self._cached(step)
        elif text.startswith("ERROR") and _CACHE.match(step.title):
            self._last.append(f"{step.title}: {text}")
        elif text.startswith("ERROR"):
            self._fail(step, text)
        elif text == "CACHED":
            self._cached(step)
        elif (done := _DONE.fullmatch(text)) and not step.is_cached:
            step.started = True
            self._tell(step, "done", seconds=float(done[1]))

    def _feed_podman(self, line: str) -> bool:
        """Process a line of Podman's command; return whether it belongs to a step."""
        if begun := _PODMAN_STEP.fullmatch(line):
            step = _Step(begun[1], self._by_text.get(_plain(begun[1])))
            self._steps[line] = step
            self._podman = step, monotonic()
        elif self._podman is None:
            return False
        elif made := _PODMAN_MADE.fullmatch(line):
            step, since = self._podman
            self._podman = None
            if made[1]:
                self._cached(step)
            else:
                self._tell(step, "done", seconds=monotonic() - since)
        elif failed := _PODMAN_FAILED.fullmatch(line):
            self._fail(self._podman[0], f"exit code: {failed[1] or 'unknown'}")
            self._podman = None
            return False
        else:
            self._print(self._podman[0], line)
        return True

    def _print(self, step: _Step, line: str) -> None:
        self._start(step)
        step.lines.append(line)
        self._tell(step, "output", line=line)

    def _fail(self, step: _Step, text: str) -> None:
        self.failed, self.title = step.layer, step.title
        self._last.append(text)
        self._tell(step, "failed")

    def _cached(self, step: _Step) -> None:
        if not step.is_cached:
            step.started = step.is_cached = True
            self._tell(step, "cached")

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


def _plain(text: str) -> str:
    """Return an instruction as it is compared: in one line, with mounted files by their own names."""
    return _BY_CONTENT.sub(r"\1", " ".join(text.split()))


def build_failure(plan: Plan, progress: Progress, exit_code: int) -> ImageError:
    """Return the error for a build that ended with this exit code."""
    layer, log, tail = progress.failed, progress.log, _tail(progress)
    if layer is None and _BASE.search(log) and not _ENGINE_GONE.search(progress.ending):
        return ImageNotFoundError(
            f"The builder cannot get the base image {plan.base!r}. Check the name; where no registry can be "
            f"reached, set SKYWARD_BASE or Image(base=...) to an image the engine has. The builder said:\n{tail}"
        )
    origin = _origin(plan, progress, log)
    where = f"at step {layer.name!r} (asked for by {origin})" if layer else "before or between its steps"
    advice, shown = _advice(log, progress.ending, exit_code)
    message = f"The build of {plan.tag} failed {where}. {advice}"
    if shown:
        message += f" The build said: {shown}"
    if tail:
        message += f" Last lines:\n{tail}"
    return BuildError(message, step=progress.title, origin=origin, log=log)


def base_failure(dockerfile: str, progress: Progress, exit_code: int) -> ImageError:
    """Return the error for a base whose build from the user's Dockerfile ended with this exit code."""
    log, origin = progress.log, f"your {dockerfile}"
    where = f"at its step {progress.title}" if progress.title else "before or between its steps"
    message = f"The base from {dockerfile} failed to build {where}. "
    message += _advice(log, progress.ending, exit_code)[0]
    if tail := _tail(progress):
        message += f" Last lines:\n{tail}"
    return BuildError(message, step=progress.title, origin=origin, log=log)


def _tail(progress: Progress) -> str:
    return "\n".join(progress.log.splitlines()[-20:])


def _advice(log: str, ending: str, exit_code: int) -> tuple[str, str]:
    """Return the diagnosis with advice, and the line of the log that shows it if it may be far up."""
    if unlocked := _UNLOCKED.search(log):
        return (
            f"While it is built, a package asks for {unlocked[1]!r}, which the lock does not have: its files name it "
            "nowhere in a form that can be read without running them. Choose a version that has a wheel, or make one "
            "(`python -m pip wheel --no-deps -w dist NAME==VERSION`) and name that file in pip. A build tool such as "
            "cmake or ninja can come from apt instead.",
            unlocked[0].strip(),
        )
    if versionless := _NO_VERSION.search(log):
        return (
            "A project takes its version from git (setuptools-scm, hatch-vcs), and the build of an image has no .git. "
            "Give the version in the image, such as build_env={'SETUPTOOLS_SCM_PRETEND_VERSION': '1.0'}; if there are "
            "several such projects, each has a variable of its own: SETUPTOOLS_SCM_PRETEND_VERSION_FOR_NAME.",
            versionless[0].strip(),
        )
    if _BUILT.search(log) and (absent := _ABSENT.search(log)):
        return (
            "A package is built from source, and its build did not find a program, header or library. Add the "
            "distribution's package that has it to apt of the image, such as apt=['build-essential'] for a compiler.",
            absent[0].strip(),
        )
    return _general_advice(log, ending, exit_code), ""


def _general_advice(log: str, ending: str, exit_code: int) -> str:
    if _PODMAN.search(ending):
        return (
            "The engine is Podman's, on which docker's command cannot build. Install the podman command here, and set "
            "SKYWARD_DOCKER_CLI=podman."
        )
    if _ENGINE_GONE.search(ending):
        return "The engine went away in mid-build. Start it again and repeat; finished steps are kept."
    if _NO_SPACE.search(log) or _NO_SPACE.search(ending):
        return (
            "No space is left on the engine's disk. Free some ('docker system df' shows what is used, "
            "'docker builder prune' removes caches of builds) and repeat."
        )
    if wrong := _WRONG_PYTHON.search(log):
        return (
            f"Client and nodes need the same minor version of Python, but {wrong[1]}. Choose a base with Python "
            f"{wrong[2]}; or set UV_PYTHON_INSTALL_MIRROR, or uv's setting python-install-mirror, to a place that has "
            "uv's builds of Python; or run the client on the version that the base has."
        )
    if unfit := _UNFIT_BASE.search(log):
        return f"For the installation of packages {unfit[1]}. Install pip in a Dockerfile of your own, as the base."
    if _NO_VENV.search(log):
        return (
            "The base's Python comes without its module venv, which distributions may have in a package of its own: "
            "python3-venv on Debian and Ubuntu. Install it in a Dockerfile of your own, and name that as base."
        )
    name = _missing_package(log)
    if name and not _NO_LISTS.search(log):
        return f"No version of {name!r} satisfies the requirements. Check its name, its version and the package index."
    if _CONFLICT.search(log):
        return "The requirements contradict each other, as the lines below say. Loosen one of them."
    if _CERTIFICATE.search(log):
        return (
            "A server's certificate was not trusted. If this site intercepts TLS, point SSL_CERT_FILE to the bundle "
            "that has its CA."
        )
    if refused := _REFUSED.search(log):
        return (
            f"A package source answered with HTTP status {refused[1]}. If it wants a name and password, put them "
            "into this machine's settings of pip or uv."
        )
    if _UNREACHABLE.search(log):
        return (
            "A package source could not be reached. Check network and proxy settings; an index can be replaced by a "
            "mirror or a folder of wheels in SKYWARD_INDEXES."
        )
    status = re.findall(r"exit code: (\d+)", ending)
    return f"It ended with exit status {status[-1] if status else exit_code}; its last lines say why."


def _missing_package(log: str) -> str | None:
    """Return the package that an index or a distribution lacks."""
    return next((found["name"] for pattern in _MISSING if (found := pattern.search(log))), None)


def _origin(plan: Plan, progress: Progress, log: str) -> str:
    """Return who requested the step; for a step with several requirements, the one that the output names."""
    layer = progress.failed
    if layer is None:
        return ""
    name = _missing_package(log)
    for kind, entries in (("pip", plan.image.pip), ("apt", plan.image.apt)):
        if name and layer.name.startswith(f"{kind} "):
            named = [entry for entry in entries if requirement_name(entry) == requirement_name(name)]
            if named:
                return origin_of(plan.image, kind, named[0])
    return layer.origin
