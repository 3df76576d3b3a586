"""What every test sees: the engine that `make engine` left, and nothing of the caller's pools."""

from __future__ import annotations

import compileall
import os
import shlex
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.printed import Printed

ROOT = Path(__file__).parent.parent


def _source_engine() -> None:
    """Read `.engine/env` as `make test` does, so that a single test can be run by hand as well."""
    path = ROOT / ".engine" / "env"
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        name, _, value = line.removeprefix("export ").partition("=")
        os.environ.setdefault(name, "".join(shlex.split(value)))


_source_engine()
# hundreds of processes of a suite load the package; some environments let none of them write its bytecode
compileall.compile_dir(ROOT / "skyward", quiet=1)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a suite in the background of a shell: its clients take Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def printed() -> Printed:
    """What this test makes the client print, while its function runs."""
    return Printed()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Here and not in the fixture: between the two pytest sets the streams to its own."""
    printed = pyfuncitem.funcargs.get("printed")
    if not isinstance(printed, Printed):
        return (yield)
    with printed.collected():
        return (yield)
