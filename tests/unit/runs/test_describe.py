"""What is found in programs by importing or running them, and that nothing of them runs on after their first pool."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import skyward as sky
from skyward._pool.description import DeclaredPool
from skyward.builder.sources.declared import Declared
from skyward.errors import ConfigError, PluginError
from skyward.model.image import Image
from skyward.model.spec import Accelerator
from skyward.plugins.registry import declared_image
from skyward.runs.describe import declared_by, first_pool

Found = Callable[..., list[Declared]]
GUARD = "if __name__ == '__main__':\n    open('ran', 'w')\n"


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; records of this user are elsewhere."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def program(text: str, name: str = "train.py") -> str:
    """Write a program; return its path."""
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(f"import skyward as sky\n{textwrap.dedent(text)}")
    return name


FOUND = [
    ("with sky.ComputePool(image=sky.Image(pip=['a'])): ...", ["train (line 2) Docker a"]),
    ("def main():\n    sky.ComputePool(sky.Local()).open()\nmain()", ["main (line 3) Local"]),
    ("with sky.pool(sky.SSH('h1')): ...", ["train (line 2) SSH"]),
    ("@sky.pool\ndef f(): ...\nf()", ["train (line 4) Docker"]),
    ("sky.ComputePool([sky.AWS('r'), sky.Docker()]).open()", ["train (line 2) AWS Docker"]),
    ("A = sky.Image(pip=['a'])\nB = A\nC = A.pip_install('c')", ["A (A) a", "C (C) a c"]),
    (
        f"I = sky.Image(pip=['a'])\n@sky.pool(image=I)\ndef f(): ...\n@sky.pool\ndef g(): ...\n{GUARD}",
        ["f (f) Docker a", "g (g) Docker"],
    ),
    (f"p = sky.ComputePool(sky.Local())\ns = sky.pool(sky.Docker())\n{GUARD}", ["p (p) Local", "s (s) Docker"]),
    (f"from lib import IMAGE\n{GUARD}    sky.ComputePool(image=IMAGE).open()", ["train (line 5) Docker lib"]),
    ("import subprocess, sys\nsubprocess.run([sys.executable, 'other.py'])", ["other (line 2) Docker o"]),
    ("import os\nif not os.fork():\n    sky.ComputePool().open()\nos.wait(), os.wait()", ["train (line 4) Docker"]),
]


@pytest.mark.parametrize(("text", "found"), FOUND)
def test_what_is_found(text: str, found: list[str]) -> None:
    """Pools and images at the top level, else the first pool that is opened, by whichever process."""
    program("IMAGE = sky.Image(pip=['lib'])", "lib.py")
    program("sky.ComputePool(image=sky.Image(pip=['o'])).open()", "other.py")
    declared = declared_by(program(text))
    kinds = [each.kinds if isinstance(each, DeclaredPool) else [] for each in declared]
    assert found == [
        " ".join([each.name, f"({each.where.partition(', ')[2]})", *kind, *each.image.pip])
        for each, kind in zip(declared, kinds, strict=True)
    ]
    assert all(each.root == Path.cwd() for each in declared)


def test_a_guarded_module_with_images_is_imported_and_run_only_with_arguments(work: Path) -> None:
    """`x.py:NAME` names one, also where it is imported from elsewhere."""
    program("LIB = sky.Image()", "lib.py")
    path = program(
        f"from lib import LIB\nA = sky.Image(pip=['a'])\nB = sky.Image()\n{GUARD}    sky.ComputePool().open()"
    )

    assert [each.name for each in declared_by(path)] == ["A", "B"]
    assert [each.name for each in declared_by(path, name="B")] == ["B"]
    assert [each.name for each in declared_by(path, name="LIB")] == ["LIB"]
    with pytest.raises(ConfigError, match="'C'"):
        declared_by(path, name="C")
    assert not (work / "ran").exists()
    assert [each.name for each in declared_by(path, ())] == ["train"]
    assert (work / "ran").exists()


def test_it_runs_as_python_would(capfd: pytest.CaptureFixture[str]) -> None:
    """Arguments, folder, `__main__`, an empty standard input; what it prints goes to standard error."""
    path = program(
        """
        import argparse, sys, beside
        parser = argparse.ArgumentParser()
        parser.add_argument("--pip", action="append")
        def main():
            print("printed")
            assert not sys.stdin.read() and sys.argv[0] == __file__ == "jobs/train.py", sys.argv
            assert sys.modules["__main__"].parser is parser
            with sky.ComputePool(image=sky.Image(pip=parser.parse_args().pip)): ...
        if __name__ == "__main__":
            main()
        """,
        "jobs/train.py",
    )
    Path("jobs/beside.py").touch()

    (declared,) = declared_by(path, ["--pip", "a", "--pip", "b"])

    assert declared.image.pip == ("a", "b")
    assert capfd.readouterr() == ("", "printed\n")


ENDINGS = {
    "except": "try:\n    OPEN\nexcept BaseException:\n    MARK",
    "finally": "try:\n    OPEN\nfinally:\n    MARK",
    "atexit": "import atexit\natexit.register(lambda: MARK)\nOPEN",
    "with": "from contextlib import suppress\nwith suppress(BaseException):\n    OPEN\nMARK",
    "thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(2), MARK)).start()\nOPEN",
    "opened in a thread": "import threading\nt = threading.Thread(target=lambda: OPEN)\nt.start()\nt.join()\nMARK",
    "child": "import subprocess, sys\n"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(2); MARK'])\nOPEN",
    "after an error": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(1), OPEN, MARK)).start()\nraise ValueError",
}


@pytest.mark.parametrize("text", ENDINGS.values(), ids=ENDINGS)
def test_nothing_runs_after_the_first_pool(work: Path, tmp_path: Path, text: str) -> None:
    """Whatever handlers, hooks, threads and processes the program has. Nothing is recorded or created."""
    path = program(text.replace("OPEN", "sky.ComputePool().open()").replace("MARK", 'open("marked", "w")'))

    assert isinstance(first_pool(path, ()), DeclaredPool)
    assert not (work / "marked").exists()
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "ended without opening a pool"),
        ("import nowhere.at_all", "needs the module 'nowhere'"),
        ("input()", "reads standard input"),
        ("raise ValueError('odd')", "ValueError: odd"),
        ("raise SystemExit(3)", "ended with status 3"),
        ("import os\nos.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("sky.ComputePool(nodes=0)", "ConfigError: "),
        ("def f(:", "SyntaxError"),
    ],
)
def test_what_is_said_where_no_pool_is_opened(text: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    """One sentence; a traceback of the program alone is on standard error."""
    path = program(text)
    for look in (declared_by, first_pool):
        with pytest.raises(ConfigError, match=rf"^train\.py .*{message}"):
            look(path, ())
    assert "described.py" not in capfd.readouterr().err


def test_what_plugins_add_and_what_runs_need() -> None:
    """By platform; the values of secrets stay in the program."""
    pool = first_pool(
        program(
            """
            import os
            os.environ["TOKEN"] = "hidden"
            def fail(image, cluster):
                raise sky.errors.PluginError("not on arm64")
            def add(image, cluster):
                return fail(image, cluster) if "arm" in cluster.spec.platform else image.pip_install("added")
            plugin = sky.Plugin.create("mine").with_image_transform(add)
            sky.ComputePool(
                sky.AWS("eu-central-1", disk_gb=100), nodes=(1, 4), accelerator="A100:2", plugins=[plugin],
                secrets=["TOKEN"], architecture="x86_64", memory=4, budget=5.0, image=sky.Image(pip=["a"]),
            ).open()
            """
        ),
        (),
    )  # fmt: skip
    assert declared_image(pool, platform="linux/amd64", python="3.11") == Image(pip=["a", "added"])
    with pytest.raises(PluginError, match="not on arm64"):
        declared_image(pool, platform="linux/arm64", python="3.11")
    assert pool.providers == (sky.AWS("eu-central-1", disk_gb=100),)
    assert (pool.machines["nodes"], pool.machines["budget"]) == (4, 5.0)
    assert pool.machines["accelerator"] == Accelerator("A100", 2)
    assert (pool.secrets, pool.architecture) == (("TOKEN",), "x86_64")
    assert "hidden" not in repr(pool)


def test_a_module_runs_as_python_m_would() -> None:
    """Its package is found from the working directory."""
    program("", "package/__init__.py")
    program("from . import data\nsky.ComputePool(image=sky.Image(pip=[data.NAME])).open()", "package/train.py")
    program("NAME = 'a'", "package/data.py")

    assert first_pool("package.train", (), is_module=True).image.pip == ("a",)


POOL = "with sky.ComputePool(image=sky.Image(pip=P)) as pool:\n    pass"


def notebook(*cells: str, **metadata: object) -> str:
    """A notebook of these cells; one that begins with # is text."""
    made = [{"cell_type": "markdown" if text.startswith("#") else "code", "source": text} for text in cells]
    Path("train.ipynb").write_text(json.dumps({"cells": made, "metadata": metadata, "nbformat": 4}))
    return "train.ipynb"


def test_a_notebook_runs_its_code_cells() -> None:
    """In order, without magics, commands of the shell and questions; `await` may stand at the top."""
    cells = [
        "%pip install x \\\n  numpy",
        "!ls *.txt",
        "P = []\nif P:\n    !ls\n    %cd x",
        "%%bash\nfor x in *; do :; done",
    ]
    cells += ["%%time\nP.append('a')", "files = !ls", "sky?\n?sky", "import asyncio\nawait asyncio.sleep(0)", ""]

    (declared,) = declared_by(notebook("# Title", "import skyward as sky", *cells, f"\n{POOL}"))

    assert declared.image.pip == ("a",)
    assert (declared.name, declared.where) == ("train", "train.ipynb, cell 12, line 2")


@pytest.mark.parametrize("text", ["", "[]", '{"cells": [1]}'])
def test_what_is_no_notebook(text: str) -> None:
    """One sentence says so."""
    Path("train.ipynb").write_text(text)
    with pytest.raises(ConfigError, match="is not a Jupyter notebook"):
        declared_by("train.ipynb")
