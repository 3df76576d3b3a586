"""The pools that a script declares, found without running it."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from skyward.builder.sources.declared import Declared
from skyward.builder.sources.script import pools_in_script
from skyward.errors import ConfigError
from skyward.model.image import Image, PipIndex
from skyward.model.spec import Accelerator
from skyward.plugins.registry import declared_image

Found = Callable[[str], list[Declared]]
HEAD = "raise SystemExit('this must never run')\nimport os, sys, dataclasses\nimport skyward as sky\n"


@pytest.fixture
def found(tmp_path: Path) -> Found:
    """What is found in a script of this text, three lines before it."""

    def read(text: str) -> list[Declared]:
        file = tmp_path / "train.py"
        file.write_text(HEAD + textwrap.dedent(text), encoding="utf-8")
        return pools_in_script(file)

    return read


@pytest.mark.parametrize(
    "text",
    [
        "@sky.pool(image=sky.Image(pip=['numpy']))\ndef main(): ...",
        "from skyward import pool as p, Image as I\n@p(image=I(pip=['numpy']))\ndef main(): ...",
        "import skyward\n@skyward.pool(sky.Docker(), image=sky.Image(pip=['numpy']))\nasync def main(): ...",
        "def main():\n    with sky.ComputePool(image=sky.Image(pip=['numpy'])) as pool: ...",
        "def main():\n    image = sky.Image(pip=['numpy'])\n    with sky.pool(image=image): ...",
        "main = sky.ComputePool(image=sky.Image(pip=['numpy']))",
        "IMAGE = sky.Image().pip_install('numpy')\n@sky.pool(image=IMAGE)\ndef main(): ...",
        "N = 'num'\nPIP: list[str] = [f'{N}py']\n@sky.pool(image=sky.Image(pip=[*PIP]))\ndef main(): ...",
        "C = dict(image=sky.Image(pip=('numpy',)), nodes=2)\n@sky.pool(**C)\ndef main(): ...",
        "C = {'pip': {'a': ['num' + 'py']}}\n@sky.pool(image=sky.Image(pip=C['pip']['a']))\ndef main(): ...",
        "if sys.argv:\n    main = sky.ComputePool(nodes=len(sys.argv), image=sky.Image(pip=['numpy']))",
        "main = sky.Image(pip=['numpy'])",
        "B = sky.Image()\nmain = dataclasses.replace(B, pip=['numpy'])",
    ],
)  # fmt: skip
def test_every_way_to_declare_one(found: Found, text: str) -> None:
    """Decorators, `with`, names, in functions or at the top, however skyward is imported."""
    (declared,) = found(text)
    assert declared.name == "main"
    assert declared.image == Image(pip=["numpy"])
    assert declared.root == Path.cwd()


def test_all_of_a_script_in_order(found: Found) -> None:
    """Images that a pool uses are not counted twice; the others, bare decorators and nested pools are."""
    declared = found("""
        CPU = "https://download.pytorch.org/whl/cpu"
        USED = sky.Image(pip_indexes=[sky.PipIndex(CPU, ["torch"])])
        ALONE = sky.Image.from_registry("python:3.11-slim")

        @sky.pool
        def first(): ...

        class Trainer:
            def fit(self):
                with sky.ComputePool(image=USED.with_env(A="1"), architecture="arm64"):
                    with sky.ComputePool(image=sky.Image.from_dockerfile("x", target="t")): ...

        @sky.pool(image=None)
        def last(): ...
    """)
    assert [(each.name, each.where.rpartition(" ")[2]) for each in declared] == [
        ("ALONE", "7"),
        ("first", "9"),
        ("fit", "14"),
        ("fit", "15"),
        ("last", "17"),
    ]
    index = PipIndex("https://download.pytorch.org/whl/cpu", ["torch"])
    assert declared[2].image == Image(env={"A": "1"}, pip_indexes=[index])
    assert declared[2].architecture == "arm64"
    assert declared[3].image == Image.from_dockerfile("x", target="t")
    assert declared[4].image == Image()


def test_plugins_and_what_they_read(found: Found) -> None:
    """Plugins are found by name, with parameters; accelerator and nodes matter to them."""
    (declared,) = found("""
        from skyward.plugins import torch
        V = "2.13.0"
        @sky.pool(plugins=[torch(version=V), sky.plugins.joblib(2)], accelerator="A100:2", nodes=(1, 4))
        def main(): ...
    """)
    uses = [(use.name, use.args, use.kwargs, use.where.rpartition(" ")[2]) for use in declared.plugins]
    assert uses == [("torch", (), {"version": "2.13.0"}, "7"), ("joblib", (2,), {}, "7")]
    assert declared.accelerator == Accelerator("A100", 2)
    assert declared.nodes == 4


def test_what_decides_nothing_may_be_known_later(found: Found) -> None:
    """The number of nodes, the provider and the environment of a pool without plugins are no matter."""
    (declared,) = found("""
        def main(args):
            with sky.ComputePool(args.provider, nodes=args.nodes, env=dict(os.environ), accelerator=args.gpu): ...
    """)
    assert declared.image == Image()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def m(): return open('x')\n@sky.pool(image=m())\ndef f(): ...", r"line 5: what 'f' .*`open\('x'\)` \(line 4"),
        ("def f(args):\n    sky.ComputePool(image=args.image)", r"line 5: .*`args` \(line 5\) is a parameter of `f`"),
        ("for A in sys.argv:\n    sky.ComputePool(image=sky.Image(pip=[A]))", r"`A` \(line 4\)"),
        ("sky.ComputePool(image=sky.Image(env=dict(os.environ)))", r"`os.environ` \(line 4\) is read from the env"),
        ("sky.ComputePool(image=sky.Image(pip=[os.environ['X']]))", r"`os.environ` \(line 4\) is read from the env"),
        ("sky.ComputePool(image=sky.Image(pip=['a' if X else 'b']))", r"`'a' if X else 'b'` .* depends on .*`X`"),
        ("sky.ComputePool(image=open('x').read())", r"`open\('x'\)` \(line 4\) is made when the script runs"),
        ("import a\nsky.ComputePool(image=a.b('a'))", r"`a.b\('a'\)` \(line 5\) calls something other than sky"),
        ("sky.ComputePool(plugins=[sky.Image()])", r"holds something other than sky.plugins.NAME"),
        ("sky.ComputePool(plugins=[sky.plugins.torch()], nodes=len(X))", r"`X` \(line 4\) is bound nowhere"),
        ("sky.ComputePool(**X)", r"`X` \(line 4\) is bound nowhere"),
        ("X = X\nsky.ComputePool(image=X)", r"`X` \(line 4\) is bound nowhere"),
        ("X = sky.Image(pip=sys.argv)", r"what 'X' is made of .* \(line 4\) is or holds `sys.argv`"),
        ("sky.ComputePool(image=sky.Image(pip=['a b']))", r"line 4: `sky.Image\(pip=\['a b'\]\)`: pip must be"),
        ("sky.ComputePool(image=sky.Image(pips=[]))", r"line 4: .* has no parameter 'pips'"),
        ("X = {}\nsky.ComputePool(image=X['a'])", r"line 5: `X\['a'\]`: KeyError: 'a'"),
        ("def f(:", r"train.py cannot be read: line 4: "),
        ("def f(*a): f(*a)\nwith sky.ComputePool(image=sky.Image(pip=f(1))): ...", r"line 4\) goes too deep"),
        ("P = ['a']\nfor _ in range(99): P += P\nsky.ComputePool(image=sky.Image(pip=P))", r"line 5"),
        ("P = []\nfor n in range(9 ** 9): P += [n]\nsky.ComputePool(image=sky.Image(pip=P))", r"line 5"),
        ("from .config import IMAGE\nsky.ComputePool(image=IMAGE)", r"`IMAGE` \(line 5\) is of a package"),
        ("from other import IMAGE\nsky.ComputePool(image=IMAGE)", r"\(line 5\) is or holds `other.IMAGE`"),
    ],
)  # fmt: skip
def test_what_cannot_be_known_is_named(found: Found, text: str, message: str) -> None:
    """Line and expression stand in the message; nothing is guessed."""
    with pytest.raises(ConfigError, match=message):
        found(text)


def test_all_that_is_wrong_is_told_at_once(found: Found) -> None:
    """One sentence for each pool."""
    with pytest.raises(ConfigError) as caught:
        found("sky.ComputePool(image=a)\nsky.ComputePool(image=b)\nsky.ComputePool(image=sky.Image(pips=1))")
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "class ComputePool: ...\nComputePool(image=x)",
        "from other import pool\n@pool(image=x())\ndef f(): ...",
        "def sky2(): ...\nX = sky2.Image(pip=y)",
        "@sky.compute\ndef f(): ...",
    ],
)
def test_nothing_is_found_where_nothing_is(found: Found, text: str) -> None:
    """Names that are not skyward's mean nothing here."""
    assert found(text) == []


