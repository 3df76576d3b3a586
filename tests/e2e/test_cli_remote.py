"""`skyward build --on ssh://...` against an SSH server of the test's own, on this machine's loopback interface.

The client has neither a docker command nor an engine; the server's sessions have both.
"""

from __future__ import annotations

import getpass
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import SKYWARD, Done, Images
from tests.e2e.sshd import Site, site
from tests.unit.builder.wheels import make_wheel

__all__ = ["site"]

REGISTRY = os.environ.get("SKYWARD_REGISTRY", "")
pytestmark = pytest.mark.parametrize("site", ["OpenSSH"], indirect=True)


@dataclass(frozen=True)
class Machine:
    """A machine reached by SSH.

    Attributes:
        url: its address.
        temp: its directory for temporary files.
        known: file of its host keys.
    """

    url: str
    temp: Path
    known: str

    @property
    def left(self) -> list[str]:
        """What builds have left there."""
        return [path.name for path in self.temp.iterdir()]


@pytest.fixture
def machine(site: Site) -> Machine:
    """Its sessions have this machine's engine and docker command."""
    temp = site.folder / "there"
    temp.mkdir()
    there = {
        "DOCKER_HOST": os.environ["DOCKER_HOST"],
        "TMPDIR": temp,
        "SKYWARD_DOCKER_CLI": os.environ.get("SKYWARD_DOCKER_CLI", "docker"),
    }
    server = site.serve("SetEnv=" + " ".join(f"{name}={value}" for name, value in there.items()))
    known = site.known(server)
    site.configure(f"Host *\n  IdentityFile {site.key}\n  UserKnownHostsFile {known}\n")
    return Machine(f"ssh://{getpass.getuser()}@127.0.0.1:{server.port}", temp, known)


@pytest.fixture
def images(
    engine: Any, machine: Machine, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Images]:
    """The command line on a client without Docker."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(site.folder / "bin"))
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.delenv("SKYWARD_DOCKER_CLI", raising=False)
    images = Images(engine, tmp_path)
    yield images
    images.remove()


def _build(images: Images, machine: Machine, file: Path, *words: str) -> Done:
    return images("build", file, "--on", machine.url, *words)


def test_a_build_on_another_machine(images: Images, machine: Machine) -> None:
    """Context and events go over SSH; the image is on that engine, and nothing else is left there."""
    file = images.file("echo built there", more='pip = ["six"]\n')

    first, second = _build(images, machine, file, "--json"), _build(images, machine, file)

    assert (first.status, second.status) == (0, 0), first.err
    (result,) = first.of("result")
    assert images.has(result["tag"])
    assert result["built"]
    assert [event["line"] for event in first.of("output") if "built there" in event["line"]]
    assert f"{result['tag']}  {file}: exists" in second.out
    assert machine.left == []


def test_secrets_go_there_as_files_and_leave(images: Images, machine: Machine) -> None:
    """A secret is mounted in the build; it is on no command line, in no output, no layer, and not left there."""
    canary = secrets.token_hex(16)
    # the arguments of every process of the machine, as a step with the host's process list would see them
    file = images.file("test $(wc -c < /run/secrets/TOKEN) = 32", more='secrets = ["TOKEN"]\n')

    done = images("build", file, "--on", machine.url, "--json", TOKEN=canary)

    assert done.status == 0, done.err
    (result,) = done.of("result")
    image = images.engine.images.get(result["tag"])
    assert canary not in str(image.history()) + str(image.attrs) + done.out + done.err
    assert not any(canary.encode() in chunk for chunk in image.save())
    assert machine.left == []


def test_packages_from_a_folder_of_this_machine(images: Images, machine: Machine, tmp_path: Path) -> None:
    """They reach the build through the SSH connection; its address is in no layer, and the port is closed again."""
    name = f"onlyhere{secrets.token_hex(4)}"
    make_wheel(tmp_path / "wheels", name, "1.0")
    file = images.file(f"python -c 'import {name}; print({name}.version)'", more=f'pip = ["{name}"]\n')

    done = images("build", file, "--on", machine.url, "--json", PIP_FIND_LINKS=str(tmp_path / "wheels"))

    assert done.status == 0, done.err
    (result,) = done.of("result")
    assert [event["line"] for event in done.of("output")][-1] == "1.0"
    history = str(images.engine.images.get(result["tag"]).history())
    assert str(tmp_path / "wheels") not in history + done.out + done.err
    assert machine.left == []


def test_a_build_there_is_pushed_from_there(images: Images, machine: Machine) -> None:
    """The registry's digest is the result; the image leaves that machine's engine, and this one needs none."""
    where = f"{REGISTRY}/remote-{secrets.token_hex(3)}/x"
    file = images.file("echo pushed")

    done = _build(images, machine, file, "--push", where, "--json")
    again = _build(images, machine, file, "--push", where, "--json")

    assert done.status == 0, done.err
    (result,) = done.of("result")
    assert result["built"]
    assert result["reference"].startswith(f"{where}@sha256:")
    (known,) = again.of("result")
    assert (known["built"], known["reference"]) == (False, result["reference"])
    images.tags.append(f"{where}:{result['tag'].rpartition(':')[2]}")


def test_a_registry_that_refuses_is_blamed(images: Images, machine: Machine, site: Site) -> None:
    """Not the machine, which is reached with a key and host keys that are named with it, as for `--at`."""
    site.configure("")
    place = f"{machine.url}?key={site.key}&known_hosts={machine.known}"

    done = images("build", images.file(), "--on", place, "--push", "127.0.0.1:9/a/b")

    assert done.status == 4
    assert f"The registry 127.0.0.1:9 refused or failed when the Docker engine at {machine.url} was asked" in done.err


def test_a_failing_step_there(images: Images, machine: Machine) -> None:
    """The error is the same as of a build here."""
    done = _build(images, machine, images.file("echo far away; exit 3"))

    assert done.status == 4
    assert "asked for by your run=" in done.err
    assert "far away" in done.err
    assert machine.left == []


def test_interrupt_ends_the_build_there(images: Images, machine: Machine) -> None:
    """Ctrl-C here stops the command there, and its folder goes."""
    command = [*SKYWARD, "build", str(images.file("sleep 600")), "--on", machine.url, "--json"]
    client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert client.stdout
    assert any('"start"' in line and "sleep 600" in line for line in client.stdout)
    assert len(machine.left) == 1

    client.send_signal(signal.SIGINT)
    _, err = client.communicate(timeout=60)

    assert client.returncode == 130
    assert "Traceback" not in err
    assert machine.left == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"127.0.0.1": "localhost"}, "Its host key is not known here"),
        ({getpass.getuser(): "nobody"}, "It accepts none of this user's keys"),
    ],
    ids=["host key", "user"],
)
def test_a_machine_that_does_not_let_us_in(
    images: Images, machine: Machine, change: dict[str, str], reason: str
) -> None:
    """Nobody is asked for anything; the error says what to do by hand."""
    url = machine.url
    for old, new in change.items():
        url = url.replace(old, new)

    done = images("build", images.file(), "--on", url)

    assert done.status == 5
    assert reason in done.err
    assert images("build", images.file(), "--on", url, "--check").status == 3
