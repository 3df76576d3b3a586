"""The image as a value: what is equal, what is refused."""

import pickle
from dataclasses import FrozenInstanceError, replace
from itertools import permutations
from typing import Any

import pytest

from skyward.errors import ConfigError
from skyward.model.image import Env, Image, PipIndex

CPU = "https://download.pytorch.org/whl/cpu"


def test_order_means_nothing_where_it_does_nothing() -> None:
    """However the same packages, variables and indexes are listed, the values are equal and hash alike."""
    built = {
        Image(
            pip=pip,
            apt=[*reversed(pip), "git"],
            env={"B": "2", "A": "1"} if pip[0] == "numpy" else {"A": "1", "B": "2"},
            pip_indexes=[PipIndex(CPU, ["torch"]), PipIndex("https://a.example/simple/", ["b", "a"])],
        )
        for pip in permutations(["numpy", "pandas", "scipy"])
    }
    assert len(built) == 1


def test_run_keeps_its_order() -> None:
    """Commands run in the order given."""
    assert Image(run=["b", "a"]).run == ("b", "a")
    assert Image(run=["b", "a"]) != Image(run=["a", "b"])


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("NumPy >=1, <3", "numpy<3,>=1"),
        ("scikit_learn [b,a]", "scikit-learn[a,b]"),
        ("tomli; python_version < '3.11'", 'tomli; python_version < "3.11"'),
        ("x @ https://a.example/x-1-py3-none-any.whl", "x@ https://a.example/x-1-py3-none-any.whl"),
    ],
)
def test_requirements_have_one_spelling(given: str, kept: str) -> None:
    """A requirement is kept in its normal form, whatever way it was written."""
    assert [text.replace("x @", "x@") for text in Image(pip=[given]).pip] == [kept]


def test_methods_give_new_values() -> None:
    """The methods add to an image and leave the one they are called on alone."""
    image = Image(pip=["numpy"], env={"A": "1", "B": "1"})
    more = image.pip_install("pandas").apt_install("git").run_commands("true").with_env({"B": "2"}, C="3")
    more = more.with_index(CPU, "torch")
    assert image == Image(pip=["numpy"], env={"A": "1", "B": "1"})
    assert more == Image(
        pip=["pandas", "numpy"],
        apt=["git"],
        run=["true"],
        env={"A": "1", "B": "2", "C": "3"},
        pip_indexes=[PipIndex(CPU + "/", ["Torch"])],
    )
    with pytest.raises(FrozenInstanceError):
        image.base = "x"  # type: ignore[misc]


def test_replace_and_pickle_keep_the_value() -> None:
    """An image survives `replace` and pickling, origins included."""
    image = replace(Image(pip=["numpy"], env={"A": "1"}), origins=(("pip:numpy", "plugin x"),))
    back = pickle.loads(pickle.dumps(image))
    assert back == image == replace(image, origins=())
    assert back.origins == image.origins
    assert isinstance(back.env, Env)
    assert back.env == {"A": "1"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pip": "numpy"}, r"pip must be a list of texts; found 'numpy'"),
        ({"pip": ["-r requirements.txt"]}, r"pip .*'-r requirements.txt'"),
        ({"pip": ["numpy\npandas"]}, r"pip .*numpy\\npandas"),
        ({"pip": ["x @ file:///tmp/x.whl"]}, r"pip .*file:///tmp/x.whl"),
        ({"pip": ["x @ https://user:canary@a.example/x.whl"]}, r"pip holds a user name or password: 'https://\*\*\*@a"),
        ({"apt": ["git; rm -rf /"]}, r"apt .*'git; rm -rf /'"),
        ({"apt": ["Git\0"]}, r"apt "),
        ({"apt": ["--allow-unauthenticated"]}, r"apt "),
        ({"base": "./Dockerfile"}, r"base .*not a path; found './Dockerfile'"),
        ({"base": "python:3.11 slim"}, r"base .*'python:3.11 slim'"),
        ({"base": "Upper/Case"}, r"base "),
        ({"base": "python\nRUN evil"}, r"base "),
        ({"python": "3"}, r"python .*'3'"),
        ({"python": 3.1}, r"python .*3.1"),
        ({"python": "3.11.2"}, r"python .*'3.11.2'"),
        ({"env": {"A-B": "1"}}, r"env .*'A-B'"),
        ({"env": {"A": 1}}, r"env\['A'\] .*found 1"),
        ({"env": {"A": "x\0y"}}, r"env\['A'\] "),
        ({"env": {"A": "\ud800"}}, r"env\['A'\] "),
        ({"run": ["  "]}, r"run "),
        ({"platform": "windows/amd64"}, r"platform .*'windows/amd64'"),
        ({"pip_indexes": [CPU]}, r"pip_indexes must be a list of PipIndex"),
        ({"pip_indexes": [PipIndex(CPU, ["torch"]), PipIndex("https://b.example", ["Torch"])]}, r"'torch' from two"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], message: str) -> None:
    """A bad value is refused before anything happens; field and value are named, a password is not."""
    with pytest.raises(ConfigError, match=message) as caught:
        Image(**fields)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "packages"),
    [
        ("https://user:pass@a.example/simple", ["x"]),
        ("file:///wheels", ["x"]),
        ("/wheels", ["x"]),
        ("https://a.example/\nRUN", ["x"]),
        ("https://a.example/", []),
        ("https://a.example/", ["torch==2"]),
        ("https://a.example/", "torch"),
    ],
)
def test_an_index_is_a_plain_url_with_packages(url: str, packages: Any) -> None:
    """An index has a public http(s) URL and at least one package."""
    with pytest.raises(ConfigError, match="pip_indexes"):
        PipIndex(url, packages)


@pytest.mark.parametrize(
    "base",
    [
        "python",
        "python:3.11-slim",
        "host:5000/a/b:tag",
        "127.0.0.1:5000/a",
        f"python@sha256:{'0' * 64}",
        "nvcr.io/x/y:1",
    ],
)
def test_references_are_accepted(base: str) -> None:
    """Every usual form of an image reference can be a base."""
    assert Image(base=base).base == base
