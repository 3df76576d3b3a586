"""What becomes of forwards that an SSH connection cannot make; the connection itself is tried end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward.engine import ssh
from skyward.engine.ssh import SshConnection
from skyward.errors import ProviderError
from skyward.model.ssh import SshHost


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
    monkeypatch.setattr(ssh, "_FORWARD_S", 0.5)
    connection = SshConnection(SshHost.parse("ssh://ada@machine"), tmp_path, "cat")
    try:
        with pytest.raises(ProviderError, match=rf"/run/docker\.sock on ada@machine cannot be reached.*: {words}"):
            connection.forward("/run/docker.sock")
    finally:
        connection.close()
