"""The image as a value: what is equal, what is refused."""

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward.errors import ConfigError
from skyward.model.image import Image, PipIndex, local_path, requirement_name

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


ENTRIES: dict[str, Any] = {
    "apt": ["git", "curl", "tree"],
    "pip": ["numpy>=2", "Pandas", "./lib", "./dist/x-1-py3-none-any.whl"],
    "requirements": ["requirements.txt", "./more/b.txt"],
    "groups": ["train", "Eval_Tools"],
    "secrets": ["HF_TOKEN", "a.b"],
    "includes": ["src", "./top.py"],
    "excludes": ["**/*.csv", "data"],
}
WITH = {"apt": "apt_install", "pip": "pip_install"}


@given(st.data())
def test_every_way_to_say_the_same_gives_one_value(data: st.DataObject) -> None:
    """Constructor, methods and `replace`, in whatever order and with repetitions, make equal images."""
    plain = Image(**ENTRIES, env={"A": "1", "B": "2"}, build_env={"C": "3", "D": "4"}, run=["a", "b"], bake=True)
    steps = [(name, entry) for name, entries in ENTRIES.items() for entry in [*entries, entries[0]]]
    image = Image(excludes=[], run=["a", "b"])
    for name, entry in data.draw(st.permutations(steps)):
        if data.draw(st.booleans()):
            image = getattr(image, WITH.get(name, f"with_{name}"))(entry)
        else:
            more: dict[str, Any] = {name: [entry, *getattr(image, name)]}
            image = replace(image, **more)
    for env in data.draw(st.permutations([{"A": "1"}, {"B": "2"}])):
        image = image.with_env(env)
    image = image.with_build_env(D="4").with_build_env({"C": "0"}, C="3").with_bake()
    assert image == plain
    assert hash(image) == hash(plain)
    assert repr(image) == repr(plain)


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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pip": "numpy"}, r"pip must be a list of strings; found 'numpy'"),
        ({"pip": ["-x requirements.txt"]}, r"pip .*'-x requirements.txt'"),
        ({"pip": ["--index-url https://a.example"]}, r"pip must be .* '-r FILE'.*Give an index in pip_indexes"),
        ({"pip": ["-e git+https://a.example/x"]}, r"pip must be repositories with the package's name, such as 'NAME @"),
        ({"pip": ["-e git+file:///srv/x#egg=x"]}, r"pip must be a URL that starts with .*git\+https"),
        ({"project": "."}, r"project must be a Project; found '.'"),
        ({"pip": ["numpy\npandas"]}, r"pip .*numpy\\npandas"),
        ({"pip": ["x @ file:///tmp/x.whl"]}, r"pip must be wheels whose file name .*found '/tmp/x.whl'"),
        ({"pip": ["x @ https://user:canary@a.example/x.whl"]}, r"pip holds a user name or password: 'https://\*\*\*@a"),
        ({"apt": ["git; rm -rf /"]}, r"apt .*'git; rm -rf /'"),
        ({"apt": ["Git\0"]}, r"apt "),
        ({"apt": ["--allow-unauthenticated"]}, r"apt "),
        ({"base": "Dockerfile\nx"}, r"base "),
        ({"base": 3}, r"base must be an image reference .*found 3"),
        ({"build_env": {"A-B": "1"}}, r"build_env .*'A-B'"),
        ({"build_env": {"A": 1}}, r"build_env\['A'\] .*found 1"),
        ({"requirements": "requirements.txt"}, r"requirements must be a list of strings; found 'requirements.txt'"),
        ({"requirements": [" "]}, r"requirements must be a path"),
        ({"groups": ["train>=2"]}, r"groups must be names of dependency groups.*'train>=2'"),
        ({"secrets": ["HF TOKEN"]}, r"secrets must be names.*'HF TOKEN'"),
        ({"secrets": ["skyward_site"]}, r"secrets must be names that do not begin with 'skyward'"),
        ({"secrets": ["a,src=/etc/shadow"]}, r"secrets "),
        ({"excludes": ["[a"]}, r"excludes must be patterns.*'\[a'"),
        ({"includes": ["a\nb"]}, r"includes must be a path"),
        ({"bake": "yes"}, r"bake must be True or False; found 'yes'"),
        ({"exclude_newer": "yesterday"}, r"exclude_newer must be a date.*'yesterday'"),
        ({"exclude_newer": "2026-05-31T12:00:00"}, r"exclude_newer must be a date such as .* with its zone"),
        ({"exclude_newer": "9999-12-31"}, r"exclude_newer "),
        ({"pip": ["./dist/x.whl"]}, r"pip must be wheels whose file name says what they are.*'./dist/x.whl'"),
        ({"pip": ["./lib[a b]"]}, r"pip must be a package name without version; found 'a b'"),
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
    ("given", "kept", "path", "name"),
    [
        ("./lib/", "./lib", "./lib", ""),
        ("./lib [B,a]", "./lib[a,b]", "./lib", ""),
        (".", ".", ".", ""),
        ("../lib", "../lib", "../lib", ""),
        ("/srv/lib", "/srv/lib", "/srv/lib", ""),
        ("~/lib", "~/lib", "~/lib", ""),
        ("d/My_L-1-py3-none-any.whl[x]", "./d/My_L-1-py3-none-any.whl[x]", "./d/My_L-1-py3-none-any.whl", "my-l"),
        ("lib-1.tar.gz", "./lib-1.tar.gz", "./lib-1.tar.gz", ""),
        ("a @ https://a.example/a-1-py3-none-any.whl", "a@ https://a.example/a-1-py3-none-any.whl", None, "a"),
        ("Torch[x]>=2", "torch[x]>=2", None, "torch"),
    ],
)  # fmt: skip
def test_local_packages_are_told_from_others(given: str, kept: str, path: str | None, name: str) -> None:
    """A path of a wheel, an archive or a project is kept as a path; extras stand behind it."""
    entry = Image(pip=[given]).pip[0]
    assert entry.replace("a @", "a@") == kept
    assert local_path(entry) == path
    assert requirement_name(entry) == name
    assert Image(pip=[entry]) == Image(pip=[given])


@pytest.mark.parametrize(
    "entry",
    [
        "x @ https://u:canary@a.example/x.whl",
        "x @ https://u:p@canary@a.example/x.whl ; nonsense",
        "git+https://canary@a.example/x",
        "https://canary:x@a.example/x.txt",
        "https://u:canary@a.example",
        "https://u:canary@a.example/\\x",
        "x @ https://u:canary@[a/x",
        "--index-url https://u:canary@a.example",
        "-r https://u:canary@a.example/r.txt",
        "./lib --index-url=https://u:canary@a.example/",
    ],
)
def test_a_login_in_a_requirement_is_in_no_message(entry: str) -> None:
    """Whatever is wrong with it: URLs are shown without what stands before their hosts."""
    with pytest.raises(ConfigError, match=r"\*\*\*@") as caught:
        Image(pip=[entry])
    assert "canary" not in str(caught.value)
