"""What is found out of a base, and what is said of those that cannot be one."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from skyward.builder import base
from skyward.builder.base import check_base, facts_of_base, of_image
from skyward.builder.plans import plan_for
from skyward.builder.store import EngineImages, ImageFacts
from skyward.errors import EngineError, ImageError
from skyward.image import BaseFacts
from skyward.model.image import Image
from tests.unit.builder.fakes import printed

PLATFORM = "linux/amd64"
SCRIPT = Path(str(base.__file__)).with_name("base.sh")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Store(EngineImages):
    """An engine with one image; counts how often it is looked into."""

    def __init__(self, config: Mapping[str, Any] | None = None, output: str | EngineError = "") -> None:
        self.facts = ImageFacts(id="sha256:1", config=config or {})
        self.output = output or printed()
        self.looks = 0

    def inspect(self, ref: str) -> ImageFacts | None:  # noqa: ARG002
        return self.facts

    def pull(self, ref: str) -> None:
        raise AssertionError(ref)

    def run(self, ref: str, script: str, arguments: Sequence[str]) -> str:  # noqa: ARG002
        self.looks += 1
        if isinstance(self.output, EngineError):
            raise self.output
        return self.output


def test_a_plain_debian() -> None:
    """Noise of the image's own programs is no fact; of each Python the first name counts."""
    output = "skyward: \nbanner\n" + printed(python=["3.11 /opt/venv/bin/python", "3.11 /usr/bin/python3", "3.12 /p"])
    found = of_image(ImageFacts(id="1"), output)
    assert found.pythons == (("3.11", "/opt/venv/bin/python"), ("3.12", "/p"))
    assert (found.system, found.libc, found.apt) == ("Debian GNU/Linux 12 (bookworm)", "glibc 2.36", True)
    assert (found.user, found.runs_commands, found.missing) == ("", True, ())
    check_base("x:1", found, "3.11")
    assert [found.lacks(version) for version in ("3.11", "3.12", "3.13")] == [False, False, True]


def test_what_the_configuration_says() -> None:
    """User, entry point, health check and the rest; what is usual is no news."""
    config = {
        "User": "1000:100",
        "Entrypoint": ["/app/server"],
        "Healthcheck": {"Test": ["CMD", "true"]},
        "StopSignal": "SIGQUIT",
        "Shell": ["/bin/bash", "-c"],
        "OnBuild": ["RUN true", "USER app"],
        "Env": ["HOME=/root"],
    }
    found = of_image(ImageFacts(id="1", config=config), printed())
    assert (found.user, found.user_in_the_end, found.home) == ("1000:100", "app", "/root")
    assert (found.runs_commands, found.healthcheck) == (False, True)
    assert (found.stop_signal, found.shell) == ("SIGQUIT", ("/bin/bash", "-c"))
    config = {"StopSignal": "SIGTERM", "Shell": ["/bin/sh", "-c"], "Healthcheck": {"Test": ["NONE"]}}
    usual = of_image(ImageFacts(id="1", config={**config, "Entrypoint": ["tini", "--"]}), printed(runs=[""]))
    assert (usual.stop_signal, usual.shell, usual.healthcheck, usual.runs_commands) == ("", (), False, True)


@pytest.mark.parametrize(
    ("config", "output", "said"),
    [
        ({}, EngineError("exec: /bin/sh: no such file or directory"), "It has no shell"),
        ({}, "exec /bin/sh: exec format error", "programs cannot be run on the engine's machine"),
        ({}, printed(libc=["musl"]), r"Its C library is musl \(Debian"),
        ({}, printed(missing=["find", "touch"]), "lacks programs that the steps of a build need: find, touch"),
        ({}, printed(python=[], apt=[]), "no Python, and neither pip nor apt"),
    ],
)
def test_what_cannot_be_a_base(config: Mapping[str, Any], output: str | EngineError, said: str) -> None:
    """A sentence that names what it lacks, before anything is built."""
    with pytest.raises(ImageError, match=rf"The base image 'odd:1' cannot be built on.*{said}"):
        plan_for(Image(base="odd:1"), Store(config, output), python="3.11", platform=PLATFORM)


def test_a_base_is_looked_into_once(tmp_path: Path) -> None:
    """By its id; a bad note is renewed."""
    store = Store({"User": "app"})
    found = facts_of_base("x:1", store.facts, store)
    assert isinstance(found, BaseFacts)
    assert facts_of_base("y:1", store.facts, store) == found
    assert store.looks == 1
    (note,) = (tmp_path / "cache/skyward/bases").iterdir()
    note.write_bytes(b"\xff{")
    assert facts_of_base("x:1", store.facts, store) == found
    facts_of_base("x:1", ImageFacts(id="sha256:2"), store)
    assert store.looks == 3


@pytest.mark.parametrize(
    ("entrypoint", "runs"),
    [
        (["/usr/bin/env", "A=1"], True),
        (["{folder}/script"], True),
        (["sh", "-e", "{folder}/script"], True),
        (["/bin/sh", "-c", ': ; exec "$@"', "--"], True),
        (["/bin/sh", "-c", 'exec "$@"'], False),
        (["/bin/sh", "-c", "echo done"], False),
        (["/nowhere"], False),
    ],
)
def test_entry_points(tmp_path: Path, entrypoint: list[str], runs: bool) -> None:
    """An init, `env`, and scripts that end in their arguments run the command; programs of their own do not."""
    (tmp_path / "script").write_text('#!/bin/sh\nexport A=1\nexec "$@"\n')
    (tmp_path / "script").chmod(0o755)
    words = [word.replace("{folder}", str(tmp_path)) for word in entrypoint]
    done = subprocess.run(["sh", SCRIPT, *words], capture_output=True, text=True, check=False)
    facts = of_image(ImageFacts(id="1", config={"Entrypoint": words}), done.stdout)
    assert facts.runs_commands is runs
    assert facts.pythons
