"""What builds say that they did not find, as their tools print it, and what the error makes of it."""

from __future__ import annotations

import pytest

from skyward.errors import BuildError
from tests.unit.builder.docker.test_progress import _failure

UV = "error: Failed to build `own==1.0`"


@pytest.mark.parametrize(
    "line",
    [
        "error: command 'x86_64-linux-gnu-gcc' failed: No such file or directory",
        "FileNotFoundError: [Errno 2] No such file or directory: '/usr/bin/g++'",
        "error: [Errno 2] No such file or directory: 'x86_64-linux-gnu-gcc'",
        "/bin/sh: 1: make: not found",
        "bash: line 3: swig: command not found",
        "No CMAKE_C_COMPILER could be found.",
        "../meson.build:1:0: ERROR: Unknown compiler(s): [['cc'], ['gcc']]",
        "configure: error: no acceptable C compiler found in $PATH",
        "Error: pg_config executable not found.",
        "RuntimeError: CMake must be installed to build dlib",
        "error: can't find Rust compiler",
        "Cargo, the Rust package manager, is not installed or is not on PATH.",
        "Did not find pkg-config by name 'pkg-config'",
        "src/x.cc:1:10: fatal error: 'openssl/ssl.h' file not found",
        "src/y.cc:1:10: fatal error: Eigen/Dense: No such file or directory",
        "src/x.c:2:10: fatal error: Python.h: No such file or directory",
        "/usr/bin/ld: cannot find -lpq: No such file or directory",
    ],
)
def test_what_a_build_did_not_find(line: str) -> None:
    """The error shows the line, however far up it stands, and says where such things come from."""
    error = _failure("image 2/5", UV, line, *("noise" for _ in range(30)))
    assert isinstance(error, BuildError)
    assert "apt=['build-essential']" in str(error)
    assert line in str(error)


@pytest.mark.parametrize(
    "line",
    [
        "make: *** [all] Error 1",
        "ValueError: not found",
        "sh: 1: own-tool: not found",
        "FileNotFoundError: [Errno 2] No such file or directory: 'README.md'",
        "ERROR: Could not find a version that satisfies the requirement own",
    ],
)
def test_what_is_something_else(line: str) -> None:
    """Other failures are not explained away."""
    assert "build-essential" not in str(_failure("image 2/5", UV, line))


def test_a_version_that_is_in_git_alone() -> None:
    """The error says where it is looked for, and the variable that gives it."""
    line = "         LookupError: setuptools-scm was unable to detect version for /run/local/app."
    error = _failure("image 2/5", UV, line, *("noise" for _ in range(30)))
    assert "takes its version from git" in str(error)
    assert "build_env={'SETUPTOOLS_SCM_PRETEND_VERSION': '1.0'}" in str(error)
    assert line.strip() in str(error)


def test_what_a_build_asks_for_and_the_lock_does_not_have() -> None:
    """The error says what it is, and what to do."""
    error = _failure("image 2/5", UV, "cause: Hash-checking is required, but no trusted hash was provided for: `six`")
    assert "asks for 'six', which the lock does not have" in str(error)
