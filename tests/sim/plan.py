"""What one simulation does: the pool's shape, what is asked of it and what goes wrong, all out of the seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Op:
    """One thing that a caller does.

    Attributes:
        kind: see `Workload` in `scenario.py`.
        tokens: numbers of its calls, each in the whole simulation once.
    """

    kind: str
    tokens: tuple[int, ...]
    seconds: float = 0.0
    sent: int = 0
    returned: int = 0
    lines: int = 0
    retries: int = 0
    timeout: float | None = None
    count: int = 0
    fails_on: tuple[int, ...] = ()  # ranks that raise
    telling_s: float = 0.0  # how long such a rank takes to tell its error


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong: at a moment, or at one of the scheduler's steps if it is `exact`.

    Attributes:
        after: an event and how often it has to happen (see `World.event`); `at_s` then counts from there.
    """

    kind: str
    at_s: float
    step: int
    exact: bool
    seconds: float
    chance: float
    after: tuple[str, int] | None = None


@dataclass(frozen=True)
class Plan:
    """One simulation."""

    seed: int
    nodes: int
    least: int
    concurrency: int
    executor: str
    per_node: int
    buffer: int
    collective: bool
    secrets: bool
    containers: bool
    lease_s: float
    latency_s: float
    capacity: int
    start_s: float
    callers: tuple[tuple[Op, ...], ...]
    faults: tuple[Fault, ...]
    failing_calls: dict[int | str, str] = field(default_factory=dict)  # of the provider, by number or by name

    @property
    def slots(self) -> int:
        """Calls at once in a worker process."""
        return 1 if self.executor == "process" else self.concurrency

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node


KILLS = ("kill-worker", "kill-worker", "kill-agent", "kill-node", "term-node")
STOPS = ("stop-node", "stop-worker", "stop-client", "leave")
LINKS = ("cut-to", "cut-from", "cut", "reset", "slow")
_KINDS = (
    *("one", "gather", "background", "callback", "cancel", "stream", "half", "arriving", "raise", "everywhere", "hold"),
    "together",
)
_WEIGHTS = (3, 4, 2, 1, 2, 1, 1, 1, 1, 2, 0.5)
SECONDS = (0.0, 0.0, 0.0, 0.001, 0.003, 0.02, 0.3, 2.0)


def plan(seed: int) -> Plan:
    """The plan of a seed: what chance gives, and in some of them faults that follow on another closely."""
    chosen, rng = _plan(seed), random.Random(seed * 2)
    return rng.choice(STORIES)(chosen, rng) if rng.random() < STORY else chosen


def _plan(seed: int) -> Plan:
    rng = random.Random(seed * 2 + 1)
    nodes = rng.choice((1, 1, 2, 2, 3))
    shape = rng.random()
    executor = "process" if shape < 0.25 else "thread"
    concurrency = rng.choice((1, 1, 2, 4)) if executor == "thread" else 2
    per_node = 2 if executor == "thread" and rng.random() < 0.15 else 1
    collective = executor == "thread" and nodes * per_node > 1 and rng.random() < 0.35
    tokens = itertools.count(1, 1000)
    ranks = nodes * per_node
    large = rng.random() < 0.35
    callers = tuple(
        tuple(_op(rng, tokens, collective, ranks, large) for _ in range(rng.randrange(1, 5)))
        for _ in range(rng.choice((1, 1, 2, 3)))
    )
    return Plan(
        seed=seed,
        nodes=nodes,
        least=nodes if collective or rng.random() < 0.7 else max(1, nodes - 1),
        concurrency=concurrency,
        executor=executor,
        per_node=per_node,
        buffer=rng.choice((0, 0, 0, 4, 16)),
        collective=collective,
        secrets=rng.random() < 0.3,
        containers=rng.random() < 0.5,
        lease_s=rng.choice((5.0, 15.0, 60.0)),
        latency_s=rng.choice((0.0, 0.0001, 0.002, 0.05)),
        capacity=rng.choice((4096, 65536)),
        start_s=rng.choice((0.01, 0.2, 1.0)),
        callers=callers,
        faults=_faults(rng),
        failing_calls=_failing_calls(rng),
    )


def _op(rng: random.Random, tokens: itertools.count[int], collective: bool, ranks: int, large: bool) -> Op:
    kind = rng.choices(_KINDS, (*_WEIGHTS, 5 if collective else 0))[0]
    count = {
        "gather": rng.choice((3, 8, 30)),
        "arriving": 5,
        "background": 4,
        "callback": 4,
        "cancel": rng.choice((1, 6)),
        "stream": 3,
        "half": 3,
    }
    seconds = rng.choice(SECONDS)
    return Op(
        kind=kind,
        tokens=tuple(next(tokens) for _ in range(count.get(kind, 1))),
        seconds=seconds,
        sent=rng.choice((0, 3000, 20_000)) if large else 0,
        returned=rng.choice((0, 3000, 20_000)) if large else 0,
        lines=rng.choice((0, 0, 1, 4)),
        retries=rng.choice((0, 0, 1, 3)),
        timeout=rng.choice((0.5, 1.0)) if seconds in {0.3, 2.0} and rng.random() < 0.25 else None,
        count=rng.choice((1, 5, 30)) if kind in {"stream", "half"} else rng.choice((0, 1, 3)),
        fails_on=(rng.randrange(ranks),) if rng.random() < 0.3 else (),
    )


