"""`sky.pool` as decorator, bare and called, and as context manager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import pytest

from skyward._pool.decorator import PoolDecorator


class FakePool:
    """Notes how it was made, entered and left."""

    made: list[FakePool]

    def __init__(self, provider: object = None, *, nodes: int = 1) -> None:
        self.settings = (provider, nodes)
        self.events: list[object] = []
        FakePool.made.append(self)

    def __enter__(self) -> Self:
        self.events.append("open")
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.events += ["close", error]


@pytest.fixture
def pool() -> PoolDecorator[Any]:
    FakePool.made = []
    return PoolDecorator(FakePool)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("decorate", "settings"),
    [
        (lambda pool: pool, (None, 1)),
        (lambda pool: pool(), (None, 1)),
        (lambda pool: pool("docker", nodes=3), ("docker", 3)),
        (lambda pool: pool(provider="docker"), ("docker", 1)),
    ],
    ids=["bare", "called", "positional", "keyword"],
)
def test_the_pool_exists_while_the_function_runs(
    pool: PoolDecorator[Any], decorate: Callable[[Any], Any], settings: tuple[object, int]
) -> None:
    """Each call opens a fresh pool with the given parameters and closes it; arguments and value pass through."""

    @decorate(pool)
    def main(a: int, *, b: int) -> list[Any]:
        """Entry."""
        return [a, b, list(FakePool.made[-1].events)]

    assert FakePool.made == []
    assert main(1, b=2) == main(1, b=2) == [1, 2, ["open"]]
    assert [made.settings for made in FakePool.made] == [settings] * 2
    assert [made.events for made in FakePool.made] == [["open", "close", None]] * 2
    assert (main.__name__, main.__doc__) == ("main", "Entry.")


def test_with_gives_the_pool(pool: PoolDecorator[Any]) -> None:
    """`with sky.pool(...) as p` opens a pool for the block; used again, or inside itself, it opens another."""
    scope = pool(nodes=2)

    with scope as outer, scope as inner:
        assert outer is not inner
    with scope as third:
        pass

    assert [made.settings for made in FakePool.made] == [(None, 2)] * 3
    assert all(made.events == ["open", "close", None] for made in (outer, inner, third))  # type: ignore[attr-defined]


async def later() -> None: ...


@pytest.mark.parametrize(
    ("fn", "said"), [(later, "later is asynchronous or a generator.*`with sky.pool"), (3, "found 3")]
)
def test_what_runs_later_is_refused(pool: PoolDecorator[Any], fn: Any, said: str) -> None:
    """A coroutine or generator would run after its pool has gone: refused at decoration, with a remedy."""
    with pytest.raises(TypeError, match=said):
        pool(nodes=2)(fn)
