"""Forwards that fail, and configurations that paramiko cannot honour; connections themselves are tested end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward.errors import ProviderError
from skyward.model.ssh import SshHost
from skyward.ssh import connection as ssh_connection
from skyward.ssh.connection import OpenSshConnection
from skyward.ssh.paramiko_client import route


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("echo 'Port forwarding failed.' >&2; exit 255", r"Port forwarding failed\. .*AllowStreamLocalForwarding"),
        ("exec sleep 60", r"there was no answer within 0\.5 s\. .*AllowStreamLocalForwarding"),
    ],
    ids=["refused", "no answer"],
)
def test_a_forward_that_is_not_made_is_named(
    answer: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the machine, the socket that was asked for, and what may be the matter."""
    program = tmp_path / "ssh"
    program.write_text(f'#!/bin/sh\ncase "$*" in *"-O forward"*) {answer} ;; esac\nexec cat\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(ssh_connection, "_FORWARD_S", 0.5)
    connection = OpenSshConnection(SshHost.parse("ssh://ada@machine"), tmp_path, "cat")
    try:
        with pytest.raises(ProviderError, match=rf"/run/docker\.sock on ada@machine cannot be reached.*: {words}"):
            connection.forward("/run/docker.sock")
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Host m*\n  ProxyCommand nc %h %p\n", "option proxycommand"),
        ("Host *\n  RevokedHostKeys /revoked\n", "option revokedhostkeys"),
        ("Host other\n  Include more\n", "inside a Host or Match block"),
        ("Include config\n", "in a circle"),
        ("Host m*\n  ProxyJump machine\n", "circle of jump hosts"),
    ],
)
def test_a_configuration_that_paramiko_cannot_honour_is_refused(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that restricts the way to a machine, or what is trusted, is left out in silence."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text(text)
    with pytest.raises(ProviderError, match=words):
        route(SshHost(host="machine"))


def test_paramiko_goes_by_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each machine on the way with its own name, user and port; options outside of blocks count after an Include."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "more").write_text("Host outer\n  HostName 192.0.2.1\n  User ada\n")
    (tmp_path / ".ssh" / "config").write_text(
        "Include more\nUser bob\nHost inner\n  HostName 192.0.2.2\n  Port 2222\n  ProxyJump outer:22\n"
    )
    hops = route(SshHost(host="inner", known_hosts="/known"))
    assert [(hop.user, hop.address, hop.name) for hop in hops] == [
        ("ada", ("192.0.2.1", 22), "192.0.2.1"),
        ("bob", ("192.0.2.2", 2222), "[192.0.2.2]:2222"),
    ]
    assert {str(path) for hop in hops for path in hop.known_hosts} == {"/known"}
