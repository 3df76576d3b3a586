"""The client's side of `gather`: everybody gets everything, or everybody hears who did not come and why."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from typing import Any, cast

import pytest

from skyward._pool.background import Timers
from skyward._pool.services import GatherCoordinator
from skyward.errors import WireError, WorkerLostError
from skyward.wire import payload
from skyward.wire.frames import Buffer, Connection, Frame
from skyward.wire.messages import RESULT_HEAD, Kind, decode, encode
from tests.unit.pool.fakes import FakeTime

NAMES = {0: "rank 0 (node 0)", 1: "rank 1 (node 0)", 2: "rank 2 (node 1)"}


class Rank:
    """A worker that gathers, with all that it is answered."""

    def __init__(self, number: int) -> None:
        self.number, self.rounds = number, 0
        self.answers: SimpleQueue[Frame] = SimpleQueue()
        self.gone = False
        self.connection = cast(Connection, self)

    def post(self, frame: Frame) -> None:
        if self.gone:
            raise WireError("The connection broke while sending.")
        self.answers.put(frame)

    def gather(self, value: object, name: str = "port", *, number: int = 0, timeout_s: float | None = None) -> Frame:
        self.rounds = number or self.rounds + 1
        data, buffers = payload.dumps(value)
        head = encode({"name": name, "round": self.rounds, "timeout_s": timeout_s})
        parts: list[Buffer] = [data, *buffers]
        return Frame(Kind.GATHER, 70 + self.number, head, parts)

    def answer(self) -> Any:
        """What it is answered: the values, or the text of an error."""
        frame = self.answers.get(timeout=60)
        document = decode(frame.head)
        assert (frame.kind, frame.id, document["round"]) == (Kind.GATHERED, 70 + self.number, self.rounds)
        if "error" in document:
            return document["error"]
        values, start = [], 0
        for parts in document["parts"]:
            data, *buffers = frame.buffers[start : start + parts]
            values.append(payload.loads(data, buffers))
            start += parts
        return values

    def hears_nothing(self) -> bool:
        try:
            self.answers.get(timeout=0.05)
        except Empty:
            return True
        return False


class Meeting:
    """Three ranks on two nodes, in a time of their own."""

    def __init__(self) -> None:
        self.time = FakeTime()
        self.ranks = [Rank(number) for number in NAMES]
        self.coordinator = GatherCoordinator(NAMES, cast(Timers, self.time))

    def give(self, rank: int, value: object = None, name: str = "port", **how: Any) -> None:
        self.coordinator.give(rank, self.ranks[rank].connection, self.ranks[rank].gather(value, name, **how))

    def answers(self, *ranks: int) -> list[Any]:
        return [self.ranks[rank].answer() for rank in ranks]


@pytest.fixture
def meeting() -> Meeting:
    return Meeting()


def test_a_late_rank_is_named_to_all(meeting: Meeting) -> None:
    """To those that wait when the time is up, and to the late one when it comes."""
    meeting.give(0)
    meeting.time.pass_(59)
    meeting.give(2)
    assert meeting.ranks[0].hears_nothing()
    meeting.time.pass_(2)
    meeting.give(1)

    for text in meeting.answers(0, 1, 2):
        assert text.startswith("rank 1 (node 0) did not come within")
        assert text.endswith("while rank 0 (node 0), rank 2 (node 1) waited.")


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (None, "has returned without it."),
        (Frame(Kind.RESULT, 71, RESULT_HEAD.pack(0.1)), "has returned without it."),
        (
            Frame(Kind.ERROR, 71, RESULT_HEAD.pack(0.1) + payload.dump_exception(ValueError("the number is odd"))),
            "raised ValueError: the number is odd.",
        ),
        (WorkerLostError("It was killed.\nIts last output:\n  x", node=0, rank=1), "failed: It was killed."),
    ],
)
@pytest.mark.parametrize("before", [True, False])
def test_a_rank_that_ends_is_named_to_all(
    meeting: Meeting, outcome: Frame | BaseException | None, words: str, before: bool
) -> None:
    """With what became of it, at once; before or while the others wait."""
    if not before:
        meeting.give(0)
    meeting.coordinator.ended(1, outcome)
    if before:
        meeting.give(0)
    meeting.give(2)

    assert meeting.answers(0, 2) == [f"rank 1 (node 0) {words}"] * 2


def test_ranks_that_gather_something_else_are_named(meeting: Meeting) -> None:
    """Both names and both ranks."""
    meeting.give(2, name="port")
    meeting.give(0, name="address")
    meeting.give(1, name="port")

    (text, *others) = meeting.answers(0, 1, 2)
    assert others == [text, text]
    assert text.startswith("rank 0 (node 0) calls gather('address') where rank 2 (node 1) called gather('port').")


def test_a_rank_that_runs_again_is_out_of_step(meeting: Meeting) -> None:
    """It would take part in a later gather than it thinks."""
    for rank in range(3):
        meeting.give(rank)
    meeting.answers(0, 1, 2)
    meeting.give(0)
    meeting.give(1, number=1)

    assert meeting.answers(0, 1) == ["rank 1 (node 0) was restarted in the middle of it, and is out of step with "
                                     "the others."] * 2  # fmt: skip
