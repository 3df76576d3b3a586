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


@pytest.mark.parametrize(
    ("url", "expected", "questions"),
    [
        ("https://ann@a.example/simple", "https://ann:p%20w%2F1@a.example/simple", 1),
        ("https://me%40work@b.example:8443/x", "https://me%40work:two@b.example:8443/x", 2),
        ("https://bob@a.example/simple", "https://bob@a.example/simple", 2),
        ("https://a.example/simple", "https://a.example/simple", 0),
        ("https://ann:own@a.example/simple", "https://ann:own@a.example/simple", 0),
        ("/srv/wheels", "/srv/wheels", 0),
    ],
)
def test_passwords_of_urls(keyring: Path, url: str, expected: str, questions: int) -> None:
    """The address is asked for before the host, as uv does; only a user without a password is asked for."""
    assert with_password(url) == expected
    assert len(keyring.read_text().splitlines() if keyring.exists() else []) == questions


def test_a_site_with_a_keyring(keyring: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes and mirrors get their passwords, where the settings name a keyring; else nobody is asked."""
    ann, environ = "https://ann@a.example/simple", {"UV_KEYRING_PROVIDER": "subprocess"}
    environ |= {"UV_INDEX": ann, "SKYWARD_INDEXES": f'{{"https://c.example": "{ann}"}}'}
    known = "https://ann:p%20w%2F1@a.example/simple"
    site = read_site(environ, tmp_path, tmp_path)
    assert (site.indexes.extra, site.mirrors) == ((known,), (("https://c.example", known),))
    keyring.unlink()
    assert read_site(environ | {"UV_KEYRING_PROVIDER": ""}, tmp_path, tmp_path).indexes.extra == (ann,)
    assert not keyring.exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"keyring, which has the password for a.example, does not answer"):
        with_password(ann)
