"""Machines reached by SSH: their addresses, and what is run to reach them."""

from __future__ import annotations

import shlex

import pytest

from skyward.errors import ConfigError
from skyward.model.ssh import SshHost


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("ssh://box", SshHost(host="box")),
        ("ssh://me@box.example.com:2222", SshHost(host="box.example.com", user="me", port=2222)),
        ("ssh://me@[fe80::1]", SshHost(host="fe80::1", user="me")),
    ],
    ids=["alias", "full", "ipv6"],
)
def test_an_address_is_read_and_written(url: str, host: SshHost) -> None:
    """User and port are optional."""
    assert SshHost.parse(url) == host
    assert host.url == url


@pytest.mark.parametrize(
    "url",
    [
        "box",
        "tcp://box",
        "ssh://",
        "ssh://box/path",
        "ssh://box:x",
        "ssh://-oProxyCommand=x",
        "ssh://-l@box",
        "ssh://a b",
    ],
)
def test_anything_else_is_refused(url: str) -> None:
    """What ssh could take for an option, above all."""
    with pytest.raises(ConfigError, match="ssh://user@host"):
        SshHost.parse(url)


def test_a_password_is_refused_and_not_shown() -> None:
    """Keys only."""
    with pytest.raises(ConfigError, match="logs in with a key") as caught:
        SshHost.parse("ssh://me:s3cret@box")
    assert "s3cret" not in str(caught.value)


def test_words_arrive_as_they_are() -> None:
    """Each word is one argument on the other machine, whatever is in it."""
    words = ["echo", "a b", "$HOME", "it's"]

    host, line = SshHost(host="box").command(*words)[-2:]

    assert host == "box"
    assert shlex.split(line) == words


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ("me@box: Permission denied (publickey).", "none of this user's keys"),
        ("permission denied while trying to connect to the Docker daemon socket", "group docker"),
        ("Cannot connect to the Docker daemon at unix:///x", "does not run"),
        ("sh: 1: docker: not found", "no docker command"),
        ("ssh: Could not resolve hostname box", "cannot be resolved"),
        ("ssh: connect to host box port 22: Connection refused", "the SSH connection failed"),
        ("No ED25519 host key is known for box and you have requested strict checking.", "host key is not known"),
    ],
)
def test_what_ssh_says_is_explained(said: str, meaning: str) -> None:
    """Each way to fail has its remedy."""
    error = SshHost(host="box").failure(f"{said}\n")
    assert error
    assert meaning in str(error)


@pytest.mark.parametrize("path", ['/a "b"', "/a\\b", "/${HOME}/x", "/a\nb"])
def test_names_of_files_that_ssh_would_read_as_something_else_are_refused(path: str) -> None:
    """A variable, the end of a quote; but spaces and percent signs are what they are."""
    with pytest.raises(ConfigError, match="cannot be given to ssh"):
        SshHost(host="box", known_hosts=path)
    words = SshHost(host="box", key="/k 1%h", known_hosts="/a 100%h").command("true")
    assert words[words.index("-i") + 1] == "/k 1%%h"
    assert 'UserKnownHostsFile="/a 100%%h"' in words
