"""What machines of EC2 are told when they start, and the host keys by which they are known."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyward.providers.aws import host_key
from skyward.providers.aws.boot import Keys
from tests.waiting import wait_until


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    made = Keys(tmp_path)
    made.make()
    return made


def test_user_data_holds_what_a_machine_must_know(keys: Keys) -> None:
    """Its first host key, who may log in, the guard; the private key to log in with is not in it."""
    first = keys.first_key(0)
    text = keys.user_data(first, lease_s=300)

    kind, _, document = text.partition("\n")
    config = json.loads(document)
    assert kind == "#cloud-config"
    assert len(text) < 16_000  # what EC2 takes
    assert keys.file.read_text() not in text
    assert config["ssh_keys"]["ed25519_private"].startswith("-----BEGIN OPENSSH PRIVATE KEY-----")
    assert config["users"][0]["ssh_authorized_keys"] == [keys.file.with_suffix(".pub").read_text().strip()]
    unit = next(file["content"] for file in config["write_files"] if file["path"].endswith(".service"))
    assert "ExecStartPre=/usr/bin/install -d -m 0700 -o skyward /run/skyward/skyward\n" in unit
    assert "/usr/local/sbin/skyward-guard /run/skyward/skyward/pools /run/skyward-guard 600 60" in unit
    assert keys.file.stat().st_mode & 0o777 == 0o600


def test_a_launch_has_a_first_host_key_for_its_first_connections(keys: Keys) -> None:
    """In a file of its own, and each launch another; of the private half nothing is kept on disk."""
    first, later = keys.first_key(0), keys.first_key(1)
    config = json.loads(keys.user_data(first, 60).partition("\n")[2])
    first.trust(["10.0.0.2", "10.0.0.1"])

    public = " ".join(config["ssh_keys"]["ed25519_public"].split()[:2])
    assert first.known_hosts.read_text().splitlines() == [f"10.0.0.1 {public}", f"10.0.0.2 {public}"]
    assert first.private != later.private
    assert first.private not in repr(first)
    assert keys.known_hosts.read_text() == ""
    kept = [path.read_text() for path in keys.folder.iterdir()]
    assert not any(key.private in text for text in kept for key in (first, later))


def test_only_keys_that_machines_have_made_are_trusted(keys: Keys) -> None:
    """One at each address: a machine that has another's address later has its own."""
    keys.trust({"10.0.0.2": "ssh-ed25519 BBBB", "10.0.0.1": "ssh-ed25519 AAAA"})
    keys.trust({"10.0.0.1": "ssh-ed25519 CCCC"})

    assert keys.known_hosts.read_text() == "10.0.0.1 ssh-ed25519 CCCC\n"


@pytest.mark.parametrize(("settings", "word"), [({}, "closed"), ({"open_metadata": True}, "open")])
def test_the_metadata_service_is_closed_unless_a_profile_is_asked_for(
    keys: Keys, settings: dict[str, bool], word: str
) -> None:
    """The service of the machine is told so, and runs under the name that is looked for."""
    config = json.loads(keys.user_data(keys.first_key(0), 60, **settings).partition("\n")[2])
    (unit,) = (file for file in config["write_files"] if file["path"].endswith("skyward-metadata.service"))
    assert f"skyward-metadata /run/skyward-metadata {word}\n" in unit["content"]
    assert ["systemctl", "enable", "--now", "skyward-metadata.service"] in config["runcmd"]


class Rotation:
    """The script that gives a machine its own host key, at work on files of a test."""

    def __init__(self, folder: Path) -> None:
        self.key, self.place, self.reloads = folder / "ssh_host_key", folder / "place", folder / "reloads"
        self._bin = folder / "bin"
        self._bin.mkdir()
        systemctl = self._bin / "systemctl"
        systemctl.write_text(f'#!/bin/sh\necho "$@" >>{self.reloads}\n[ "$2" = ssh ]\n')  # a Debian, of old
        systemctl.chmod(0o755)
        self.key.write_text("first\n")
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        user = pwd.getpwuid(os.getuid()).pw_name
        words = ["sh", "-c", host_key.SCRIPT, "sh", str(self.key), str(self.place), user]
        self._processes.append(subprocess.Popen(words, env={"PATH": f"{self._bin}:/usr/bin:/bin"}))
        return self._processes[-1]

    def public(self) -> str:
        wait_until(lambda: (self.place / "public").exists(), 30)
        return (self.place / "public").read_text()

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def rotation(tmp_path: Path) -> Iterator[Rotation]:
    made = Rotation(tmp_path)
    yield made
    made.end()


def test_a_machine_makes_a_host_key_and_takes_it_when_it_is_trusted(rotation: Rotation) -> None:
    """Not before, since the client could not come back; from then on nothing is left of the first one."""
    process = rotation.start()
    public = rotation.public()
    assert host_key.public_key(public) == " ".join(public.split()[:2])
    assert rotation.key.read_text() == "first\n"
    assert (rotation.place / "client").stat().st_mode & 0o777 == 0o700

    (rotation.place / "client" / "trusted").touch()
    assert process.wait(30) == 0
    said = subprocess.run(["ssh-keygen", "-y", "-f", rotation.key], capture_output=True, text=True, check=True)
    assert said.stdout.split()[:2] == public.split()[:2]
    assert rotation.key.stat().st_mode & 0o777 == 0o600
    assert rotation.reloads.read_text().splitlines() == ["reload sshd", "reload ssh"]
    assert not any("next" in path.name for path in rotation.key.parent.iterdir())


def test_a_machine_keeps_its_host_key_when_it_starts_again(rotation: Rotation) -> None:
    """Its client trusts no other. One that starts again before that makes another, which can still be learned."""
    rotation.start()
    early = rotation.public()
    rotation.end()
    (rotation.place / "public").unlink()
    process = rotation.start()
    public = rotation.public()
    assert public != early
    (rotation.place / "client" / "trusted").touch()
    assert process.wait(30) == 0

    mine = rotation.key.read_text()
    assert rotation.start().wait(30) == 0
    assert rotation.key.read_text() == mine


@pytest.mark.parametrize(
    "said",
    ["", "guard engine\n", "ssh-rsa AAAA\n", f"ssh-ed25519 {'A' * 67}\n", f"ssh-ed25519 {'A' * 68}\n* ssh-ed25519 A"],
)
def test_what_is_no_host_key_is_not_trusted(said: str) -> None:
    """It would become a line of known_hosts."""
    assert host_key.public_key(said) is None


def test_a_host_key_may_come_after_what_a_shell_prints() -> None:
    """And its comment is no part of it."""
    assert host_key.public_key(f"hello\nssh-ed25519 {'A' * 68} skyward\n") == f"ssh-ed25519 {'A' * 68}"
