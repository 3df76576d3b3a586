"""`ensure` with a docker command that is a shell script: what is started, given and left."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from skyward.builder.docker.build import write_context
from skyward.builder.events import as_lines
from skyward.builder.files.copied import digest_of
from skyward.builder.plans import ensure
from skyward.builder.store import EngineImages, ImageFacts
from skyward.errors import BuildError, ConfigError
from skyward.image import Copied
from skyward.image.lock import Lock, Package
from skyward.model.image import Image
from tests.unit.image.images import compiled

ROOT = Path(__file__).parents[3]
PLAN = compiled(
    Image(pip=["numpy"], env={"A": "x\ny"}), lock=Lock((Package(name="numpy", pin="numpy==2", hashes=("sha256:cc",)),))
)


class Store(EngineImages):
    """An engine that has what the fake command has left in a file."""

    def __init__(self, built: Path) -> None:
        self.built = built

    def inspect(self, ref: str) -> ImageFacts | None:
        own = self.built.with_name("id")
        name = own.read_text().strip() if own.exists() else "1"
        return ImageFacts(id=name) if self.built.exists() and ref in self.built.read_text() else None

    def pull(self, ref: str) -> None:
        raise AssertionError(ref)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with caches, temporary files and nothing of this machine's settings."""
    (tmp_path / "temp").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("SKYWARD_DOCKER_CLI", str(tmp_path / "docker"))
    return tmp_path


def _docker(place: Path, build: str) -> None:
    """A command that notes its words, keeps the context, and then does `build`; `$TAG` is the image's name."""
    cli = place / "docker"
    cli.write_text(
        "#!/bin/bash\n"
        '[ "$1" = --version ] && { echo "Docker version 20.10.24, build x"; exit; }\n'
        f"echo \"${{*//$'\\n'/ }}\" >> {place}/calls; "
        f' env > {place}/env; cp -r "${{@: -1}}" {place}/context\n'
        'for ((at = 1; at < $#; at++)); do [ "${!at}" = --tag ] && next=$((at + 1)) && TAG=${!next}; done\n'
        f"{build}\n"
    )
    cli.chmod(0o755)


def _calls(place: Path) -> list[str]:
    file = place / "calls"
    return file.read_text().splitlines() if file.exists() else []


def test_a_build(place: Path) -> None:
    """The command gets a context of exactly the plan's files; afterwards nothing is left of it."""
    _docker(place, f'echo "$TAG" > {place}/built')
    reported: list[str] = []
    store = Store(place / "built")
    store.builder = "unix:///some.sock"
    facts = ensure(PLAN, store, as_lines(reported.append))
    assert facts.id == "1"
    (call,) = _calls(place)
    assert " --progress=plain --network=host --platform linux/amd64 " in call
    assert " --secret id=skyward_site,type=file,src=" in call
    assert f"--tag {PLAN.tag} " in call
    assert "DOCKER_HOST=unix:///some.sock\n" in (place / "env").read_text()
    assert "DOCKER_BUILDKIT=1\n" in (place / "env").read_text()
    assert "BUILDX_BUILDER=default\n" in (place / "env").read_text()  # others lack bases and the loopback interface
    context = place / "context"
    text = (context / "Dockerfile").read_text()
    assert re.sub(r"(source=[\w/.-]+)-[0-9a-f]{16},", r"\1,", text) == PLAN.dockerfile
    files = {f"{path.relative_to(context)}" for path in context.rglob("*") if path.is_file()}
    plain = {re.sub("-[0-9a-f]{16}(?=/|$)", "", name) for name in files}
    assert {*dict(PLAN.files), "Dockerfile", "mount-points.tar", "runner/skyward/errors.py", "steps/step.sh"} <= plain
    assert {name.partition("/")[0] for name in plain} == {
        *("Dockerfile", "mount-points.tar", "requirements", "runner", "steps")
    }
    assert list((place / "temp").iterdir()) == []
    assert reported[0] == f"building {PLAN.tag} from python:3.11-slim"
    assert reported[-1].startswith(f"built {PLAN.tag} in ")


