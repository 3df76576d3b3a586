"""Passwords from a keyring: what is asked of the command, and what becomes of its answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward.builder.site.indexes import with_password
from skyward.builder.site.settings import read_site
from skyward.errors import ConfigError


@pytest.fixture
def keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A keyring that knows one user at one address and one at a host; gives the file it writes questions to."""
    command, asked = tmp_path / "bin/keyring", tmp_path / "asked"
    command.parent.mkdir()
    command.write_text(
        f"""#!/bin/sh
echo "$@" >> {asked}
case "$*" in
    "get https://a.example/simple ann") echo "p w/1" ;;
    "get b.example:8443 me@work") echo "two" ;;
    *) exit 1 ;;
esac
"""
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:/usr/bin:/bin")
    return asked


def test_the_address_is_asked_for_before_the_host(keyring: Path) -> None:
    """As uv does; a password goes into the address in a form that cannot break it."""
    assert with_password("https://ann@a.example/simple") == "https://ann:p%20w%2F1@a.example/simple"
    assert with_password("https://me%40work@b.example:8443/x") == "https://me%40work:two@b.example:8443/x"
    assert keyring.read_text().splitlines() == [
        "get https://a.example/simple ann",
        "get https://b.example:8443/x me@work",
        "get b.example:8443 me@work",
    ]


@pytest.mark.parametrize("url", ["https://a.example/simple", "https://ann:own@a.example/simple", "/srv/wheels"])
def test_what_names_no_user_or_has_a_password_is_left(keyring: Path, url: str) -> None:
    """Nothing is asked for it."""
    assert with_password(url) == url
    assert not keyring.exists()


def test_nobody_known(keyring: Path) -> None:
    """The address stays as it is; the index will say what it wants."""
    assert with_password("https://bob@a.example/simple") == "https://bob@a.example/simple"


def test_a_site_with_a_keyring(keyring: Path, tmp_path: Path) -> None:
    """Indexes and mirrors get their passwords, where the settings name a keyring; else nobody is asked."""
    ann, environ = "https://ann@a.example/simple", {"UV_KEYRING_PROVIDER": "subprocess"}
    environ |= {"UV_INDEX": ann, "SKYWARD_INDEXES": f'{{"https://c.example": "{ann}"}}'}
    known = "https://ann:p%20w%2F1@a.example/simple"
    site = read_site(environ, tmp_path, tmp_path)
    assert (site.indexes.extra, site.mirrors) == ((known,), (("https://c.example", known),))
    keyring.unlink()
    assert read_site(environ | {"UV_KEYRING_PROVIDER": ""}, tmp_path, tmp_path).indexes.extra == (ann,)
    assert not keyring.exists()


def test_no_keyring_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said what wants it, and what to do."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"'ann' at https://a\.example/simple from a keyring.*no `keyring` command"):
        with_password("https://ann@a.example/simple")
