"""What a user's Dockerfile names: images that it takes from registries, what it starts from, and the user."""

from __future__ import annotations

import pytest

from skyward.builder.dockerfile import images_of, named_user, parent_of


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
        ("FROM a AS Build\nFROM build\nCOPY --from=BUILD /x /y", {"a"}),
        ("FROM a\nRUN python - <<EOF\nfrom os import path\nEOF\nCOPY --from=b /x /y", {"a", "b"}),
        ("FROM a\nRUN x <<'A.sh' 3<<-\"B\" && y\nB\nfrom c\nA.sh\nfrom d\n\tB\nCOPY --from=b /x /y", {"a", "b"}),
        ("FROM a\nRUN x \\\n# and\n\n  from c <<<EOF\nLABEL a=1 b=<<EOF <<EOF\nCOPY --from=b /x /y", {"a", "b"}),
    ],
)  # fmt: skip
def test_images_of_a_dockerfile(text: str, images: set[str]) -> None:
    """Of FROM, --from, mounts and the syntax line, not of heredocs; stages, numbers, and open variables are none."""
    assert images_of(text) == images


@pytest.mark.parametrize(
    ("text", "target", "user"),
    [
        ("FROM a\nRUN x\n", None, ""),
        ("FROM a\nUSER root\nRUN x\nuser app:100\n", None, "app:100"),
        ("FROM a AS one\nUSER app\nFROM b\nRUN USER=x y\n", None, ""),
        ("FROM a AS one\nUSER app\nFROM b AS two\nUSER other\n", "one", "app"),
        ("FROM a AS one\nFROM b AS two\nUSER other\n", "one", ""),
        ("FROM --platform=x a as one\nUSER \\\n  app\n", "one", "app"),
        ("ARG WHO=app\nFROM a\nUSER $WHO\n", None, ""),
        ("FROM a AS One\nUSER app\nFROM one\nRUN x\n", None, "app"),
        ("FROM a AS One\nUSER app\nFROM b\n", "one", "app"),
        ("FROM a\nUSER app\nCOPY <<EOF /x\nUSER root\nFROM b\nEOF\n", None, "app"),
    ],
)
def test_the_last_of_the_stage_counts(text: str, target: str | None, user: str) -> None:
    """A stage begins with that of the stage below it, else without one; a variable's value is not known."""
    assert named_user(text, target) == user


@pytest.mark.parametrize(
    ("text", "target", "parent"),
    [
        ("FROM debian:12\nRUN true", None, "debian:12"),
        ("ARG TAG=12\nFROM --platform=linux/amd64 debian:${TAG} AS a\nFROM a as b\nFROM scratch", "b", "debian:12"),
        ("FROM one AS a\nFROM two\nCOPY --from=a / /", None, "two"),
        ("FROM $OPEN", None, ""),
        ("FROM scratch", None, ""),
    ],
)
def test_what_a_dockerfile_starts_from(text: str, target: str | None, parent: str) -> None:
    """The image below its last stage, or below the one that is named."""
    assert parent_of(text, target) == parent