def _faults(rng: random.Random) -> tuple[Fault, ...]:
    mood = rng.random()
    if mood < 0.25:
        return ()
    kinds = KILLS if mood < 0.55 else STOPS if mood < 0.7 else LINKS if mood < 0.85 else (*KILLS, *STOPS, *LINKS)
    found = [_fault(rng, rng.choice(kinds)) for _ in range(rng.choice((1, 1, 2, 4)))]
    if rng.random() < 0.06:
        found.append(_fault(rng, "kill-client"))
    if rng.random() < 0.25:
        found.append(_fault(rng, "close"))
    return tuple(found)


def _fault(rng: random.Random, kind: str) -> Fault:
    return Fault(
        kind=kind,
        at_s=rng.choice((rng.random() * 0.05, rng.random(), 1 + rng.random() * 10)),
        step=rng.randrange(200, 6000),
        exact=rng.random() < 0.6,
        seconds=rng.choice((0.5, 3.0, 25.0)),
        chance=rng.random(),
    )


def _failing_calls(rng: random.Random) -> dict[int | str, str]:
    if rng.random() > 0.1:
        return {}
    ways = ("fail-before", "fail-after", "crash-before", "crash-after", "slow")
    return {rng.randrange(1, 10): rng.choice(ways) for _ in range(rng.choice((1, 1, 3)))}


# faults that follow on another closely, which chance alone seldom gives -------------------------------------------


def _leaves_as_the_pool_ends(chosen: Plan, rng: random.Random) -> Plan:
    """A host is taken away, and the pool is closed, or its provider fails, while its node is seen off."""
    leave = replace(_fault(rng, "leave"), exact=False, after=("begins", 1), seconds=25.0)
    close = replace(_fault(rng, "close"), exact=False, after=("leaving", 1), at_s=rng.random() * 0.06)
    failing: dict[int | str, str] = {"remove": "fail-before"}
    if rng.random() < 0.5:
        return replace(chosen, faults=(leave, close), failing_calls={})
    return replace(chosen, faults=(leave,), failing_calls=failing)


def _ends_in_a_set_up(chosen: Plan, rng: random.Random) -> Plan:
    """The pool is closed while ranks that were started afresh are set up."""
    chosen = _group(chosen, rng)
    kill = replace(_fault(rng, "kill-worker"), exact=False, after=("begins", 1), at_s=rng.random() * 0.1)
    close = replace(_fault(rng, "close"), exact=False, after=("setup", 2), at_s=rng.random() * 0.15)
    return replace(chosen, secrets=True, latency_s=0.05, faults=(kill, close), failing_calls={})


def _becomes_a_group(chosen: Plan, rng: random.Random) -> Plan:
    """A worker ends, and the first call of a group comes before it has been started again."""
    chosen = _group(chosen, rng)
    first = Op("one", (700_001,), seconds=rng.choice((0.02, 0.3)), retries=3)
    kill = replace(_fault(rng, "kill-worker"), exact=False, after=("begins", 1), at_s=rng.random() * 0.02)
    callers = (((first, *chosen.callers[0])), *chosen.callers[1:])
    return replace(chosen, callers=callers, start_s=1.0, faults=(kill,), failing_calls={})


def _fails_on_several(chosen: Plan, rng: random.Random) -> Plan:
    """Several ranks of a group fail, one a little later than the other, which takes time to tell of it."""
    chosen = _group(chosen, rng)
    ranks = tuple(sorted(rng.sample(range(chosen.ranks), 2)))
    op = Op("together", (800_001,), seconds=1.0, count=1, fails_on=ranks, telling_s=rng.random() * 0.55)
    return replace(chosen, callers=((op,),), faults=(), failing_calls={}, latency_s=min(chosen.latency_s, 0.002))


def _does_not_read(chosen: Plan, rng: random.Random) -> Plan:
    """A node is stopped whose connections take little before they are full."""
    stop = replace(_fault(rng, "stop-node"), seconds=25.0)
    ops = (Op("one", (900_001,), seconds=rng.choice((0.3, 12.0)), retries=3), Op("one", (901_001,), seconds=2.0))
    return replace(chosen, callers=(ops,), capacity=128, faults=(stop,), failing_calls={}, lease_s=15.0)


def _group(chosen: Plan, rng: random.Random) -> Plan:
    """The same as a pool of several ranks, each with a slot, that are called together."""
    small = replace(chosen, nodes=rng.choice((2, 3)), per_node=1, executor="thread", concurrency=1, collective=True)
    ops = tuple(Op("together", (600_001 + 1000 * n,), seconds=0.02, count=1) for n in range(2))
    return replace(small, least=small.nodes, callers=(ops,), buffer=0)


STORY = 0.2  # of all seeds
STORIES: tuple[Callable[[Plan, random.Random], Plan], ...] = (
    _leaves_as_the_pool_ends,
    _ends_in_a_set_up,
    _becomes_a_group,
    _fails_on_several,
    _does_not_read,
)
