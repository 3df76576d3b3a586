"""Builds that have nothing to do, answered from a record as long as nothing has changed, and no longer."""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skyward.builder.packages.lock import find_uv
from skyward.builder.registry import existence
from skyward.builder.registry.reference import parse_reference
from skyward.builder.store import note_content
from skyward.model.image_fields import platform_of
from tests.unit.cli.conftest import Skyward
from tests.unit.engine.fake import FakeEngine

RUN = "import sys\nfrom skyward.cli.main import main\nmain(sys.argv[1:])\nprint(*sys.modules, file=sys.stderr)"
LOOK = "import sys\nfrom skyward.cli.main import answered\nprint(answered(sys.argv[1:]))"
SCRIPT = """
import skyward as sky
from config import COMMANDS
with sky.ComputePool(image=sky.Image(run=COMMANDS)): ...
"""
WORDS = ("build", "image.toml", "train.py")
HEAVY = {"click", "hashlib", "json", "pydantic", "skyward.builder", "skyward.engine", "socket"}


def _python(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """What an interpreter of its own prints."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ)


def _is_answered(*words: str) -> bool:
    return _python(LOOK, *(words or WORDS)).stdout.endswith("True\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with an image in TOML, and one in a script with a file beside it."""
    folder = tmp_path / "work" / "inner"
    folder.mkdir(parents=True)
    (folder / "image.toml").write_text('run = ["make it"]\n')
    (folder / "train.py").write_text(SCRIPT)
    (folder / "config.py").write_text("COMMANDS = ['one']\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("A_TOKEN", "hunter2")
    for name in ("DOCKER_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def tags(skyward: Skyward, engine: FakeEngine, folder: Path) -> list[str]:
    """The tags of the two images, which exist; a run has recorded that."""
    found = [line.split()[0] for line in skyward(*WORDS, "--check")[1].splitlines()]
    for tag in found:
        engine.add(tag)
        note_content(tag, "", f"sha256:{tag}")
    assert skyward(*WORDS)[0] == 0
    time.sleep(0.06)  # a run records nothing that has only just been changed
    assert set(_python(RUN, *WORDS).stderr.split()) > HEAVY
    engine.requests.clear()
    return found


def test_it_is_answered_after_one_question(engine: FakeEngine, tags: list[str]) -> None:
    """In the same words, with nothing loaded that builds; the images are marked as used."""
    used = Path(os.environ["XDG_CACHE_HOME"]) / "skyward" / "used" / tags[1].rpartition(":")[2]
    os.utime(used, (1, 1))

    done = _python(RUN, *WORDS)

    assert not HEAVY & set(done.stderr.split())
    assert len(engine.requests) == 1
    assert used.stat().st_mtime > 1
    assert done.stdout == "".join(
        f"{tag}  {name}: exists\n  id      sha256:{tag}\n  size    1 kB\n"
        for tag, name in zip(tags, ("image.toml", "train.py:train"), strict=True)
    )
    assert "click" in _python(RUN, *WORDS, "--check").stderr.split()  # other words have a record of their own
    assert "click" not in _python(RUN, *WORDS, "--check").stderr.split()


def test_nothing_of_the_environment_is_in_a_record(tags: list[str]) -> None:
    """It may hold secrets."""
    (file,) = _records()
    assert tags[0].encode() in file.read_bytes()
    assert b"hunter2" not in file.read_bytes()


def test_a_record_that_is_broken_is_none(tags: list[str]) -> None:
    """Half written, or of another version."""
    (file,) = _records()
    file.write_bytes(file.read_bytes()[:100])

    assert not _is_answered()
    assert _python(RUN, *WORDS).stdout.count("exists") == len(tags)


def test_what_an_engine_has_decides(engine: FakeEngine, tags: list[str]) -> None:
    """Another base, another image under the tag, none, an engine that is gone."""
    for tag in ("base:1", tags[0]):
        known = engine.images.pop(tag)
        assert not _is_answered()
        engine.images[tag] = known | {"Id": "sha256:other"}
        assert not _is_answered()
        engine.images[tag] = known
        engine.images = dict(sorted(engine.images.items(), key=lambda pair: ["base:1", *tags].index(pair[0])))
        assert _is_answered()
    Path(engine.url.removeprefix("unix://")).unlink()
    assert not _is_answered()


def test_settings_decide(monkeypatch: pytest.MonkeyPatch, folder: Path, tags: list[str]) -> None:
    """Files that were not there, and the environment."""
    assert tags
    homes = (".config/uv/uv.toml", ".config/pip/pip.conf", ".pip/pip.conf")
    for file in (folder.parent / "pyproject.toml", *(Path.home() / name for name in homes)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
        assert not _is_answered()
        file.unlink()
        assert _is_answered()
    monkeypatch.setenv("SKYWARD_BASE", "base:2")
    assert not _is_answered()


def _rewritten(file: Path, text: str) -> None:
    """Other content of the same length, with the time of the last change put back."""
    before = file.stat()
    assert len(text) == before.st_size
    file.write_text(text)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", ["file", "file beside", "package beside", "known contents"])
def test_files_decide(folder: Path, tags: list[str], change: str) -> None:
    """Their content, even with the old time put back; what comes before them; what this user's images are."""
    if change == "file":
        _rewritten(folder / "image.toml", 'run = ["make IT"]\n')
    elif change == "file beside":
        _rewritten(folder / "config.py", "COMMANDS = ['two']\n")
    elif change == "package beside":
        (folder / "config").mkdir()
        (folder / "config" / "__init__.py").write_text("COMMANDS = ['three']\n")
    else:
        tag = tags[0].rpartition(":")[2]
        (Path(os.environ["XDG_CACHE_HOME"]) / "skyward" / "contents" / f"{tag}.json").unlink()

    assert not _is_answered()


KINDS = {
    "includes": {"image.toml": 'includes = ["src"]\nbake = true\n', "src/a.py": "A = 1\n"},
    "sent includes": {"image.toml": 'includes = ["src"]\n', "src/a.py": "A = 1\n"},
    "local package": {
        "image.toml": 'pip = ["./lib"]\n',
        "lib/pyproject.toml": '[project]\nname = "lib"\nversion = "1"\n[build-system]\nrequires = []\n',
        "lib/lib.py": "A = 1\n",
    },
    "requirements": {"image.toml": 'requirements = ["r.txt"]\n', "r.txt": "-r more.txt\n", "more.txt": "# none\n"},
    "Dockerfile": {
        "image.toml": 'base = {dockerfile = "x.Dockerfile", context = "src"}\n',
        "x.Dockerfile": "FROM base:1\nCOPY a.py /\n",
        "src/a.py": "A = 1\n",
    },
    "project": {
        "work/pyproject.toml": '[project]\nname = "work"\nversion = "1"\nrequires-python = ">=3.11"\n'
        '[build-system]\nrequires = []\n[tool.uv.workspace]\nmembers = ["members/*"]\n',
        "work/members/one/pyproject.toml": '[project]\nname = "one"\nversion = "1"\nrequires-python = ">=3.11"\n',
        "work/work.py": "A = 1\n",
    },
}
CHANGES = {
    "includes": ["src/a.py", "src/b.py", ".gitignore", "src/.gitignore", "../.git"],
    "sent includes": [],
    "local package": ["lib/lib.py", "lib/more.py", "lib/pyproject.toml", "lib/uv.lock", "pyproject.toml"],
    "requirements": ["r.txt", "more.txt"],
    "Dockerfile": ["x.Dockerfile", "src/a.py", "src/b.py", "src/.dockerignore", "x.Dockerfile.dockerignore"],
    "project": ["work/work.py", "work/uv.lock", "work/members/one/pyproject.toml", "work/members/two/a.py"],
}


def _kind(kind: str, folder: Path) -> tuple[str, ...]:
    """Write the files of a kind of image; the words that build it."""
    for name, text in KINDS[kind].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    if kind != "project":
        return ("build", "image.toml")
    subprocess.run([find_uv(), "lock", "--offline", "--quiet"], cwd=folder / "work", check=True)
    return ("build", "work")


def _recorded(engine: FakeEngine, skyward: Skyward, *words: str, content: str = "") -> None:
    """Let a run find its images, and record that."""
    for line in skyward(*words[:2], "--check")[1].splitlines():
        tag = line.split()[0]
        engine.add(tag)
        note_content(tag, content, f"sha256:{tag}")
    time.sleep(0.06)
    for _ in range(6):  # the first notes the use of the image, and reads files that it has written itself
        assert _python(RUN, *words).returncode == 0
        time.sleep(0.06)
        if _is_answered(*words):
            return


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_this_machine_decide(engine: FakeEngine, skyward: Skyward, folder: Path, kind: str) -> None:
    """Images that are made of files have a record too, which ends with a change of any of them, or a new one."""
    words = _kind(kind, folder)
    _recorded(engine, skyward, *words)
    assert _is_answered(*words)
    watched = {path for path, _ in marshal.loads(_records()[0].read_bytes())[3]}
    for name in CHANGES[kind]:
        file = Path(os.path.normpath(folder / name))
        nearest = next(place for place in (file, *file.parents) if place.exists())
        assert str(file) in watched or (nearest != file and str(nearest) in watched), name
    for name in CHANGES[kind][:1]:
        (folder / name).write_text("# changed\n")
        assert not _is_answered(*words)


@pytest.mark.parametrize("options", [["--check"], ["--json"], ["--check", "--json"], ["--platform", "linux/amd64"]])
def test_options_have_records_of_their_own(
    engine: FakeEngine, skyward: Skyward, folder: Path, options: list[str]
) -> None:
    """The same text is printed again, JSON too, and the exit status is the same."""
    words = ("build", "image.toml", *options)
    _recorded(engine, skyward, *words)
    done = _python(RUN, *words)
    assert not HEAVY & set(done.stderr.split())
    status, out, _ = skyward("build", "image.toml", *options, "--debug")
    assert (status, done.stdout) == (0, out)


def test_what_was_pushed_is_trusted_for_a_day(
    engine: FakeEngine, skyward: Skyward, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the compiler would not ask the registry either. A check asks it each time."""
    tag = skyward("build", "image.toml", "--check")[1].split()[0]
    reference = parse_reference(f"127.0.0.1:9/team:{tag.rpartition(':')[2]}")
    digest = f"sha256:{'1' * 64}"
    existence.remember(reference, platform_of(None), digest, digest, digest)
    words = ("build", "image.toml", "--push", "127.0.0.1:9/team")
    _recorded(engine, skyward, *words, content=digest)

    assert _is_answered(*words)
    later = f"import time\nnow = time.time()\ntime.time = lambda: now + {existence.TRUST_S}\n{LOOK}"
    assert _python(later, *words).stdout.endswith("False\n")
    assert _python(RUN, *words, "--check").returncode == 0  # which finds no registry there
    assert not _is_answered(*words, "--check")


def test_what_has_to_be_said_again_is_not_recorded(engine: FakeEngine, skyward: Skyward, folder: Path) -> None:
    """A run that has warned of something warns the next time, too."""
    (folder / "src").mkdir()
    (folder / "src" / "a.py").write_text("A = 1\n")
    (folder / "src" / "b.py").write_text("B = 1\n")
    (folder / ".gitignore").write_text("b.py\n")
    (folder / "image.toml").write_text('includes = ["src"]\n')
    _recorded(engine, skyward, "build", "image.toml")

    assert "leave out 1 Python files: src/b.py" in _python(RUN, "build", "image.toml").stderr


def test_a_lock_that_appears_beside_the_file(engine: FakeEngine, skyward: Skyward, folder: Path) -> None:
    """It would have to fit."""
    _recorded(engine, skyward, "build", "image.toml")
    (folder / "image.lock").write_text("")

    assert not _is_answered("build", "image.toml")


def _records() -> list[Path]:
    return [*(Path(os.environ["XDG_CACHE_HOME"]) / "skyward" / "unchanged").iterdir()]
