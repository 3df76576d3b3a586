"""Images built on a real engine: what is in them, what is reused, what is never in them, how failures end."""

from __future__ import annotations

import os
import secrets
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import Any

import cloudpickle
import pytest

import skyward as sky
from skyward.errors import BuildError
from skyward.image.steps import UV
from skyward.model.image import PipIndex
from tests.e2e.building import PYTHON, Built
from tests.unit.builder.wheels import make_wheel

CPU = "https://download.pytorch.org/whl/cpu"
ENV = {"QUOTED": "a \"b\" 'c' $HOME `id` \\", "LINES": "one\ntwo\r\n# three \\\nfour", "UMLAUT": "ä→𝄞"}


@pytest.fixture(scope="module")
def built(engine: Any) -> Iterator[Built]:
    built = Built(sky.Docker().images, engine)
    yield built
    built.remove()


def test_what_is_in_an_image(built: Built) -> None:
    """Requirements, Debian-less commands, environment and the client's own runner arrive as they were given."""
    image = sky.Image(pip=["six"], run=["printf '%s\\n' \"$0\" 'it''s' > /said\ntest -r /said"], env=ENV)
    plan = built(image)
    code = (
        "import os, six, sys, cloudpickle, skyward.errors\n"
        f"print(cloudpickle.__version__, cloudpickle.__file__, {{n: os.environ[n] for n in {list(ENV)!r}}}, "
        "open('/said').read(), skyward.errors.__cached__, os.path.exists(skyward.errors.__cached__), sys.prefix)"
    )
    said = built.run(plan, code)
    assert said.startswith(f"{cloudpickle.__version__} /opt/skyward/cloudpickle/")
    assert repr(ENV) in said
    assert "/bin/sh\nits\n" in said
    assert said.rstrip().endswith("True /opt/venv")
    facts = built.store.inspect(plan.tag)
    assert facts
    assert dict(plan.labels).items() <= dict(facts.config["Labels"]).items()


def test_an_image_that_exists_starts_no_command(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time only the engine is asked: it works without any docker command."""
    image = sky.Image(pip=["six"], run=["true"])
    built(image)
    monkeypatch.setenv("SKYWARD_DOCKER_CLI", "/nowhere/docker")
    monkeypatch.setenv("PATH", "/nowhere")
    built(image)
    assert built.reports == []


def test_a_base_without_venv(built: Built, tmp_path: Path) -> None:
    """A base that brings only a Python gets its venv; the base may be any image the engine has."""
    (tmp_path / "Dockerfile").write_text(f"FROM {built.plan(sky.Image()).base}\nRUN rm -r /opt/venv\n")
    bare = built(sky.Image.from_dockerfile(str(tmp_path / "Dockerfile"))).base
    built.made.append(bare)
    plan = built(sky.Image(base=bare, pip=["six"]))
    assert built.run(plan, "import six, sys; print(sys.prefix)") == "/opt/venv\n"


def test_a_scoped_package_has_one_source(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scoped package comes from its index (here mapped to a folder), all others do not, in whatever order found.

    That holds for what the image lists and for what only another package asks for.
    """
    word = secrets.token_hex(4)  # new names, so that no layer of an earlier run is taken
    scoped, holder = f"scoped{word}", f"holder{word}"
    make_wheel(tmp_path / "cpu", scoped, "1.0+cpu")
    make_wheel(tmp_path / "cpu", "six", "99.0+cpu")
    make_wheel(tmp_path / "ordinary", scoped, "2.0")
    make_wheel(tmp_path / "ordinary", holder, "1.0", scoped)
    monkeypatch.setenv("SKYWARD_INDEXES", f'{{"{CPU}": "{tmp_path / "cpu"}"}}')
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "ordinary"))
    index = PipIndex(CPU, [scoped])
    say = f"import {scoped}, six; print({scoped}.version, six.__version__ < '99')"
    listed = built(sky.Image(pip=[scoped, "six"], pip_indexes=[index]))
    assert built.run(listed, say) == "1.0+cpu True\n"
    pulled_in = built(sky.Image(pip=[holder, "six"], pip_indexes=[index]))
    assert built.run(pulled_in, say) == "1.0+cpu True\n"
    assert str(tmp_path) not in listed.dockerfile + str(listed.files)


