"""Names of images are read by Docker's rules."""

from __future__ import annotations

import pytest

from skyward.builder.registry.reference import Reference, parse_reference, with_tag
from skyward.errors import ConfigError

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "registry", "repository", "tag", "digest"),
    [
        ("python", "docker.io", "library/python", "latest", ""),
        ("python:3.11-slim", "docker.io", "library/python", "3.11-slim", ""),
        ("nvidia/cuda", "docker.io", "nvidia/cuda", "latest", ""),
        ("docker.io/python", "docker.io", "library/python", "latest", ""),
        ("docker.io/library/python:3", "docker.io", "library/python", "3", ""),
        ("index.docker.io/team/x", "docker.io", "team/x", "latest", ""),
        ("localhost/x", "localhost", "x", "latest", ""),
        ("localhost:5000/x:1", "localhost:5000", "x", "1", ""),
        ("127.0.0.1:5000/a/b/c:v1.0_x-y", "127.0.0.1:5000", "a/b/c", "v1.0_x-y", ""),
        ("[::1]:5000/x", "[::1]:5000", "x", "latest", ""),
        ("Registry/x", "Registry", "x", "latest", ""),
        ("registry.example.com/x", "registry.example.com", "x", "latest", ""),
        ("registry.example.com:443/team/sky_ward:t", "registry.example.com:443", "team/sky_ward", "t", ""),
        ("ghcr.io/a.b/c__d/e---f", "ghcr.io", "a.b/c__d/e---f", "latest", ""),
        (f"x@{DIGEST}", "docker.io", "library/x", "", DIGEST),
        (f"r.io/x:1@{DIGEST}", "r.io", "x", "1", DIGEST),
        ("team:5000/x", "team:5000", "x", "latest", ""),
        ("a/b:" + "t" * 128, "docker.io", "a/b", "t" * 128, ""),
        (
            "123456789012.dkr.ecr.eu-west-1.amazonaws.com/sky:1",
            "123456789012.dkr.ecr.eu-west-1.amazonaws.com",
            "sky",
            "1",
            "",
        ),
    ],
)
def test_parts(text: str, registry: str, repository: str, tag: str, digest: str) -> None:
    """Registry, library folder and "latest" are filled in; ports are not tags."""
    found = parse_reference(text)

    assert (found.registry, found.repository, found.tag, found.digest) == (registry, repository, tag, digest)
    assert parse_reference(str(found)) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a repository"),
        (" ", "not a repository"),
        ("Python", "not a repository"),
        ("a//b", "not a repository"),
        ("a/b/", "not a repository"),
        ("/a", "not a repository"),
        ("a_/b", "not a repository"),
        ("a___b", "not a repository"),
        ("a..b", "not a repository"),
        ("r.io/" + "x" * 251, "not a repository"),
        ("r.io", None),
        ("r_x.io/a", "not a registry"),
        ("-r.io/a", "not a registry"),
        ("r.io:/a", "not a registry"),
        ("r.io:port/a", "not a registry"),
        ("x:", "not a tag"),
        ("x:.1", "not a tag"),
        ("x:a b", "not a tag"),
        ("x:1\n", "not a tag"),
        ("x:" + "t" * 129, "not a tag"),
        ("x:1:2", "not a tag"),
        ("x@", "64 hexadecimal"),
        ("x@sha256:12", "64 hexadecimal"),
        (f"x@{DIGEST.upper()}", "64 hexadecimal"),
        ("ftp://r.io/x", "cannot stand in front"),
    ],
)
def test_what_is_no_reference(text: str, why: str | None) -> None:
    """The message says which part is wrong."""
    if why is None:  # a host alone is a repository of the hub's, for Docker too
        assert parse_reference(text).registry == "docker.io"
        return
    with pytest.raises(ConfigError, match=why):
        parse_reference(text)


def test_a_password_is_not_repeated() -> None:
    """Who writes credentials into a name does not find them in the error."""
    with pytest.raises(ConfigError) as caught:
        parse_reference("https://me:canary@r.io/x")

    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("python", "https://registry-1.docker.io"),
        ("r.io/x", "https://r.io"),
        ("http://r.io/x", "http://r.io"),
        ("localhost:5000/x", "http://localhost:5000"),
        ("127.1.2.3/x", "http://127.1.2.3"),
        ("[::1]:5000/x", "http://[::1]:5000"),
        ("https://localhost:5000/x", "https://localhost:5000"),
        ("10.0.0.1:5000/x", "https://10.0.0.1:5000"),
        ("localhost.example.com/x", "https://localhost.example.com"),
    ],
)
def test_plain_http_is_for_loopback_or_by_request(text: str, url: str) -> None:
    """Only this machine itself, or a registry given with http://, is spoken to without TLS."""
    assert parse_reference(text).url == url


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("r.io/team/x", "r.io/team/x:sky-1"),
        ("r.io:5000/x", "r.io:5000/x:sky-1"),
        ("http://r.io/x", "http://r.io/x:sky-1"),
        ("r.io/x:mine", "r.io/x:mine"),
        ("r.io/x:latest", "r.io/x:latest"),
        (f"r.io/x@{DIGEST}", f"r.io/x@{DIGEST}"),
    ],
)
def test_a_tag_is_put_where_none_is(where: str, expected: str) -> None:
    """A tag of the user's own is kept."""
    assert with_tag(where, "sky-1") == expected


def test_at() -> None:
    """By digest the tag is gone."""
    assert str(parse_reference("r.io/x:1").at(DIGEST)) == f"r.io/x@{DIGEST}"
    assert isinstance(hash(parse_reference("x")), int)
    assert Reference(registry="r.io", repository="x", tag="1").wanted == "1"


@pytest.mark.parametrize("front", ["", "https://", "http://"])
@pytest.mark.parametrize("login", ["ann:pass-word", "ann:pass@word", "pass-word"])
def test_a_login_in_a_name_is_refused_unseen(front: str, login: str) -> None:
    """Names stand in messages, labels and records."""
    with pytest.raises(ConfigError, match="docker login") as caught:
        parse_reference(f"{front}{login}@r.io:5000/team/x:t")
    assert f"'{front}***@r.io:5000/team/x:t'" in str(caught.value)
    assert "word" not in str(caught.value)
