"""The env file that `make engine` leaves for shells."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.engine import envfile

_VALUES = st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"]))
_NAMES = st.from_regex(r"[A-Z_][A-Z0-9_]{0,20}", fullmatch=True)


@given(st.dictionaries(_NAMES, _VALUES))
def test_what_is_rendered_is_parsed_back(values: dict[str, str]) -> None:
    """Any value survives, quotes and line ends included."""
    assert values == envfile.parse(envfile.render(values))


@pytest.mark.parametrize("value", ["plain", "it's", "a b", '$HOME `id` "q"', "two\nlines", "'", "\\", '{"a": "b\'c"}'])
def test_a_shell_reads_the_same_value(tmp_path: Path, value: str) -> None:
    """Sourcing the file gives a child process exactly the value, with nothing expanded."""
    file = tmp_path / "env"
    envfile.write(file, {"NAME": value})

    out = subprocess.run(["sh", "-c", f'. "{file}"; printenv NAME'], capture_output=True, text=True, check=True).stdout

    assert f"{value}\n" == out


def test_an_equal_file_is_left_alone(tmp_path: Path) -> None:
    """Writing the same values again does not touch the file; other values replace it and leave no draft."""
    file = tmp_path / "env"
    envfile.write(file, {"A": "1"})
    before = file.stat()
    envfile.write(file, {"A": "1"})
    assert (before.st_ino, before.st_mtime_ns) == (file.stat().st_ino, file.stat().st_mtime_ns)

    envfile.write(file, {"A": "2"})

    assert envfile.read(file) == {"A": "2"}
    assert [file] == list(tmp_path.iterdir())


def test_no_file_means_no_variables(tmp_path: Path) -> None:
    """Reading before `make engine` has run gives nothing."""
    assert envfile.read(tmp_path / "env") == {}
