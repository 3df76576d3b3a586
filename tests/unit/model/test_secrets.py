"""Secret variables: read by name, never shown."""

from __future__ import annotations

from typing import Any

import pytest

from skyward.errors import ConfigError
from skyward.model.secrets import Secrets

CANARY = "a-value-nobody-may-see"


def test_names_are_read_from_the_environment() -> None:
    """Values that are given are taken as they are."""
    by_name, by_value = Secrets.of(["TOKEN"]), Secrets.of({"TOKEN": "given"})

    assert by_name.read({"TOKEN": CANARY}) == {"TOKEN": CANARY}
    assert by_value.read({"TOKEN": CANARY}) == {"TOKEN": "given"}


@pytest.mark.parametrize("environment", [{}, {"TOKEN": ""}])
def test_what_is_not_set_is_named(environment: dict[str, str]) -> None:
    """All that is missing, and what to do."""
    with pytest.raises(ConfigError, match=r"secrets: TOKEN, OTHER are not set.*Export"):
        Secrets.of(["TOKEN", "OTHER", "HOME"]).read({"HOME": "/", **environment})


@pytest.mark.parametrize(
    "wrong",
    [
        "TOKEN",
        b"TOKEN",
        3,
        None,
        ["A B"],
        ["A=1"],
        [3],
        ["COMPUTE_POOL"],
        ["SKYWARD_RUNNER"],
        {"TOKEN": 3},
        {"T": None},
    ],
)
def test_what_is_no_secret_is_refused(wrong: Any) -> None:
    """A string is no list of names, and the pool's own variables are nobody's."""
    with pytest.raises(ConfigError, match=r"^secrets"):
        Secrets.of(wrong)


def test_errors_and_representations_show_no_value() -> None:
    """Not of a string given by mistake either, which may be the secret itself."""
    secrets = Secrets.of({"TOKEN": CANARY})
    with pytest.raises(ConfigError) as error:
        Secrets.of({"TOKEN": CANARY + "\0"})
    with pytest.raises(ConfigError) as other:
        Secrets.of(CANARY)
    with pytest.raises(ConfigError, match="entry 1 is not a name") as third:
        Secrets.of(["HOME", f"TOKEN={CANARY}"])

    assert CANARY not in f"{secrets!r} {secrets} {error.value} {other.value} {third.value}"
    assert "TOKEN" in repr(secrets)
