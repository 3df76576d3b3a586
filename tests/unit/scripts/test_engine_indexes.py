"""Finding wheel folders in pip's and uv's settings, and the index map made from them."""

from pathlib import Path

import pytest

from scripts.engine import indexes
from scripts.engine.console import SetupError

TORCH = "https://download.pytorch.org/whl/cpu"


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with a CPU build of torch."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "torch-2.4.0+cpu-cp311-cp311-linux_x86_64.whl").touch()
    return folder


@pytest.mark.parametrize(
    "text",
    [
        "[global]\nfind-links = {folder}\n",
        "[install]\nfind_links=file://{folder}\n",
        "[global]\nfind-links =\n    https://example.org/wheels\n    {folder}\n",
        "[global]\nindex-url = https://example.org/%(odd)s\nfind-links = /nowhere {folder}\n",
    ],
)
def test_folders_named_by_pips_files(tmp_path: Path, wheels: Path, text: str) -> None:
    """Existing local folders are found in any section and spelling; addresses and missing folders are not."""
    file = tmp_path / "pip.conf"
    file.write_text(text.replace("{folder}", str(wheels)))

    assert [wheels] == indexes.find_links({}, [tmp_path / "missing.conf", file])


@pytest.mark.parametrize("name", ["PIP_FIND_LINKS", "UV_FIND_LINKS"])
def test_folders_named_by_variables(wheels: Path, name: str) -> None:
    """pip separates by spaces and uv by commas; a remote page is not a folder."""
    separator = "," if name.startswith("UV") else " "
    value = separator.join([f"file://{wheels}", "https://example.org/wheels", "relative/folder"])

    assert [wheels] == indexes.find_links({name: value}, [])


def test_a_broken_pip_file_is_passed_over(tmp_path: Path) -> None:
    """A file that pip itself could not read names no folder."""
    file = tmp_path / "pip.conf"
    file.write_text("find-links = /somewhere\n")

    assert indexes.find_links({}, [file]) == []


def test_pip_reads_no_file_when_told_so() -> None:
    """pip's own switch for ignoring all configuration files is honoured."""
    assert indexes.pip_files({"PIP_CONFIG_FILE": "/dev/null"}) == []
    assert Path("/home/ann/.config/pip/pip.conf") in indexes.pip_files({"HOME": "/home/ann"})
    assert Path("/home/ann/pip.ini") == indexes.pip_files({"PIP_CONFIG_FILE": "/home/ann/pip.ini"})[0]


def test_torch_is_mapped_where_its_cpu_build_lies(wheels: Path, tmp_path: Path) -> None:
    """Only a folder that holds a CPU build of torch stands for PyTorch's CPU index."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "torch-2.4.0-cp311-cp311-linux_x86_64.whl").touch()

    assert indexes.index_map({}, [other]) == {}
    assert {TORCH: str(wheels)} == indexes.index_map({}, [other, wheels])


def test_what_the_user_maps_wins(wheels: Path) -> None:
    """SKYWARD_INDEXES adds to the map and overrides what was found."""
    environ = {"SKYWARD_INDEXES": f'{{"{TORCH}": "https://mirror.example.org", "https://a.example.org": "/srv"}}'}

    assert indexes.index_map(environ, [wheels]) == {
        TORCH: "https://mirror.example.org",
        "https://a.example.org": "/srv",
    }


@pytest.mark.parametrize("text", ["not json", "[]", '{"a": 1}'])
def test_an_unreadable_map_is_an_error(text: str) -> None:
    """The message shows the value and what it should look like."""
    with pytest.raises(SetupError, match=r"SKYWARD_INDEXES is .* no JSON object"):
        indexes.index_map({"SKYWARD_INDEXES": text}, [])