def test_another_uv_is_not_installed(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool that installs everything else is known by its hash: what an index has by its name and version is not."""
    word = secrets.token_hex(4)  # a new base, so that no layer of an earlier run is taken
    make_wheel(tmp_path / "wheels", "uv", UV)
    make_wheel(tmp_path / "wheels", f"leaf{word}", "1.0")
    (tmp_path / "Dockerfile").write_text(f"FROM {built.plan(sky.Image()).base}\nRUN echo {word} > /word\n")
    image = sky.Image.from_dockerfile(str(tmp_path / "Dockerfile")).pip_install(f"leaf{word}")
    built.made.append(built.plan(sky.Image.from_dockerfile(str(tmp_path / "Dockerfile"))).base)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    with pytest.raises(BuildError) as caught:
        built(image)
    assert "no matching distribution found for uv" in caught.value.log.lower()


def test_a_failing_command(built: Built) -> None:
    """The error names the command, its output and its status, and the tag does not exist."""
    image = sky.Image(run=["true", "echo some last words; exit 7"])
    with pytest.raises(BuildError, match=r"exit status 7.*\n.*some last words") as caught:
        built(image)
    assert caught.value.origin == "your run=['echo some last words; exit 7'] (command 2 of 2)"
    assert caught.value.log == "some last words"
    assert built.store.inspect(built.plan(image).tag) is None


def test_interrupt_during_a_build(built: Built, script: Callable[..., Popen[str]], tmp_path: Path) -> None:
    """SIGINT ends the build at the engine too, and leaves neither a process nor a file of it."""
    seconds = f"{600 + secrets.randbelow(10**6) / 10**6:.6f}"
    (tmp_path / "temp").mkdir()
    client = script(
        f"""
        import skyward as sky
        from skyward.builder.plans import ensure, plan_for
        store = sky.Docker().images
        image = sky.Image(run=["sleep {seconds}"])
        ensure(plan_for(image, store, python="{PYTHON}", platform="linux/amd64"), store, print)
        """,
        TMPDIR=str(tmp_path / "temp"),
    )
    assert client.stdout
    assert any(line.startswith(f"run sleep {seconds}") for line in client.stdout)
    (place,) = (tmp_path / "temp").iterdir()
    left = _processes(str(place)) + _processes(seconds, exact=True)
    client.send_signal(signal.SIGINT)
    _, stderr = client.communicate(timeout=60)
    assert "KeyboardInterrupt" in stderr
    assert list((tmp_path / "temp").iterdir()) == []
    for process in left:
        assert select.select([process], [], [], 10)[0], "a process of the build is still there"
        os.close(process)
    assert built.store.inspect(built.plan(sky.Image(run=[f"sleep {seconds}"])).tag) is None


def test_a_killed_build_leaves_no_secret(
    built: Built, script: Callable[..., Popen[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After SIGKILL in mid-build no file has a secret, and the next build removes what is left.

    The command that the client started ends itself with its next output, or when a step asks for a secret.
    """
    canary, word = f"canary-{secrets.token_hex(8)}", secrets.token_hex(4)
    (tmp_path / "temp").mkdir()
    client = script(
        f"""
        import skyward as sky
        from skyward.builder.plans import ensure, plan_for
        store = sky.Docker().images
        run = ["test -s /run/secrets/BUILD_TOKEN; echo {word}", "sleep 3; echo {word}; sleep 600"]
        image = sky.Image(run=run, secrets=["BUILD_TOKEN"])
        ensure(plan_for(image, store, python="{PYTHON}", platform="linux/amd64"), store, print)
        """,
        TMPDIR=str(tmp_path / "temp"),
        BUILD_TOKEN=canary,
    )
    assert client.stdout
    assert any(line.startswith("run sleep 3") for line in client.stdout)
    (place,) = (tmp_path / "temp").iterdir()
    left = _processes(str(place))
    assert left
    client.kill()
    client.communicate(timeout=60)
    files = [path for path in (tmp_path / "temp").rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if canary.encode() in path.read_bytes()] == []
    for process in left:
        assert select.select([process], [], [], 30)[0], "a process of the build is still there"
        os.close(process)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temp"))
    built(sky.Image(run=[f"echo {word}"]))
    assert list((tmp_path / "temp").iterdir()) == []


def _processes(word: str, *, exact: bool = False) -> list[int]:
    """Descriptors of the processes with a word in their command line; readable once such a process has ended."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_text().split("\0") if entry.name.isdigit() else []
            if (word in words) if exact else any(word in text for text in words):
                found.append(os.pidfd_open(int(entry.name)))
    return found
