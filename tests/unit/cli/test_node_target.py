"""Which node the words of a command name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from skyward.cli import places
from skyward.cli.cp import RemotePath
from skyward.cli.places import Place, find_node
from skyward.errors import ConfigError, ProviderError
from skyward.model.resource import Resource


def node(pool: str, number: int, **more: Any) -> Resource:
    about: Any = {"pool": pool, "node": number, "name": f"n-{pool}-{number}", "state": "running", "user": "", **more}
    found: Resource = about
    return found


@pytest.fixture(autouse=True)
def _warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the pools has a name."""
    monkeypatch.setattr(places, "identifiers", lambda pools: {each: {"warm": "abd2"}.get(each, each) for each in pools})


_NODES = (
    node("abc1", 0),
    node("abc1", 1),
    node("abd2", 3),
    node("abd2", 4, state="exited"),
    node("standby", -1, name="compose-a"),
    node("standby", -1, name="compose-b"),
    node("f00d", -1, state="folder"),
    node("f00d", 2),
)
_PROVIDER: Any = SimpleNamespace(find=lambda: _NODES)
HERE = Place("here", _PROVIDER)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["abc1"], "n-abc1-0"),
        (["abc", "1"], "n-abc1-1"),
        (["abc1:1"], "n-abc1-1"),
        (["abc1:"], "n-abc1-0"),
        (["warm"], "n-abd2-3"),
        (["warm:3"], "n-abd2-3"),
        (["abd2", "n-abd2-3"], "n-abd2-3"),
        (["standby:compose-b"], "compose-b"),
        (["f00d"], "n-f00d-2"),
    ],
)
def test_words_name_a_node(words: list[str], name: str) -> None:
    """By identifier, its begin or the pool's name, and by number or the node's name; else the first."""
    assert find_node([HERE], *words).node["name"] == name


@pytest.mark.parametrize(
    ("words", "kind", "named"),
    [
        (["ab"], ConfigError, "abc1, abd2"),
        (["abc1:0", "1"], ConfigError, "twice"),
        (["standby"], ConfigError, "compose-a, compose-b"),
        (["abc1", "7"], ProviderError, "0, 1"),
        (["abd2", "4"], ProviderError, "its nodes are 3"),
        (["nope"], ProviderError, "no pool nope"),
        ([""], ProviderError, "no pool"),
    ],
)
def test_words_that_name_no_one_node_are_refused(words: list[str], kind: type[Exception], named: str) -> None:
    """With what there is."""
    with pytest.raises(kind, match=named):
        find_node([HERE], *words)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("p:0:/work", RemotePath("p", "0", "/work")),
        ("p::data", RemotePath("p", None, "data")),
        ("p:1:", RemotePath("p", "1", "")),
        ("p:1:a:b", RemotePath("p", "1", "a:b")),
        ("data", None),
        ("./a:b:c", None),
        ("a:b", None),
        ("/x:1:y", None),
    ],
)
def test_paths_in_nodes_are_told_from_those_here(text: str, expected: RemotePath | None) -> None:
    """By two colons before any slash."""
    assert RemotePath.parse(text) == expected
