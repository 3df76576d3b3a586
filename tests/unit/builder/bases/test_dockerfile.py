"""Which images a user's Dockerfile takes from registries."""

from __future__ import annotations

import pytest

from skyward.builder.bases.dockerfile import images_of


@pytest.mark.parametrize(
    ("text", "images"),
    [
        ("FROM r.io/a:1", {"r.io/a:1"}),
        ("FROM --platform=linux/amd64 r.io/a:1 AS b\nFROM b\nFROM scratch", {"r.io/a:1"}),
        ("ARG R=r.io\nARG V\nFROM ${R}/a:$V", set()),
        ("ARG R=r.io V='2'\nFROM ${R}/a:$V\nARG R=other\nFROM $R/b", {"r.io/a:2", "r.io/b"}),
        ("FROM ${BASE:-r.io/a:1}", {"r.io/a:1"}),
        ("# syntax=s.io/d:1\nFROM a\nCOPY --from=r.io/b:1 /x /y\nCOPY --from=0 /x /y", {"s.io/d:1", "a", "r.io/b:1"}),
        ("FROM a AS c\nRUN --mount=type=bind,from=r.io/t,target=/t \\\n --mount=type=cache,from=c x", {"a", "r.io/t"}),
        ("from \\\n r.io/a:1", {"r.io/a:1"}),
    ],
)  # fmt: skip
def test_images_of_a_dockerfile(text: str, images: set[str]) -> None:
    """Of FROM, --from, mounts and the syntax line; stages, numbers, and variables without a value are none."""
    assert images_of(text) == images
