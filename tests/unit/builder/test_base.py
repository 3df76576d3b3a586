"""What is found out of a base, over images that are dictionaries, and what is said of those that cannot be one.

Also which entry points run the command that they are given.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from skyward.builder import ImageFacts, plan_for
from skyward.builder.base import examine, facts_of_base, runs_commands, why_unfit
from skyward.builder.store import EngineImages
from skyward.errors import ConfigError, ImageError
from skyward.image import BaseFacts, Interpreter
from skyward.model.image import Image
from tests.unit.builder.fakes import DEBIAN, Files, opened

PLATFORM = "linux/amd64"
SYSTEM = Interpreter(path="/usr/bin/python3", version="3.11")
VENV = {
    "/app/.venv/pyvenv.cfg": "home = /usr/bin\nversion_info = 3.11.2\ninclude-system-site-packages = false\n",
    "/app/.venv/bin/python": "->/usr/bin/python3.11",
}
CONDA = {"/opt/conda/bin/python": "->/opt/conda/bin/python3.12", "/opt/conda/bin/python3.12": ""}
PATH = "/usr/local/bin:/usr/bin:/bin"


def _examined(config: Mapping[str, Any] | None = None, files: Mapping[str, str] | None = None) -> BaseFacts:
    return examine(config or {}, Files({**DEBIAN, **(files or {})}), PLATFORM)


def _without(*names: str) -> dict[str, str]:
    return {path: text for path, text in DEBIAN.items() if not path.endswith(names)}


def test_a_plain_debian() -> None:
    """System, C library, apt and Python are read from files, one name for each file."""
    found = _examined()
    assert (found.system, found.libc, found.apt) == ("Debian GNU/Linux 12 (bookworm)", "glibc 2.36", True)
    assert found.pythons == (SYSTEM,)
    assert (found.user, found.entrypoint, found.runs_commands, found.missing, found.cuda) == ("", (), True, (), "")
    assert why_unfit(found, "3.11") == ""


@pytest.mark.parametrize(
    ("env", "files", "first"),
    [
        (
            [f"PATH=/app/.venv/bin:{PATH}"],
            VENV,
            Interpreter(path="/app/.venv/bin/python", version="3.11", environment="/app/.venv"),
        ),
        (
            [f"PATH={PATH}", "VIRTUAL_ENV=/app/.venv"],
            VENV,
            Interpreter(path="/app/.venv/bin/python", version="3.11", environment="/app/.venv"),
        ),
        ([f"PATH=/opt/conda/bin:{PATH}"], CONDA, Interpreter(path="/opt/conda/bin/python", version="3.12")),
        ([f"PATH=/shims:{PATH}"], {"/shims/python": "#!"}, Interpreter(path="/shims/python", version="")),
    ],
)
def test_the_python_that_counts(env: list[str], files: Mapping[str, str], first: Interpreter) -> None:
    """The active environment before PATH, and PATH in its order; a shim does not tell its version."""
    found = _examined({"Env": env}, files).pythons
    assert found == (first, SYSTEM)


@pytest.mark.parametrize(
    ("pythons", "lacks"),
    [
        ([], True),
        ([SYSTEM], False),
        ([Interpreter(path="p", version="3.9")], True),
        ([Interpreter(path="p", version="")], False),
    ],
)
def test_whether_a_python_has_to_be_brought(pythons: list[Interpreter], lacks: bool) -> None:
    """Only where that is certain; the build finds out the rest."""
    assert BaseFacts(pythons=pythons).lacks("3.11") is lacks


def test_what_the_configuration_says() -> None:
    """User, entry point, health check and the rest; what is usual is no news."""
    config = {
        "User": "1000:100",
        "Entrypoint": ["/app/server"],
        "Healthcheck": {"Test": ["CMD", "true"]},
        "StopSignal": "SIGQUIT",
        "Shell": ["/bin/bash", "-c"],
        "OnBuild": ["RUN true", "USER app"],
        "Env": ["HOME=/root", "CUDA_VERSION=12.4.1"],
    }
    found = _examined(config)
    assert (found.user, found.user_in_the_end, found.home, found.cuda) == ("1000:100", "app", "/root", "12.4.1")
    assert (found.entrypoint, found.runs_commands, found.healthcheck) == (("/app/server",), False, True)
    assert (found.stop_signal, found.shell) == ("SIGQUIT", ("/bin/bash", "-c"))
    usual = _examined({"StopSignal": "SIGTERM", "Shell": ["/bin/sh", "-c"], "Healthcheck": {"Test": ["NONE"]}})
    assert (usual.stop_signal, usual.shell, usual.healthcheck) == ("", (), False)


@pytest.mark.parametrize(
    ("config", "files", "said"),
    [
        ({}, {}, "It has no shell"),
        ({}, {**_without("libc.so.6"), "/lib/ld-musl-x86_64.so.1": ""}, r"Its C library is musl \(Debian"),
        ({}, _without("/find", "/touch"), "lacks programs that the steps of a build need: find, touch"),
        ({"OnBuild": ["COPY . /app"]}, DEBIAN, "ONBUILD instructions copy files .*: COPY . /app"),
        ({}, _without("python3", "python3.11", "apt-get"), "no Python, and neither pip nor apt"),
        ({"User": "app"}, DEBIAN, "its user 'app', but its /etc/passwd and /etc/group have no 'app'"),
        (
            {"User": "4711:staff"},
            {**DEBIAN, "/etc/group": "adm:x:1:\n"},
            "its user '4711:staff', but .* have no 'staff'",
        ),
    ],
)
def test_what_cannot_be_a_base(
    config: Mapping[str, Any], files: Mapping[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sentence that names what it lacks, before anything is built."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = Store(ImageFacts(id="sha256:1", config=config), files)
    with pytest.raises(ImageError, match=rf"The base image 'odd:1' cannot be built on\. .*{said}"):
        plan_for(Image(base="odd:1"), store, python="3.11", platform=PLATFORM)


def test_a_base_that_is_older_than_all_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused for images with packages, before an index is asked."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library = "\x7fELF\x02\x01\0\0GNU C Library stable release version 2.12, by Roland McGrath et al.\nCompiled by GNU"
    store = Store(ImageFacts(id="sha256:1"), {**DEBIAN, "/usr/lib/x86_64-linux-gnu/libc.so.6": library})
    with pytest.raises(ConfigError, match=r"base has glibc 2\.12, and packages are made for glibc 2\.17 and newer"):
        plan_for(Image(base="old:1", pip=["six"]), store, python="3.11", platform=PLATFORM)
    given = plan_for(Image(base="old:1"), store, python="3.11", platform=PLATFORM).given
    assert given and given.libc == "glibc 2.12"


@pytest.mark.parametrize(
    ("config", "files", "image"),
    [
        ({"User": "4711:4712"}, {}, Image(base="x:1")),
        ({"User": "app:staff"}, {"/etc/passwd": "root:x\napp:x:1\n", "/etc/group": "staff:x:1"}, Image(base="x:1")),
        ({"User": "app", "OnBuild": ["RUN useradd app"]}, {}, Image(base="x:1")),
        ({"User": "app"}, {}, Image(base="x:1", run=["useradd app"])),
        ({"User": "app"}, {}, Image(base="x:1", apt=["app"])),
    ],
)
def test_users_of_bases(
    config: Mapping[str, Any],
    files: Mapping[str, str],
    image: Image,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A number needs no account; a name needs one, which what is built on a base may make."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = Store(ImageFacts(id="sha256:1", config=config), {**DEBIAN, **files})
    assert plan_for(image, store, python="3.11", platform=PLATFORM).user == config["User"]


class Store(EngineImages):
    """An engine with one image; counts how often its files are looked into."""

    def __init__(self, facts: ImageFacts, files: Mapping[str, str] = DEBIAN) -> None:
        self.facts, self._files = facts, files
        self.looks = 0

    def inspect(self, ref: str) -> ImageFacts | None:  # noqa: ARG002
        return self.facts

    def pull(self, ref: str) -> None:
        raise AssertionError(ref)

    def files(self, ref: str) -> AbstractContextManager[Files]:  # noqa: ARG002
        self.looks += 1
        return opened(self._files)


def test_a_base_is_looked_into_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its id and platform, also where a listing says nothing of its configuration; a bad note is renewed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = Store(ImageFacts(id="sha256:1", config={"User": "app"}))
    found = facts_of_base("x:1", store.facts, store, PLATFORM)
    assert found.user == "app"
    assert facts_of_base("x:1", ImageFacts(id="sha256:1"), store, PLATFORM) == found
    assert store.looks == 1
    (note,) = (tmp_path / "skyward/bases").iterdir()
    note.write_bytes(b"\xff{")
    assert facts_of_base("x:1", ImageFacts(id="sha256:1"), store, PLATFORM) == found
    facts_of_base("x:1", ImageFacts(id="sha256:2"), store, PLATFORM)
    facts_of_base("x:1", ImageFacts(id="sha256:1"), store, "linux/arm64")
    assert store.looks == 4


NVIDIA = '#!/bin/bash\nset -eo pipefail\nif [[ $# -eq 0 ]]; then\n  exec "/bin/bash"\nelse\n  exec "$@"\nfi\n'
SCRIPTS = {
    "/entrypoint.sh": '#!/bin/sh\nset -e\nexport A=1\nexec "$@"\n',
    "/nvidia.sh": NVIDIA,
    "/gosu.sh": '#!/bin/bash\nif [ "$(id -u)" = 0 ]; then exec gosu app "$@"; fi\nexec "$@"\n',
    "/only-gosu.sh": '#!/bin/bash\nexec gosu app "$@"\n',
    "/tini.sh": '#!/bin/sh\nexec /usr/bin/tini -g -- "$@"\n',
    "/inline.sh": '#!/bin/sh\ncd /app && "$@"\n',
    "/server.sh": '#!/bin/sh\nexec /app/server --listen "$@"\n',
    "/ends.sh": "#!/bin/sh\necho done\n",
    "/comment.sh": '#!/bin/sh\n# exec "$@" was here\nexec server\n',
    "/no-shebang.sh": 'exec "$@"\n',
    "entry": '#!/bin/sh\nexec "$@"\n',
    "/bin/server": '\x7fELF exec "$@"\n',
}


@pytest.mark.parametrize(
    ("entrypoint", "runs"),
    [
        ([], True),
        (["tini", "--"], True),
        (["/usr/bin/tini", "-g", "-p", "SIGTERM", "--", "/entrypoint.sh"], True),
        (["tini", "--", "python", "app.py"], False),
        (["/usr/bin/dumb-init", "--rewrite", "15:2", "--"], True),
        (["/usr/bin/env", "A=1", "-u", "B"], True),
        (["env", "A=1", "python", "app.py"], False),
        (["gosu", "app"], True),
        (["conda", "run", "--no-capture-output", "-n", "env"], True),
        (["conda", "run", "-n", "env", "python", "app.py"], False),
        (["/entrypoint.sh"], True),
        (["/nvidia.sh"], True),
        (["/gosu.sh"], True),
        (["/only-gosu.sh"], True),
        (["/tini.sh"], True),
        (["/inline.sh"], True),
        (["entry"], True),
        (["/server.sh"], False),
        (["/ends.sh"], False),
        (["/comment.sh"], False),
        (["/no-shebang.sh"], False),
        (["sh", "/no-shebang.sh"], True),
        (["bash", "-e", "/entrypoint.sh"], True),
        (["bash"], False),
        (["/bin/sh", "-c", "echo done"], False),
        (["/bin/sh", "-c", 'exec "$@"'], False),
        (["/bin/sh", "-c", '. /env.sh; exec "$@"', "--"], True),
        (["python", "-m", "app"], False),
        (["/bin/server"], False),
        (["/nowhere"], False),
    ],
)
def test_entry_points(entrypoint: list[str], runs: bool) -> None:
    """An init, `env`, and scripts that end in their arguments do; programs of their own do not."""

    def read(program: str) -> bytes | None:
        text = SCRIPTS.get(program)
        return None if text is None else text.encode()

    assert runs_commands(entrypoint, read) is runs
