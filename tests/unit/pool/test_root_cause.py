"""Which rank is to blame: what a peer noticed never hides what happened."""

from __future__ import annotations

import pytest

from skyward._pool.collective.diagnosis import Blame, Failure, root_cause
from skyward._pool.task import Task
from skyward.errors import PluginError, PoolClosedError, TaskTimeoutError, WorkerLostError
from tests.unit.pool.fakes import FUNCTION, error

GLOO = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:2269. This is "
    "typically caused by a remote worker crashing."
)
BLAME = {
    RuntimeError(GLOO): Blame.NOTICED,
    RuntimeError("[gloo/transport/unbound_buffer.cc:78] Timed out waiting 8000ms"): Blame.NOTICED,
    RuntimeError("UNKNOWN: Gloo all-reduce failed: [external/gloo/gloo/transport/tcp/pair.cc:547]"): Blame.NOTICED,
    RuntimeError("UNAVAILABLE: Task /job:jax_worker/task:1 heartbeat timeout."): Blame.NOTICED,
    ConnectionResetError(104, "Connection reset by peer"): Blame.NOTICED,
    EOFError("Ran out of input"): Blame.NOTICED,
    PluginError("gather('epoch'): rank 1 (node 1) raised ValueError: x."): Blame.NOTICED,
    PluginError("Plugin 'x': its hook failed."): Blame.RAISED,
    KeyError("epoch"): Blame.RAISED,
    RuntimeError("loss is not finite"): Blame.RAISED,
}


def task() -> Task:
    return Task(1, FUNCTION, b"", (), None, 0)


def raised(problem: BaseException, rank: int = 0, at: float = 1.0) -> Failure:
    return Failure.of(rank, at, task(), error(task(), problem))


def lost(rank: int = 0, at: float = 1.0, *, signal: int | None = None, code: int | None = None) -> Failure:
    gone = WorkerLostError("it ended", node=rank, rank=rank, signal=signal, exit_code=code)
    return Failure.of(rank, at, task(), gone)


@pytest.mark.parametrize("problem", BLAME, ids=repr)
def test_errors_that_peers_notice_are_known(problem: Exception) -> None:
    """Whatever does not speak of a peer counts as the cause."""
    assert raised(problem).blame == BLAME[problem]


def test_an_error_around_what_a_peer_noticed_is_no_cause_either() -> None:
    """A user who wraps the framework's error in one of their own has not become the root cause."""

    def wrap() -> None:
        try:
            raise RuntimeError(GLOO)
        except RuntimeError as noticed:
            raise ValueError("epoch 3 failed") from noticed

    with pytest.raises(ValueError, match="epoch 3") as caught:
        wrap()
    assert raised(caught.value).blame == Blame.NOTICED


def test_a_process_that_ended_is_to_blame_before_all_that_was_raised() -> None:
    """Although its peers told of it first."""
    noticed, own = raised(RuntimeError(GLOO), rank=0, at=1.0), raised(ValueError("x"), rank=2, at=1.01)
    ended = lost(rank=1, at=1.05, signal=9)
    assert root_cause([noticed, ended]) is ended
    assert root_cause([noticed, own, ended]) is ended
    assert root_cause([noticed, own]) is own


def test_a_process_that_aborted_itself_follows_another() -> None:
    """Frameworks abort when a peer has gone (jax, status -6): any other cause is more likely."""
    aborted = lost(rank=0, at=1.0, signal=6)
    assert aborted.blame == Blame.ABORTED
    assert root_cause([aborted, raised(ValueError("x"), rank=1, at=1.3)]).rank == 1
    assert root_cause([aborted, lost(rank=1, at=1.4, code=3)]).rank == 1
    assert root_cause([aborted, raised(RuntimeError(GLOO), rank=1, at=0.9)]) is aborted


@pytest.mark.parametrize("reason", [TaskTimeoutError("too long"), PoolClosedError("closed")])
def test_what_the_pool_stopped_is_told_as_that(reason: Exception) -> None:
    """The failures of ranks that were stopped are not the cause of anything."""
    stopped = Failure.of(0, 2.0, task(), reason)
    assert stopped.blame == Blame.STOPPED
    assert root_cause([raised(ValueError("x"), rank=1, at=1.0), stopped]) is stopped
    assert stopped.error() is reason
