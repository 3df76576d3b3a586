"""Names of images are read by Docker's rules."""

from __future__ import annotations

import pytest

from skyward.builder.registry.reference import parse_reference, with_tag
from skyward.errors import ConfigError

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "registry", "repository", "tag", "digest"),
    [
        ("python", "docker.io", "library/python", "latest", ""),
        ("python:3.11-slim", "docker.io", "library/python", "3.11-slim", ""),
        ("docker.io/library/python:3", "docker.io", "library/python", "3", ""),
        ("index.docker.io/team/x", "docker.io", "team/x", "latest", ""),
        ("localhost/x", "localhost", "x", "latest", ""),
        ("localhost:5000/x:1", "localhost:5000", "x", "1", ""),
        ("127.0.0.1:5000/a/b/c:v1.0_x-y", "127.0.0.1:5000", "a/b/c", "v1.0_x-y", ""),
        ("[::1]:5000/x", "[::1]:5000", "x", "latest", ""),
        ("Registry/x", "Registry", "x", "latest", ""),
        ("http://registry.example.com/x", "registry.example.com", "x", "latest", ""),
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
        ("Python", "not a repository"),
        ("a//b", "not a repository"),
        ("/a", "not a repository"),
        ("a___b", "not a repository"),
        ("a..b", "not a repository"),
        ("r.io/" + "x" * 251, "not a repository"),
        ("r.io", None),
        ("r_x.io/a", "not a registry"),
        ("-r.io/a", "not a registry"),
        ("r.io:port/a", "not a registry"),
        ("x:", "not a tag"),
        ("x:.1", "not a tag"),
        ("x:1\n", "not a tag"),
        ("x:" + "t" * 129, "not a tag"),
        ("x:1:2", "not a tag"),
        ("x@", "64 hexadecimal"),
        ("x@sha256:12", "64 hexadecimal"),
        (f"x@{DIGEST.upper()}", "64 hexadecimal"),
        ("ftp://r.io/x", "not a registry"),
    ],
)
def test_what_is_no_reference(text: str, why: str | None) -> None:
    """The message says which part is wrong."""
    if why is None:  # a host alone is a repository of the hub's, for Docker too
        assert parse_reference(text).registry == "docker.io"
        return
    with pytest.raises(ConfigError, match=why):
        parse_reference(text)


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


@pytest.mark.parametrize("front", ["", "https://", "http://"])
@pytest.mark.parametrize("login", ["ann:pass-word", "ann:pass@word", "pass-word"])
def test_a_login_in_a_name_is_refused_unseen(front: str, login: str) -> None:
    """Names stand in messages, labels and records."""
    with pytest.raises(ConfigError, match="docker login") as caught:
        parse_reference(f"{front}{login}@r.io:5000/team/x:t")
    assert f"'{front}***@r.io:5000/team/x:t'" in str(caught.value)
    assert "word" not in str(caught.value)
