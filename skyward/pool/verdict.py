"""The one error of a call that failed on some of its ranks: what happened, on which of them, where the others were."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skyward.errors import CollectiveHangError, PartitionError, TaskError, WorkerLostError
from skyward.pool import whereabouts
from skyward.pool.culprit import Blame, Failure, culprit
from skyward.pool.hang import STUCK_S
from skyward.system import time
from skyward.wire import payload


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known of a failed call.

    Attributes:
        function: its name.
        names: what messages call the ranks.
        failures: how it failed, rank by rank.
        returned: ranks that had returned.
        samples: where ranks were that said so.
        dumps: the same of those that could not, as faulthandler writes it.
    """

    function: str
    names: Mapping[int, str]
    failures: Sequence[Failure]
    returned: Sequence[int]
    samples: Mapping[int, Mapping[str, Any]]
    dumps: Mapping[int, str]

    def accounts(self, but: int | None = None) -> str:
        """What became of the ranks, one excepted."""
        return whereabouts.listed((name, self._account(rank)) for rank, name in self.names.items() if rank != but)

    def _account(self, rank: int) -> str:
        own = [failure for failure in self.failures if failure.rank == rank]
        if own and own[0].record is not None:
            record = own[0].record
            return _at(f"raised {whereabouts.said(record)}", whereabouts.of_record(record))
        if own and isinstance(own[0].outcome, WorkerLostError):
            return f"ended as well. {str(own[0].outcome).partition(chr(10))[0]}"
        if rank in self.returned:
            return "had returned."
        if rank in self.dumps:
            places = whereabouts.of_dump(self.dumps[rank])
            return _at("did not answer; it was in code that holds the interpreter's lock", places)
        if places := whereabouts.of_sample(self.samples.get(rank, {})):
            return f"was here:\n{whereabouts.shown(places)}"
        return "was not in the call at that moment."


def of_failures(found: Findings) -> BaseException:
    """The error of the rank that is to blame, with what became of the others."""
    first = culprit(list(found.failures))
    name = found.names[first.rank]
    others = found.accounts(None if first.blame == Blame.STOPPED else first.rank)
    match first.blame:
        case Blame.STOPPED:
            said = "The ranks were then in these places:"
        case Blame.NOTICED:
            said = (
                f"{name} reported this first. Such an error mostly follows from the end or the delay of another rank, "
                "but none has reported one of its own. The others:"
            )
        case _:
            said = f"{name} failed first, and {found.function}() was stopped on the others:"
    return _with(first.error(), f"{said}\n{others}")


def of_hang(found: Findings, waiting: Sequence[int]) -> BaseException:
    """The error of a call on which some ranks wait for others that have returned."""
    gone = ", ".join(found.names[rank] for rank in sorted(found.returned))
    return CollectiveHangError(
        f"{found.function}() would not have ended: {gone} had returned, while all others waited for a rank to join "
        f"them, without moving for {STUCK_S:g} s. Every rank must make the same collective calls. They were stopped:\n"
        f"{found.accounts()}",
        returned=tuple(sorted(found.returned)),
        waiting=tuple(waiting),
    )


def of_partition(found: Findings, told: str, lost: Collection[tuple[int, int]], still_s: float) -> BaseException:
    """The error of a call whose ranks wait for what the network between their nodes loses; `told` says where."""
    since = time.strftime("%H:%M:%S", time.localtime(time.time() - still_s))
    return PartitionError(
        f"{found.function}() would not have gone on: the network between its nodes fails. {told} This client reaches "
        f"all of them, and no rank had moved for {still_s:.1f} s (since {since}). Look at the firewalls, routes and "
        "security groups between these addresses. The ranks are started afresh as soon as it works again; calls wait "
        f"until then. They were stopped:\n{found.accounts()}",
        lost=tuple(sorted(lost)),
        still_s=still_s,
    )


def of_disbanding(found: Findings, reason: str, rank: int, node: int) -> BaseException:
    """The error of a call that had begun when its ranks had to be started afresh because of something else."""
    return WorkerLostError(
        f"{found.function}() had begun when all ranks had to be started afresh, because {reason}. It was not run "
        f"again; @sky.compute(retries=1) would allow that. It was stopped:\n{found.accounts()}",
        node=node,
        rank=rank,
    )


def _with(error: BaseException, text: str) -> BaseException:
    """Say more in an error: in its message if it is of our making and this call's own, else in a note."""
    if isinstance(error, TaskError) and error.__cause__ is None:
        error.args = (f"{error}\n{text}",)
        return error
    return payload.noted(error, text)


def _at(what: str, places: list[whereabouts.Place]) -> str:
    return f"{what}, here:\n{whereabouts.shown(places)}" if places else f"{what}."
