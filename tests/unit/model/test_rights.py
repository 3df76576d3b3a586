"""The rights of containers as a caller asks for them."""

from __future__ import annotations

import pytest

import skyward as sky
from skyward.errors import ConfigError
from skyward.model.rights import Rights
from skyward.nodes.container import user_of


@pytest.mark.parametrize(
    ("user", "privileges", "said"),
    [
        (0, (), r"user is a string, .*found 0\."),
        ("", (), r"user is a string"),
        ("a:b:c", (), r"user is a string"),
        ("-u", (), r"user is a string"),
        (None, "SYS_PTRACE", r"privileges is a list of capabilities.*found 'SYS_PTRACE'"),
        (None, [1], r"privileges is a list"),
        (None, None, r"privileges is a list"),
        (None, ["SYS-PTRACE"], r"'SYS-PTRACE', which is not a capability of Linux\."),
    ],
)
def test_what_is_no_right_is_refused(user: object, privileges: object, said: str) -> None:
    """Before anything is created, by the name of the provider."""
    for provider in (sky.Docker, lambda **given: sky.SSH("host", **given), sky.AWS):
        with pytest.raises(ConfigError, match=rf"^sky\.(Docker|SSH|AWS): .*{said}"):
            provider(user=user, privileges=privileges)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "of_image", "client", "user"),
    [
        (None, "", (0, 0), "10001:10001"),  # root is nobody to run functions as
        (None, "", (1000, 100), "1000:100"),
        (None, "app", (0, 0), None),
        (None, "root", (1000, 100), None),
        ("root", "app", (1000, 100), "root"),
    ],
)
def test_whom_programs_run_as(asked: str | None, of_image: str, client: tuple[int, int], user: str | None) -> None:
    """Whom the caller says, else whom the image says, else the caller, who is never root."""
    assert user_of(Rights(asked), of_image, client) == user
