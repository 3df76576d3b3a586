"""Forwards of the connection by paramiko, without a server."""

from __future__ import annotations

import socket
from contextlib import closing

import paramiko
import pytest
from paramiko.ssh_exception import SSHException

from skyward.ssh import paramiko_client


def test_a_forward_over_a_transport_that_has_ended_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: nobody tells of the end of a channel that is added after that of its transport."""
    monkeypatch.setattr(paramiko_client, "CONNECT_S", 3600.0)
    near, far = socket.socketpair()
    with closing(near), closing(far), pytest.raises(SSHException):
        paramiko_client._open_unix_channel(paramiko.Transport(near), "/nowhere")
