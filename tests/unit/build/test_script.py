"""The pools that a script declares, found without running it."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from skyward.build.declared import Declared
from skyward.build.script import pools_in_script
from skyward.errors import ConfigError
from skyward.model.accelerator import Accelerator
from skyward.model.image import Image, PipIndex

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
        ("def make(): ...\n@sky.pool(image=make())\ndef f(): ...", r"line 5: what 'f' .*`make` \(line 5\) is made"),
        ("def f(args):\n    sky.ComputePool(image=args.image)", r"line 5: .*`args` \(line 5\) is made when"),
        ("A = 1\nA = 2\n@sky.pool(image=sky.Image(pip=[A]))\ndef f(): ...", r"`A` .* more than once \(lines 4, 5\)"),
        ("for A in 'ab':\n    sky.ComputePool(image=sky.Image(pip=[A]))", r"`A` \(line 5\) is made when the script"),
        ("sky.ComputePool(image=sky.Image(env=dict(os.environ)))", r"`os.environ` \(line 4\) is no constant"),
        ("sky.ComputePool(image=sky.Image(pip=[os.environ['X']]))", r"`os.environ` \(line 4\) is no constant"),
        ("sky.ComputePool(image=sky.Image(pip=['a' if X else 'b']))", r"`'a' if X else 'b'` \(line 4\) is no constant"),
        ("sky.ComputePool(image=sky.Image(pip=[f'{1:03}']))", r"formats more than plain texts"),
        ("sky.ComputePool(image=open('x').read())", r"`open` \(line 4\) is bound nowhere in this script"),
        ("sky.ComputePool(image=os.path.join('a'))", r"`os.path.join\('a'\)` .* calls something other than sky"),
        ("sky.ComputePool(plugins=[sky.Image()])", r"holds something other than sky.plugins.NAME"),
        ("sky.ComputePool(plugins=[sky.plugins.torch()], nodes=len(X))", r"`len` \(line 4\) is bound nowhere"),
        ("sky.ComputePool(**X)", r"`X` \(line 4\) is bound nowhere"),
        ("X = X\nsky.ComputePool(image=X)", r"`X` \(line 4\) is made when the script runs"),
        ("X = sky.Image(pip=sys.argv)", r"what 'X' is made of .* `sys.argv` \(line 4\) is no constant"),
        ("sky.ComputePool(image=sky.Image(pip=['a b']))", r"line 4: `sky.Image\(pip=\['a b'\]\)`: pip must be"),
        ("sky.ComputePool(image=sky.Image(pips=[]))", r"line 4: .* unexpected keyword argument 'pips'"),
        ("X = {}\nsky.ComputePool(image=X['a'])", r"line 5: `X\['a'\]`: KeyError: 'a'"),
        ("def f(:", r"train.py cannot be read: "),
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


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[3].glob("examples/*.py")), ids=lambda path: path.name)
def test_the_examples_can_be_prebaked(path: Path) -> None:
    """What the examples declare can be told without running them."""
    assert pools_in_script(path)
