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
        ("docker.io/library/python:3", "docker.io", "library/python", "3", ""),
        ("index.docker.io/team/x", "docker.io", "team/x", "latest", ""),
        ("r.io", "docker.io", "library/r.io", "latest", ""),
        ("localhost/x", "localhost", "x", "latest", ""),
        ("127.0.0.1:5000/a/b/c:v1.0_x-y", "127.0.0.1:5000", "a/b/c", "v1.0_x-y", ""),
        ("[::1]:5000/x", "[::1]:5000", "x", "latest", ""),
        ("Registry/x", "Registry", "x", "latest", ""),
        ("http://registry.example.com/x", "registry.example.com", "x", "latest", ""),
        ("ghcr.io/a.b/c__d/e---f", "ghcr.io", "a.b/c__d/e---f", "latest", ""),
        (f"x@{DIGEST}", "docker.io", "library/x", "", DIGEST),
        (f"r.io/x:1@{DIGEST}", "r.io", "x", "1", DIGEST),
    ],
)
def test_parts(text: str, registry: str, repository: str, tag: str, digest: str) -> None:
    """Registry, library folder and "latest" are filled in; ports are not tags."""
    found = parse_reference(text)

    assert (found.registry, found.repository, found.tag, found.digest) == (registry, repository, tag, digest)
    assert parse_reference(str(found)) == found


@pytest.mark.parametrize(
    "text",
    ["", "Python", "a//b", "/a", "a___b", "a..b", "-r.io/a", "r.io:port/a", "x:", "x:.1", "x:1\n", "x:" + "t" * 129]
    + ["x:1:2", "x@", "x@sha256:12", f"x@{DIGEST.upper()}", "ftp://r.io/x"],
)
def test_what_is_no_reference(text: str) -> None:
    with pytest.raises(ConfigError, match="is not the name of an image"):
        parse_reference(text)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("r.io/team/x", "r.io/team/x:sky-1"),
        ("r.io:5000/x", "r.io:5000/x:sky-1"),
        ("http://r.io/x", "http://r.io/x:sky-1"),
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
