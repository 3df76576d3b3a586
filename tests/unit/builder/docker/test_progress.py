"""BuildKit's output as people see it, and as an error tells it."""

from __future__ import annotations

import pytest

from skyward.builder.docker.output import Progress, base_failure, build_failure
from skyward.builder.events import as_lines
from skyward.errors import BuildError, ImageError, ImageNotFoundError
from skyward.model.image import Image
from tests.unit.image.images import compiled, torched

PLAN = compiled(torched(Image(pip=["rich"], apt=["git"], run=["make it"])))  # torch is large, rich is not


def _fed(*lines: str) -> tuple[Progress, list[str]]:
    reported: list[str] = []
    progress = Progress(PLAN.layers, as_lines(reported.append))
    for line in lines:
        progress.feed(line)
    return progress, reported


def test_steps_are_reported_by_what_they_do() -> None:
    """A step is named once at its start with who asked, and at its end with its time; a cached one only once."""
    progress, reported = _fed(
        "#1 [internal] load build definition from Dockerfile",
        "#1 DONE 0.0s",
        "#5 [python 1/3] FROM docker.io/library/python",
        "#5 CACHED",
        "#6 [image 2/6] RUN apt-get",
        "#6 sha256:abc",
        "#6 CACHED",
        "#7 [image 3/6] RUN uv",
        "#7 0.101 Resolved 2 packages",
        "#8 [uv 1/1] RUN pip",
        "#7 [image 3/6] RUN uv",
        "#7 0.201 Installed",
        "#8 DONE 1.0s",
        "#7 DONE 12.5s",
        "#9 [linux/amd64 image 4/6] RUN x",
        "#10 [image 5/6] RUN x",
        f"#10 extracting sha256:{'8a' * 32} 0.0s done",  # of a layer from a registry
        "#10 DONE 0.4s",
    )
    progress.quiet()  # a step without output is seen to run
    progress.quiet()
    assert reported == [
        "apt git: cached",
        "pip rich ... (your pip=['rich'])",
        "uv 0.13.8: 1.0 s",
        "pip rich: 12.5 s",
        "run true: cached",
        "run make it ... (your run=['make it'] (command 1 of 2))",
    ]


def _failure(step: str, *output: str, cause: str = "exit code: 1") -> ImageError:
    lines = [f"#7 0.{number} {text}" for number, text in enumerate(output)]
    progress, _ = _fed(f"#7 [{step}] RUN x", *lines, f"#7 ERROR: {cause}", "------", " > noise")
    return build_failure(PLAN, progress, 1)


@pytest.mark.parametrize(
    ("step", "output", "origin", "advice"),
    [
        ("image 1/6", "error: Failed to fetch: `https://a.example`", "plugin torch pip=['torch']", "be reached"),
        ("image 3/6", "cause: HTTP status client error (401 Unauthorized) for url", "your pip=['rich']", "status 401"),
        ("image 3/6", "  cause: invalid peer certificate: UnknownIssuer", None, "SSL_CERT_FILE"),
        ("image 3/6", "error: No space left on device (os error 28)", None, "No space is left"),
        ("image 2/6", "E: Unable to locate package git", "your apt=['git']", "No version of 'git'"),
        ("image 2/6", "W: Failed to fetch http://a/  503  Busy\nE: Unable to locate package git", None, "be reached"),
        ("image 4/6", "make: *** No targets.", "your run=['make it'] (command 1 of 2)", "ended with exit status 1"),
        ("image 5/6", "boo", "plugin torch (command 2 of 2)", "ended with exit status 1"),
        ("python 3/3", "skyward: the base has Python 3.9, wanted is Python 3.11", None, "Choose a base"),
        ("image 3/6", "no trusted hash was provided for: `six`", None, "asks for 'six', which the lock does not have"),
        ("image 3/6", "error: Failed to build `own==1.0`", None, "apt=['build-essential']"),
    ],
)
def test_a_failed_step_is_explained(step: str, output: str, origin: str | None, advice: str) -> None:
    """The error names the step, who asked for what is at fault, the last lines and what to do."""
    error = _failure(step, "some line", *output.splitlines())
    assert isinstance(error, BuildError)
    assert advice in str(error)
    assert output.strip() in str(error)
    assert error.step.startswith(f"[{step}]")
    if origin:
        assert error.origin == origin
        assert origin in str(error)


def test_what_fails_outside_of_steps() -> None:
    """A cache is no failure, a missing base an error of its own; the end of the engine is not blamed on the step."""
    progress, _ = _fed("#4 importing cache manifest from r.io/x:cache", "#4 ERROR: r.io/x:cache: not found")
    assert (progress.failed, progress.title, "not found" in progress.ending) == (None, "", True)
    progress, _ = _fed("#7 [image 3/6] RUN uv", "#7 0.1 x", "error reading from server: EOF")
    assert "engine went away" in str(build_failure(PLAN, progress, 1))
    line = "failed to solve: python:3.11-slim: failed to resolve source metadata for python: not found"
    progress, _ = _fed("#3 [internal] load metadata for docker.io/library/python:3.11-slim", f"#3 ERROR: {line}", line)
    error = build_failure(PLAN, progress, 1)
    assert isinstance(error, ImageNotFoundError)
    assert "python:3.11-slim" in str(error)


@pytest.mark.parametrize(
    "line",
    [
        'failed to do request: Head "http://r.io/v2/x/y/manifests/1": read tcp a->b: read: connection reset by peer',
        'failed to do request: Head "http://r.io/v2/x/y/manifests/1": dial tcp: connect: connection refused',
        "pulling from host r.io failed with status code [manifests 1]: 401 Unauthorized",
    ],
)
def test_a_registry_that_refuses_a_base(line: str) -> None:
    """Neither the engine nor a source of packages is blamed, for a base of its own or of the user's Dockerfile."""
    progress, _ = _fed("#3 [internal] load metadata for r.io/x/y:1", f"#3 ERROR: {line}", f"failed to solve: {line}")
    assert isinstance(build_failure(PLAN, progress, 1), ImageNotFoundError)
    assert "The registry refused its image, or could not be reached." in str(base_failure("Dockerfile", progress, 1))


def test_the_steps_of_podman() -> None:
    """They are reported by their texts; the error names the last one, and has what was printed."""
    progress, reported = _fed(
        "[1/2] STEP 1/3: FROM python:3.11-slim AS python",
        "[2/2] STEP 6/9: RUN two",
        "some words",
        'Error: building at STEP "RUN two": while running runtime: exit status 7',
    )
    assert reported == ["[1/2] STEP 1/3: FROM python:3.11-slim AS python", "[2/2] STEP 6/9: RUN two"]
    error = build_failure(PLAN, progress, 125)
    assert "failed at step [2/2] STEP 6/9: RUN two. It ended with exit status 7" in str(error)
    assert "some words" in str(error)
