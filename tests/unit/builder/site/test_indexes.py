"""Package sources of a machine, from made-up homes and environments."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward.builder.site.indexes import Indexes, folder_of, host_indexes, mirrors, pip_option
from skyward.errors import ConfigError


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


def test_nothing_set(home: Path) -> None:
    """Without settings the tools' own default holds."""
    assert host_indexes({}, home) == Indexes()


def test_pip_files_and_variables(home: Path) -> None:
    """[install] over [global], variables over files; lists by blanks and lines."""
    _write(
        home / ".config/pip/pip.conf",
        "[global]\nindex-url = https://a.example/simple\nextra-index-url = file:///one https://b.example\n"
        "  https://c.example\ncert = /ca.pem\n[install]\nfind-links = /wheels\ntrusted_host = a.example\n",
    )
    expected = Indexes(
        default="https://a.example/simple",
        extra=("file:///one", "https://b.example", "https://c.example"),
        find_links=("/wheels",),
        insecure_hosts=("a.example",),
    )
    assert host_indexes({}, home) == expected
    found = host_indexes({"PIP_INDEX_URL": "https://v.example", "PIP_EXTRA_INDEX_URL": "", "PIP_NO_INDEX": "1"}, home)
    assert (found.default, found.extra, found.no_index, found.strategy) == ("https://v.example", (), True, None)
    assert pip_option("cert", {}, home) == "/ca.pem"
    assert pip_option("cert", {"PIP_CERT": "/other.pem"}, home) == "/other.pem"


PRIVATE, MIRROR = "https://private.example/simple", "https://mirror.example/simple"
PYPI = f"https://{'.'.join(('pypi', 'org'))}/simple"


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


def test_the_strategy_is_uvs_setting(home: Path) -> None:
    """uv's variable and its file hold for pip's indexes as well; nothing else lets indexes replace each other."""
    pip = {"PIP_EXTRA_INDEX_URL": PRIVATE}
    assert host_indexes(pip, home).strategy is None
    assert host_indexes(pip | {"UV_INDEX_STRATEGY": "unsafe-best-match"}, home).strategy == "unsafe-best-match"
    _write(home / ".config/uv/uv.toml", 'index-strategy = "unsafe-first-match"\n')
    assert host_indexes(pip, home).strategy == "unsafe-first-match"


def test_pip_config_file(home: Path, tmp_path: Path) -> None:
    """PIP_CONFIG_FILE comes last; /dev/null turns all files off."""
    _write(home / ".pip/pip.conf", "[global]\nindex-url = https://a.example\n")
    _write(tmp_path / "chosen.conf", "[global]\nindex-url = https://b.example/%(x)s\n")
    assert host_indexes({"PIP_CONFIG_FILE": str(tmp_path / "chosen.conf")}, home).default == "https://b.example/%(x)s"
    assert host_indexes({"PIP_CONFIG_FILE": "/dev/null"}, home) == Indexes()


def test_uv_settings_come_first(home: Path) -> None:
    """Where uv has sources of its own, pip's are not mixed in; explicit indexes serve named packages only."""
    _write(home / ".config/pip/pip.conf", "[global]\nindex-url = https://pip.example\n")
    _write(
        home / ".config/uv/uv.toml",
        'index-strategy = "first-index"\nfind-links = ["/flat"]\n'
        '[[index]]\nurl = "https://d.example"\ndefault = true\n'
        '[[index]]\nname = "e"\nurl = "https://e.example"\n'
        '[[index]]\nname = "f"\nurl = "https://f.example"\nexplicit = true\n',
    )
    expected = Indexes(
        default="https://d.example", extra=("https://e.example",), find_links=("/flat",), strategy="first-index"
    )
    assert host_indexes({}, home) == expected
    environ = {"UV_DEFAULT_INDEX": "own=https://u:p@g.example?a=b", "UV_INDEX": "x=https://h.example https://i.example"}
    found = host_indexes(environ, home)
    assert found.default == "https://u:p@g.example?a=b"
    assert found.extra == ("https://h.example", "https://i.example", "https://e.example")
    assert host_indexes({"UV_NO_CONFIG": "1"}, home).default == "https://pip.example"


def test_logins_by_the_name_of_an_index(home: Path) -> None:
    """uv's variables have a user and a password for an index by its name; they become part of its address."""
    _write(home / ".config/uv/uv.toml", '[[index]]\nname = "in-file"\nurl = "https://e.example/simple"\n')
    environ = {
        "UV_INDEX": "own=https://old@h.example:8443/simple other=https://i.example",
        "UV_INDEX_OWN_USERNAME": "me@work",
        "UV_INDEX_OWN_PASSWORD": "p/w :%",
        "UV_INDEX_OTHER_USERNAME": "ann",  # her password is in a keyring
        "UV_INDEX_IN_FILE_PASSWORD": "token",
    }
    assert host_indexes(environ, home).extra == (
        "https://me%40work:p%2Fw%20%3A%25@h.example:8443/simple",
        "https://ann@i.example",
        "https://:token@e.example/simple",
    )


@pytest.mark.parametrize(
    "environ",
    [
        {"UV_KEYRING_PROVIDER": "subprocess", "UV_INDEX": "https://x"},
        {"UV_KEYRING_PROVIDER": "subprocess", "PIP_INDEX_URL": "https://x"},
        {"PIP_KEYRING_PROVIDER": "import"},
    ],
)
def test_a_keyring_is_asked_where_it_is_wanted(home: Path, environ: dict[str, str]) -> None:
    """uv and pip each have a setting for it, and it is off without."""
    assert host_indexes(environ, home).keyring
    assert not host_indexes({"UV_INDEX": "https://x"}, home).keyring


def test_a_broken_file_is_named(home: Path) -> None:
    """A configuration file that cannot be read is an error, not ignored."""
    _write(home / ".config/uv/uv.toml", "index = [")
    with pytest.raises(ConfigError, match=r"uv\.toml cannot be read"):
        host_indexes({}, home)


def test_mirrors(tmp_path: Path) -> None:
    """The nearest pyproject.toml and the variable; paths in the file are relative to it."""
    _write(
        tmp_path / "pyproject.toml",
        '[tool.skyward.indexes]\n"https://a.example/" = "wheels"\n"https://b.example" = "https://m.example"\n',
    )
    below = tmp_path / "src/deep"
    below.mkdir(parents=True)
    environ = {"SKYWARD_INDEXES": '{"https://b.example/": "/b", "https://c.example": "https://n.example"}'}
    assert mirrors(environ, below) == {
        "https://a.example": str(tmp_path / "wheels"),
        "https://b.example": "/b",
        "https://c.example": "https://n.example",
    }


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}'])
def test_a_wrong_map(text: str, tmp_path: Path) -> None:
    """SKYWARD_INDEXES must be an object of strings."""
    with pytest.raises(ConfigError, match="SKYWARD_INDEXES"):
        mirrors({"SKYWARD_INDEXES": text}, tmp_path)


def test_folders() -> None:
    """A source is a folder as `file://` URL or as path, else an address."""
    assert folder_of("file:///a%20b/simple/") == Path("/a b/simple")
    assert folder_of("/a") == Path("/a")
    assert folder_of("https://a.example") is None
