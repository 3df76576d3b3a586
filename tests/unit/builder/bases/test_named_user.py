"""The user that a Dockerfile names."""

from __future__ import annotations

import pytest

from skyward.builder.bases.dockerfile import named_user


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
    ],
)
def test_the_last_of_the_stage_counts(text: str, target: str | None, user: str) -> None:
    """A stage begins without one, as far as the text can tell; a variable's value is not known."""
    assert named_user(text, target) == user
