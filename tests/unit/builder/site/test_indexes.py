"""Package sources of a machine, from made-up homes and environments."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward.builder.site.indexes import Indexes, host_indexes, mirrors, pip_option, with_password
from skyward.builder.site.settings import read_site
from skyward.errors import ConfigError

PRIVATE, MIRROR = "https://private.example/simple", "https://mirror.example/simple"
PYPI = f"https://{'.'.join(('pypi', 'org'))}/simple"
PIP_CONF = """[global]
index-url = https://a.example/simple
extra-index-url = file:///one https://b.example
  https://c.example
cert = /ca.pem
[install]
find-links = /wheels
trusted_host = a.example
"""
UV_TOML = """index-strategy = "first-index"
find-links = ["/flat"]
[[index]]
url = "https://d.example"
default = true
[[index]]
name = "in-file"
url = "https://e.example"
[[index]]
url = "https://f.example"
explicit = true
"""
PIP = Indexes(
    default="https://a.example/simple",
    extra=("file:///one", "https://b.example", "https://c.example"),
    find_links=("/wheels",),
    insecure_hosts=("a.example",),
)
UV = Indexes(default="https://d.example", extra=("https://e.example",), find_links=("/flat",), strategy="first-index")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder, and no configuration but what is in it."""
    monkeypatch.setattr("skyward.builder.site.indexes._SYSTEM_FILES", ())
    monkeypatch.setattr("skyward.builder.site.indexes._UV_SYSTEM", tmp_path / "no-uv.toml")
    monkeypatch.setattr("sys.prefix", str(tmp_path / "no-prefix"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    ("files", "environ", "expected"),
    [
        ({}, {}, Indexes()),
        ({"pip/pip.conf": PIP_CONF}, {}, PIP),
        ({"pip/pip.conf": PIP_CONF}, {"PIP_CONFIG_FILE": "/dev/null"}, Indexes()),
        ({"pip/pip.conf": PIP_CONF, "uv/uv.toml": UV_TOML}, {}, UV),
        ({"pip/pip.conf": PIP_CONF, "uv/uv.toml": UV_TOML}, {"UV_NO_CONFIG": "1"}, PIP),
        ({}, {"PIP_NO_INDEX": "1", "PIP_KEYRING_PROVIDER": "import"}, Indexes(no_index=True, keyring=True)),
        ({}, {"UV_INDEX_STRATEGY": "unsafe-best-match"}, Indexes(strategy="unsafe-best-match")),
        (
            {"uv/uv.toml": UV_TOML.replace("find-links", "x")},
            {  # names of indexes, and the logins that uv's variables have by name
                "UV_DEFAULT_INDEX": "own=https://u:p@g.example?a=b",
                "UV_INDEX": "x=https://old@h.example:8443 y=https://i.example https://j.example",
                "UV_INDEX_X_USERNAME": "me@work",
                "UV_INDEX_X_PASSWORD": "p/w :%",
                "UV_INDEX_Y_USERNAME": "ann",
                "UV_INDEX_IN_FILE_PASSWORD": "token",
                "UV_KEYRING_PROVIDER": "subprocess",
            },
            Indexes(
                default="https://u:p@g.example?a=b",
                extra=(
                    "https://me%40work:p%2Fw%20%3A%25@h.example:8443",
                    "https://ann@i.example",
                    "https://j.example",
                    "https://:token@e.example",
                ),
                strategy="first-index",
                keyring=True,
            ),
        ),
    ],
)
def test_settings_of_pip_and_uv(home: Path, files: dict[str, str], environ: dict[str, str], expected: Indexes) -> None:
    """Variables before files; where uv has sources, those of pip are not mixed in."""
    for name, text in files.items():
        _write(home / ".config" / name, text)
    assert host_indexes(environ, home) == expected


def test_an_option_of_pip(home: Path) -> None:
    """The variable, or the last of pip's files that has it; one that cannot be read is an error."""
    _write(home / ".pip/pip.conf", PIP_CONF)
    _write(home / "chosen.conf", "[global]\nindex-url = https://b.example/%(x)s\n")
    environ = {"PIP_CONFIG_FILE": str(home / "chosen.conf")}
    assert pip_option("index-url", environ, home) == "https://b.example/%(x)s"
    assert pip_option("cert", environ, home) == "/ca.pem"
    assert pip_option("cert", environ | {"PIP_CERT": "/other.pem"}, home) == "/other.pem"
    _write(home / ".config/uv/uv.toml", "index = [")
    with pytest.raises(ConfigError, match=r"uv\.toml cannot be read"):
        host_indexes({}, home)


@pytest.mark.parametrize(
    ("index", "extra", "order"),
    [
        ("", PRIVATE, [PRIVATE, None]),
        (PYPI, PRIVATE, [PRIVATE, PYPI]),
        (PRIVATE, PYPI, [PRIVATE, PYPI]),
        (MIRROR, PRIVATE, [PRIVATE, MIRROR]),
        (PRIVATE, f"{PYPI} {MIRROR}", [MIRROR, PRIVATE, PYPI]),
        ("", f"{PYPI} {PRIVATE}", [PRIVATE, PYPI, None]),
    ],
)
def test_which_of_pips_indexes_is_asked_first(home: Path, index: str, extra: str, order: list[str | None]) -> None:
    """The extra ones, then the default one, as uv has it; where anybody may publish comes last wherever it stands."""
    found = host_indexes({"PIP_INDEX_URL": index, "PIP_EXTRA_INDEX_URL": extra}, home)
    assert [*found.extra, found.default] == order


def test_mirrors() -> None:
    """A JSON object of strings."""
    environ = {"SKYWARD_INDEXES": '{"https://b.example/": "/b", "https://c.example": "https://n.example"}'}
    assert mirrors(environ) == {"https://b.example": "/b", "https://c.example": "https://n.example"}
    for text in ("{", "[]", '{"a": 1}'):
        with pytest.raises(ConfigError, match="SKYWARD_INDEXES"):
            mirrors({"SKYWARD_INDEXES": text})


def test_passwords_of_a_keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a user without a password; the address is asked for before the host, as uv does."""
    _write(
        tmp_path / "bin/keyring",
        """#!/bin/sh
case "$*" in
    "get https://a.example/simple ann") echo "p w/1" ;;
    "get b.example:8443 me@work") echo "two" ;;
    *) exit 1 ;;
esac
""",
    )
    (tmp_path / "bin/keyring").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    for url, expected in (
        ("https://ann@a.example/simple", "https://ann:p%20w%2F1@a.example/simple"),
        ("https://me%40work@b.example:8443/x", "https://me%40work:two@b.example:8443/x"),
        ("https://bob@a.example/simple", "https://bob@a.example/simple"),
        ("https://ann:own@a.example/simple", "https://ann:own@a.example/simple"),
        ("/srv/wheels", "/srv/wheels"),
    ):
        assert with_password(url) == expected
    environ = {"UV_INDEX": "https://ann@a.example/simple", "UV_KEYRING_PROVIDER": "subprocess"}
    assert read_site(environ, tmp_path).indexes.extra == ("https://ann:p%20w%2F1@a.example/simple",)
    (tmp_path / "bin/keyring").unlink()
    with pytest.raises(ConfigError, match=r"keyring, which has the password for a.example, does not answer"):
        with_password("https://ann@a.example/simple")