EXAMPLES = sorted(path for path in (Path(__file__).parents[4] / "examples").glob("*.py") if path.name != "folders.py")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)  # that one is a provider, and has no pool
def test_the_examples_can_be_prebaked(path: Path) -> None:
    """What the examples declare can be told without running them."""
    assert pools_in_script(path)


def test_pools_of_integrations_have_their_plugins(found: Found) -> None:
    """joblib, and scikit-learn with it, in the order in which the pools add them."""
    declared = found("""
        from skyward.integrations import JoblibPool, ScikitLearnPool as Learn
        with JoblibPool(nodes=2, joblib_version="1.4", image=sky.Image(pip=["a"])): ...
        with Learn(sky.Docker(), plugins=[sky.plugins.huggingface()]): ...
        with sky.integrations.ScikitLearnPool(sklearn_version="1.5"): ...
    """)
    uses = [[(use.name, use.args) for use in each.plugins] for each in declared]
    assert uses == [
        [("joblib", ("1.4",))],
        [("huggingface", ()), ("sklearn", (None,)), ("joblib", (None,))],
        [("sklearn", ("1.5",)), ("joblib", (None,))],
    ]
    assert declared[0].image == Image(pip=["a"])


def test_a_pool_with_volumes_has_the_program_that_mounts_them(found: Found) -> None:
    """It is in the image that such a pool uses, so it has to be in the one that is built for it."""
    declared = found("""
        with sky.ComputePool(volumes=[sky.Volume("data", "/data")]): ...
        with sky.ComputePool(volumes={"/data": "s3://data"}): ...
        with sky.ComputePool(volumes=[]): ...
    """)
    assert [each.has_volumes for each in declared] == [True, True, False]
    image = declared_image(declared[0], platform="linux/amd64", python="3.12")
    assert "rclone" in image.apt


