"""Patterns of files to leave out, against what Docker documents of .dockerignore files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward.builder.files.ignore import Ignore
from skyward.errors import ConfigError
from skyward.model.ignore import normal_patterns

NAMES = st.text("ab.*?!/ ", max_size=6)
PATHS = st.lists(st.sampled_from(["a", "b", "ab", "a.b", "x"]), min_size=1, max_size=4).map("/".join)


@pytest.mark.parametrize(
    ("pattern", "left_out", "kept"),
    [
        ("*/temp*", ["some/temporary.txt", "some/temp", "a/tempdir/x"], ["temporary.txt", "a/b/temp"]),
        ("temp?", ["tempa", "tempb/x"], ["temp", "tempab", "a/tempa"]),
        ("**/*.go", ["x.go", "a/x.go", "a/b/c/x.go"], ["x.gone", "a/go"]),
        ("foo/bar", ["foo/bar", "foo/bar/x/y"], ["a/foo/bar", "foo", "foo/barn"]),
        ("/foo/bar", ["foo/bar"], ["a/foo/bar"]),
        ("./foo/../bar", ["bar"], ["foo"]),
        ("  foo  ", ["foo"], []),
        ("a/**/z", ["a/z", "a/b/z", "a/b/c/z"], ["az", "b/a/z"]),
        ("[^a-c]x", ["dx"], ["ax", "/x"]),
        (r"\*x", ["*x"], ["ax"]),
        ("a$(b)+{c}|d", ["a$(b)+{c}|d"], []),
        ("", [], ["a"]),
    ],
)
def test_one_pattern(pattern: str, left_out: list[str], kept: list[str]) -> None:
    """A pattern is anchored at the root, matches whole paths, and with a directory what is in it."""
    ignore = Ignore([pattern])
    assert [path for path in left_out if not ignore(path)] == []
    assert [path for path in kept if ignore(path)] == []


@pytest.mark.parametrize(
    ("patterns", "left_out", "kept"),
    [
        (["*.md", "!README.md"], ["a.md"], ["README.md"]),
        (["*.md", "!README*.md", "README-secret.md"], ["a.md", "README-secret.md"], ["README.md", "README-x.md"]),
        (["dir", "!dir/keep"], ["dir/x", "dir/sub/keep"], ["dir/keep", "dir/keep/x"]),
        (["!a", "a"], ["a"], ["b"]),
        (["! a ", "b"], ["b"], ["a"]),
    ],
)
def test_the_last_match_decides(patterns: list[str], left_out: list[str], kept: list[str]) -> None:
    """`!` takes back what patterns before it left out; the last one that matches has the word."""
    ignore = Ignore(patterns)
    assert [path for path in left_out if not ignore(path)] == []
    assert [path for path in kept if ignore(path)] == []
    assert ignore.has_exceptions


@pytest.mark.parametrize("pattern", ["[a", "!", "! ", "a\\", "[]", "[z-a]", "a[b"])
def test_what_cannot_be_read_is_refused(pattern: str) -> None:
    """A pattern that Docker would refuse is refused with field and value."""
    with pytest.raises(ConfigError, match=r"Image: excludes must be patterns as a \.dockerignore file has them"):
        Ignore([pattern])


@given(st.lists(NAMES, max_size=4), PATHS)
def test_the_normal_form_means_the_same(patterns: list[str], path: str) -> None:
    """Bringing patterns into their normal form changes no answer, and doing it again changes nothing."""
    try:
        normal = normal_patterns(patterns)
    except ConfigError:
        return
    assert normal_patterns(normal) == normal
    assert Ignore(normal)(path) == Ignore(patterns)(path)
    in_turn = False
    for pattern in normal:
        matched = Ignore([pattern.removeprefix("!")])(path)
        in_turn = (not pattern.startswith("!")) if matched else in_turn
    assert Ignore(patterns)(path) == in_turn
