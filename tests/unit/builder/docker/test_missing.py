"""What builds say that they did not find, as their tools print it, and what the error makes of it."""

from __future__ import annotations

import pytest

from skyward.builder.docker.output import missing_of
from skyward.errors import BuildError
from tests.unit.builder.docker.test_progress import _failure

UV = "error: Failed to build `own==1.0`"


@pytest.mark.parametrize(
    ("line", "what", "package"),
    [
        ("error: command 'gcc' failed: No such file or directory", "program 'gcc'", "build-essential"),
        ("error: command 'x86_64-linux-gnu-gcc' failed: No such file or directory", "program", "build-essential"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/usr/bin/g++'", "program 'g++'", "build-essential"),
        ("error: [Errno 2] No such file or directory: 'x86_64-linux-gnu-gcc'", "program", "build-essential"),
        ("/bin/sh: 1: make: not found", "program 'make'", "build-essential"),
        ("bash: line 3: swig: command not found", "program 'swig'", "swig"),
        ("No CMAKE_C_COMPILER could be found.", "program 'cc'", "build-essential"),
        ("../meson.build:1:0: ERROR: Unknown compiler(s): [['cc'], ['gcc']]", "program 'cc'", "build-essential"),
        ("configure: error: no acceptable C compiler found in $PATH", "program 'cc'", "build-essential"),
        ("Error: pg_config executable not found.", "program 'pg_config'", "libpq-dev"),
        ("OSError: mysql_config not found", "program 'mysql_config'", "default-libmysqlclient-dev"),
        ("RuntimeError: CMake must be installed to build dlib", "program 'cmake'", "cmake"),
        ("error: can't find Rust compiler", "program 'rust'", "cargo"),
        ("Cargo, the Rust package manager, is not installed or is not on PATH.", "program 'cargo'", "cargo"),
        ("cause: Hash-checking is required, but no trusted hash was provided for: `ninja`", "'ninja'", "ninja-build"),
        ("Did not find pkg-config by name 'pkg-config'", "program 'pkg-config'", "pkg-config"),
        ("src/x.c:2:10: fatal error: Python.h: No such file or directory", "header 'Python.h'", "python3-dev"),
        ("fatal error: openssl/opensslv.h: No such file or directory", "header", "libssl-dev"),
        ("fatal error: stdio.h: No such file or directory", "header 'stdio.h'", "build-essential"),
        ("fatal error: libxml/xmlversion.h: No such file or directory", "header", "libxml2-dev"),
        ("/usr/bin/ld: cannot find -lpq: No such file or directory", "library 'pq'", "libpq-dev"),
    ],
)
def test_what_a_build_did_not_find(line: str, what: str, package: str) -> None:
    """The error names it, Debian's package that has it, and shows the line, however far up it stands."""
    error = _failure("image 2/5", UV, line, *("noise" for _ in range(30)))
    assert isinstance(error, BuildError)
    assert what in str(error)
    assert f"add apt=['{package}']" in str(error)
    assert line in str(error)


def test_what_nobody_knows() -> None:
    """A header whose package is not known is named all the same."""
    error = _failure("image 2/5", UV, "x.c:1:1: fatal error: odd/thing.h: No such file or directory")
    assert "did not find the header 'odd/thing.h'" in str(error)


@pytest.mark.parametrize("line", ["make: *** [all] Error 1", "ValueError: not found", "sh: 1: own-tool: not found"])
def test_what_is_something_else(line: str) -> None:
    """Other failures are not explained away."""
    assert missing_of(line) is None


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