def test_files_beside_the_script_are_read(found: Found, tmp_path: Path) -> None:
    """What they bind is known, and their own pools are not this script's."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "images.py").write_text(
        "import skyward\nfrom config import PIP\nfrom .other import MORE\nBASE = skyward.Image(pip=[*PIP, *MORE])\n"
        "def with_torch(version):\n    return BASE.pip_install(f'torch=={version}')\n"
    )
    (tmp_path / "package" / "other.py").write_text("MORE = ['rich']\n")
    (tmp_path / "config.py").write_text("import sys, skyward\nPIP = ['numpy']\nskyward.ComputePool(image=sys.argv)\n")
    declared = found("""
        import config, package.images
        from package.images import with_torch as make
        from package import images
        config.PIP.append("attrs")
        with sky.ComputePool(image=package.images.BASE): ...
        with sky.ComputePool(image=make("2.0")): ...
        with sky.ComputePool(image=sky.Image(pip=config.PIP)): ...
        with sky.ComputePool(image=images.BASE): ...
    """)
    assert [each.image.pip for each in declared] == [
        ("numpy", "rich"),
        ("numpy", "rich", "torch==2.0"),
        ("attrs", "numpy"),
        ("numpy", "rich"),
    ]


def test_a_problem_in_a_file_beside_names_that_file(found: Found, tmp_path: Path) -> None:
    """The line is that of the file in which it stands."""
    (tmp_path / "config.py").write_text("import os\n\nPIP = [os.environ['X']]\n")

    with pytest.raises(ConfigError, match=r"train.py, line 5: .*`os.environ` \(config.py, line 3\)"):
        found("from config import PIP\nsky.ComputePool(image=sky.Image(pip=PIP))")


@pytest.mark.parametrize(
    ("change", "package"),
    [
        ("sys.path.insert(0, os.path.join(os.path.dirname(__file__), 'lib'))", "inner"),
        ("import config\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), 'lib'))", "outer"),
        ("sys.path.append(os.path.join(os.path.dirname(__file__), 'lib'))", "outer"),
    ],
)
def test_modules_are_where_sys_path_says(found: Found, tmp_path: Path, change: str, package: str) -> None:
    """A module that is imported already stays the one it is."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "config.py").write_text("PIP = ['outer']\n")
    (tmp_path / "lib" / "config.py").write_text("PIP = ['inner']\n")

    (one,) = found(f"{change}\nfrom config import PIP\nimage = sky.Image(pip=PIP)")

    assert one.image.pip == (package,)


@pytest.mark.parametrize("change", ["sys.path[:0] = ['lib']", "sys.path += ['lib']", "sys.path.remove('')"])
def test_after_other_changes_of_sys_path_no_module_is_known(found: Found, tmp_path: Path, change: str) -> None:
    """Another file of that name may be the one that a run imports."""
    (tmp_path / "config.py").write_text("PIP = ['outer']\n")
    with pytest.raises(ConfigError, match=r"`config.PIP`, which is made outside of the script"):
        found(f"{change}\nfrom config import PIP\nimage = sky.Image(pip=PIP)")


def test_a_module_says_what_a_star_brings(found: Found, tmp_path: Path) -> None:
    """`__all__`, where there is one."""
    (tmp_path / "config.py").write_text("__all__ = ['PIP', '_MORE']\nPIP, _MORE, MINE = ['a'], ['b'], ['c']\n")

    (one,) = found("MINE = ['mine']\nfrom config import *\nimage = sky.Image(pip=PIP + _MORE + MINE)")

    assert one.image.pip == ("a", "b", "mine")