def test_steps_are_named_by_what_they_mount(tmp_path: Path) -> None:
    """Buildah compares instructions only: those that mount other files read otherwise, and the same ones alike."""
    installs = []
    for number, version in enumerate(("1.16.0", "1.16.0", "1.17.0")):
        locked = Package(name="six", pin=f"six=={version}", hashes=("sha256:cc",))
        folder = tmp_path / str(number)
        write_context(folder, compiled(Image(pip=["six"]), lock=Lock((locked,))))
        text = (folder / "Dockerfile").read_text()
        assert all((folder / source).exists() for source in re.findall(r"type=bind,source=([^,]+)", text))
        installs += re.findall(r"^RUN (?:.+\\\n)+.* install locked.txt$", text, re.MULTILINE)
    one, same, other = installs
    assert one == same != other
    assert re.sub("-[0-9a-f]{16},", ",", one) == re.sub("-[0-9a-f]{16},", ",", other)


def test_the_client_s_umask_does_not_count(place: Path) -> None:
    """Everybody may read what goes into the image, be it written by us or taken from a private folder of the user's."""
    (place / "lib").mkdir(mode=0o700)
    (place / "lib/module.py").touch(mode=0o600)
    files = (("sub/module.py", str(place / "lib/module.py")),)
    plan = compiled(
        Image(includes=["lib"], bake=True), code=Copied(folder="code", digest=digest_of(files), files=files)
    )
    _docker(place, f'echo "$TAG" > {place}/built; find context -printf "%m %y\\n" | sort -u > {place}/modes')
    before = os.umask(0o077)
    try:
        ensure(plan, Store(place / "built"), print)
    finally:
        os.umask(before)
    assert (place / "modes").read_text().split("\n") == ["644 f", "755 d", ""]
    (place / "built").unlink()
    (place / "lib/module.py").write_text("changed\n")
    with pytest.raises(BuildError, match=r"changed while it was being prepared: .*/lib/module.py"):
        ensure(plan, Store(place / "built"), print)


def test_secrets_are_the_builds_own(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret's value is neither in the command nor in its environment, nor shown if a step prints it."""
    monkeypatch.setenv("SKYWARD_SECRET_HF_TOKEN_FILE", str(place / "token"))
    (place / "token").write_text("canary-value\n")
    _docker(
        place,
        f'for word in "$@"; do case $word in id=HF_TOKEN,*) cat "${{word#*src=}}" > {place}/seen;; esac; done\n'
        'echo "#7 [image 2/2] RUN"; echo "#7 0.1 is canary-value"; echo "#7 ERROR: exit code: 1"; exit 1',
    )
    plan = compiled(Image(run=["cat /run/secrets/HF_TOKEN"], secrets=["HF_TOKEN"]))
    with pytest.raises(BuildError) as caught:
        ensure(plan, Store(place / "built"), print)
    assert (place / "seen").read_text() == "canary-value\n"
    assert f"--secret id=HF_TOKEN,type=file,src=/proc/{os.getpid()}/fd/" in _calls(place)[0]
    assert caught.value.log == "is ***"
    assert "canary-value" not in str(caught.value) + (place / "calls").read_text() + (place / "env").read_text()
    assert list((place / "temp").iterdir()) == []


def test_a_secret_without_a_value(place: Path) -> None:
    """It is said before anything is made."""
    plan = compiled(Image(run=["true"], secrets=["HF_TOKEN"]))
    with pytest.raises(ConfigError, match=r"'HF_TOKEN', which has no value.*SKYWARD_SECRET_HF_TOKEN_FILE"):
        ensure(plan, Store(place / "built"), print)
    assert _calls(place) == []


def test_a_build_for_another_engine(place: Path) -> None:
    """A command that builds somewhere else is found out."""
    _docker(place, "true")
    with pytest.raises(BuildError, match="may use different engines"):
        ensure(PLAN, Store(place / "built"), print)


def test_buildx_keeps_its_state_where_it_can_write(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder of the build, if it cannot beside Docker's configuration."""
    (place / "config").write_text("")
    monkeypatch.setenv("DOCKER_CONFIG", str(place / "config/docker"))
    monkeypatch.delenv("BUILDX_CONFIG", raising=False)
    _docker(place, f'echo "$TAG" > {place}/built')
    ensure(PLAN, Store(place / "built"), print)
    assert "BUILDX_CONFIG=" in (place / "env").read_text()
