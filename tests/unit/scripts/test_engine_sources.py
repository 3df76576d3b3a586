"""Reducing a machine's apt sources to its distribution's."""

from pathlib import Path

import pytest

from scripts.engine import sources
from scripts.engine.console import SetupError

DEB822 = """\
# the distribution
Types: deb deb-src
URIs: http://mirror.example.org/debian
Suites: bookworm bookworm-updates trixie
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc

Types: deb
URIs: https://other.example.org/apt
Suites: nodistro
Components: main

Types: deb
Enabled: no
URIs: http://mirror.example.org/debian
Suites: bookworm-backports
Components: main

Types: deb-src
URIs: http://mirror.example.org/debian
Suites: bookworm
Components: main
"""


def test_deb822_keeps_the_releases_binary_stanzas() -> None:
    """Foreign suites, source packages and disabled stanzas go; a key inside the file stays."""
    assert sources.from_deb822(DEB822, "bookworm") == [
        "Types: deb\nUris: http://mirror.example.org/debian\nSuites: bookworm bookworm-updates\nComponents: main\n"
        "Signed-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n"
    ]


def test_one_line_entries() -> None:
    """Options become fields; comments, source lines and other releases go."""
    text = (
        "# deb http://a.example.org/debian bookworm main\n"
        "deb-src http://a.example.org/debian bookworm main\n"
        "deb [arch=amd64,arm64 signed-by=/usr/share/keyrings/k.gpg] http://a.example.org/debian bookworm main contrib\n"
        "deb http://b.example.org/debian bookworm/updates main # security\n"
        "deb http://c.example.org/apt stable main\n"
    )

    assert sources.from_one_line(text, "bookworm") == [
        "Types: deb\nUris: http://a.example.org/debian\nSuites: bookworm\nComponents: main contrib\n"
        "Architectures: amd64 arm64\nSigned-By: /usr/share/keyrings/k.gpg\n",
        "Types: deb\nUris: http://b.example.org/debian\nSuites: bookworm/updates\nComponents: main\n",
    ]


def test_all_files_of_a_machine_are_read_once(tmp_path: Path) -> None:
    """Both formats count, an entry given twice counts once, other files are not sources."""
    (tmp_path / "sources.list.d").mkdir()
    line = "deb http://a.example.org/debian bookworm main\n"
    (tmp_path / "sources.list").write_text(line * 2)
    (tmp_path / "sources.list.d" / "old.list").write_text(line)
    (tmp_path / "sources.list.d" / "off.list.disabled").write_text(line.replace("a.ex", "z.ex"))
    (tmp_path / "sources.list.d" / "debian.sources").write_text(DEB822)

    text = sources.machine_sources("bookworm", tmp_path)

    assert [line.removeprefix("Uris: ") for line in text.splitlines() if line.startswith("Uris")] == [
        "http://a.example.org/debian",
        "http://mirror.example.org/debian",
    ]


def test_nothing_to_make_a_base_from(tmp_path: Path) -> None:
    """A machine whose sources do not name its release is told which one is missing."""
    assert sources.machine_sources("bookworm", tmp_path) == ""
    with pytest.raises(SetupError, match="names the release bookworm"):
        sources.check("", "bookworm")


def test_a_password_never_enters_an_image() -> None:
    """A source with a user name in its address is refused, and the message does not repeat the password."""
    with pytest.raises(SetupError, match=r"apt source at a\.example\.org") as caught:
        sources.check("Uris: https://ann:secret@a.example.org/debian\n", "bookworm")
    assert "secret" not in str(caught.value)
