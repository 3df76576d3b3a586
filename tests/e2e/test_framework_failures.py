"""One rank fails in a collective of PyTorch or JAX: one error says what happened, and the next collective works."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

import skyward as sky
from skyward._pool.collective.diagnosis import STUCK_S
from skyward.errors import CollectiveHangError, WorkerLostError
from tests.e2e import jax_image
from tests.e2e.failing_frameworks import fails_in, total, works_on

torch = pytest.importorskip("torch", reason="torch is not installed here; `pip install -e .[dev]` brings it")

FRAMEWORKS = ["torch", "jax"]
STOPPED_S = 45.0  # ranks that were not stopped would run for a minute or more; it takes 2 s on an idle machine


def pool_of(framework: str, *more: sky.Plugin, **given: Any) -> sky.ComputePool:
    """Two containers whose ranks form a group, of the image that the framework's other tests use."""
    if framework == "torch":
        from tests.e2e.test_torch import IMAGE

        plugins = [sky.plugins.torch()]
    else:
        IMAGE, plugins = jax_image.IMAGE, [sky.plugins.jax(), sky.plugins.keras()]
    return sky.ComputePool(sky.Docker(), nodes=2, image=IMAGE, plugins=[*more, *plugins], **given)


@pytest.fixture(scope="module", params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def pool(framework: str) -> Iterator[sky.ComputePool]:
    with pool_of(framework) as pool:
        yield pool


def whole(pool: sky.ComputePool, framework: str) -> set[int]:
    """Check that a collective works, and give the processes it ran in."""
    sums, pids = zip(*(total(framework) @ pool), strict=True)
    assert sums == (3.0, 3.0)
    return set(pids)


def told(error: BaseException) -> str:
    """All that a user sees of an error, its remote traceback excepted."""
    return "".join(traceback.format_exception_only(error))


@pytest.mark.parametrize(
    ("victim", "how", "kind", "words"),
    [
        (1, "raise", LookupError, ["row 7 is missing", "rank 1 (node 1) failed first", "rank 0 (node 0) was here:"]),
        (1, "kill", WorkerLostError, ["node 1 (rank 1)", "signal 9 (SIGKILL)", "rank 0 (node 0)"]),
        (0, "kill", WorkerLostError, ["node 0 (rank 0)", "signal 9 (SIGKILL)", "rank 1 (node 1)"]),
    ],
    ids=["raise", "kill", "kill the head"],
)
def test_a_rank_that_fails_is_named(
    pool: sky.ComputePool, framework: str, victim: int, how: str, kind: type[Exception], words: list[str]
) -> None:
    """Not what the other ranks noticed of it; these are shown with the line they were in. The next collective works."""
    before = whole(pool, framework)
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        fails_in(framework, victim, how) @ pool
    assert time.monotonic() - began < STOPPED_S

    text = told(caught.value)
    for expected in [*words, "# nobody answers"]:
        assert expected in text
    if isinstance(caught.value, WorkerLostError):
        assert (caught.value.node, caught.value.rank) == (victim, victim)
    assert not whole(pool, framework) & before


def test_a_rank_that_returned_is_named_by_those_that_wait(pool: sky.ComputePool, framework: str) -> None:
    """Nobody could release them. It takes its time to be sure, and not longer than it may."""
    before = whole(pool, framework)
    began = time.monotonic()
    with pytest.raises(CollectiveHangError) as caught:
        fails_in(framework, 0, "return") @ pool
    assert STUCK_S < time.monotonic() - began < STOPPED_S + 0.5  # it returns half a second after the others wait

    assert (caught.value.returned, caught.value.waiting) == ((0,), (1,))
    assert "rank 0 (node 0) returned while the other ranks waited" in str(caught.value)
    assert "# nobody answers" in str(caught.value)
    assert not whole(pool, framework) & before


@pytest.mark.parametrize("framework", ["torch"], indirect=True)
def test_a_rank_that_computes_on_is_let_finish(pool: sky.ComputePool) -> None:
    """Uneven work is no hang, however long ago the others have returned."""
    before = whole(pool, "torch")
    idle, busy = works_on(STUCK_S + 3.0) @ pool
    assert (idle < 1.0, busy > STUCK_S) == (True, True)
    assert whole(pool, "torch") == before
