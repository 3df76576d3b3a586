"""Notebooks as scripts: cells in their order, lines for IPython and the shell left out, places by cell and line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from skyward.builder.sources.declared import Declared
from skyward.builder.sources.script import pools_in_script
from skyward.errors import ConfigError

Found = Callable[..., list[Declared]]
POOL = "with sky.ComputePool(image=sky.Image(pip=P)) as pool:\n    pass"


@pytest.fixture
def found(tmp_path: Path) -> Found:
    """What is found in a notebook of these cells; one that begins with # is text."""

    def read(*cells: str, **metadata: object) -> list[Declared]:
        made = [{"cell_type": "markdown" if text.startswith("#") else "code", "source": text} for text in cells]
        path = tmp_path / "train.ipynb"
        path.write_text(json.dumps({"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}))
        return pools_in_script(path)

    return read


def test_cells_in_their_order(found: Found) -> None:
    """Names go from cell to cell; a place is the cell, of all cells, and the line in it."""
    (declared,) = found("# Title", "import skyward as sky\nP = ['numpy']", "P.append('rich')", "\n" + POOL)

    assert declared.image.pip == ("numpy", "rich")
    assert declared.where.endswith("train.ipynb, cell 4, line 2")
    assert declared.name == "train"


def test_lines_of_a_cell_may_be_a_list(tmp_path: Path) -> None:
    """Jupyter writes them so."""
    cell = {"cell_type": "code", "source": ["import skyward as sky\n", "P = ['a']\n", *POOL.splitlines(keepends=True)]}
    (tmp_path / "train.ipynb").write_text(json.dumps({"cells": [cell]}))

    assert [each.image.pip for each in pools_in_script(tmp_path / "train.ipynb")] == [("a",)]


@pytest.mark.parametrize(
    "cell",
    [
        "%pip install skyward \\\n  numpy",
        "!ls *.txt",
        "%matplotlib inline\nP = ['a']",
        "if P:\n    !ls\n    %cd x",
        "%%bash\nfor x in *; do echo; done",
        "%%time\nP = ['a']",
        "%%capture out\nP = ['a']",
        "files = !ls\nrate = %env RATE",
        "sky.ComputePool?\n?sky\nsky??",
        "await sky\n",
        "x = '''\n%d\n!ls\n''' % 1",
        "",
        "# nothing",
    ],
)
def test_what_is_for_ipython_is_left_out(found: Found, cell: str) -> None:
    """Magics, commands of the shell, questions; `await` may stand at the top."""
    (declared,) = found("import skyward as sky\nP = ['a']", cell, POOL)

    assert declared.image.pip == ("a",)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (("import skyward as sky\nP = !ls", POOL), r"cell 2, line 1: .*\(cell 1, line 2\)"),
        (
            ("import skyward as sky\nP = ['a']", "%run other.py", POOL),
            r"cell 3, line 1: .*\(cell 2, line 1\) may change",
        ),
        (("# x", "def f(:"), r"cannot be read: cell 2, line 1: "),
    ],
)
def test_errors_name_cell_and_line(found: Found, cells: tuple[str, ...], message: str) -> None:
    """So that one finds them in Jupyter."""
    with pytest.raises(ConfigError, match=message):
        found(*cells)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"cells": [1]}', '{"cells": 1}'])
def test_what_is_no_notebook(tmp_path: Path, text: str) -> None:
    """One sentence says so."""
    (tmp_path / "train.ipynb").write_text(text)

    with pytest.raises(ConfigError, match="is not a Jupyter notebook"):
        pools_in_script(tmp_path / "train.ipynb")


def test_only_python(found: Found) -> None:
    """Notebooks have many languages."""
    with pytest.raises(ConfigError, match="is a notebook in R;"):
        found(kernelspec={"language": "R"})


def test_percent_format_is_python(tmp_path: Path) -> None:
    """Cells of a `.py` file are comments."""
    (tmp_path / "train.py").write_text(
        f"# %%\nimport skyward as sky\n# %% [markdown]\n# Text\n# %%\nP = ['a']\n{POOL}\n"
    )

    assert [each.image.pip for each in pools_in_script(tmp_path / "train.py")] == [("a",)]
