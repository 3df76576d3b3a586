"""One simulation: a pool, callers that use it, faults, and the comparison of what they got with what must be."""

from __future__ import annotations

import gc
import itertools
import time as real_time
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tests.sim import install, kernel, net, node, threads, world
from tests.sim.functions import ModelError, everywhere, fail, hold, items, result, together, work
from tests.sim.plan import Op, Plan, plan

# isort: split
from skyward._pool.pool import ComputePool
from skyward.errors import (
    PluginError,
    PoolClosedError,
    PoolError,
    SkywardError,
    TaskCancelledError,
    TaskTimeoutError,
    WorkerLostError,
)
from skyward.model.spec import Nodes, Worker

CLOSE_S = 45.0  # within which the end of a pool ends, whatever has happened
OVER_S = 900.0

node.patch()


class Call(NamedTuple):
    """A call as the expression language hands it to a pool."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    timeout: float | None
    retries: int


@dataclass(frozen=True)
class Outcome:
    """How a simulation ended.

    Attributes:
        failure: what was wrong, with the stacks of all threads where that tells something; "" if nothing was.
        hash: of all switches; equal for equal seeds.
    """

    seed: int
    failure: str
    hash: int
    steps: int
    switches: int
    virtual_s: float
    wall_s: float
    trace: list[tuple[Any, ...]]


class Workload:
    """The callers of one simulation."""

    def __init__(self, pool: ComputePool, chosen: Plan) -> None:
        self.pool, self.plan = pool, chosen
        self.retries = {token: op.retries for ops in chosen.callers for op in ops for token in op.tokens}
        self.succeeded: dict[int, int] = {}  # lines of calls that returned
        self.lost_unbegun = 0
        self.left = len(chosen.callers)
        self.over: Callable[[], None] = lambda: None

    def caller(self, ops: tuple[Op, ...]) -> None:
        """Do one thing after the other (a thread of the client)."""
        for op in ops:
            kernel.K.note("op", op)
            getattr(self, f"_{op.kind}")(op)
            kernel.K.note("done", op.kind, op.tokens[0])
        self.left -= 1
        if not self.left:
            self.over()

    # what is asked ---------------------------------------------------------------------------------------------

    def _call(self, op: Op, token: int) -> Call:
        return Call(work, (token, op.seconds, b"a" * op.sent, op.returned, op.lines), {}, op.timeout, op.retries)

    def _one(self, op: Op) -> None:
        token = op.tokens[0]
        self._expect(op, token, lambda: self.pool._run(self._call(op, token)))

    def _raise(self, op: Op) -> None:
        call = Call(fail, (op.tokens[0], op.seconds), {}, op.timeout, op.retries)
        self._expect(op, op.tokens[0], lambda: self.pool._run(call), raises=True)

    def _hold(self, op: Op) -> None:
        call = Call(hold, (op.tokens[0], op.seconds * 4), {}, op.timeout, op.retries)
        self._expect(op, op.tokens[0], lambda: self.pool._run(call), returned=0, lines=0)

    def _gather(self, op: Op) -> None:
        try:
            got = self.pool._run_parallel([self._call(op, token) for token in op.tokens])
        except Exception as error:
            self._error(op, op.tokens, error)
        else:
            for token, value in zip(op.tokens, got, strict=True):
                self._value(op, token, value)

    def _arriving(self, op: Op) -> None:
        got: list[Any] = []
        try:
            got.extend(self.pool._run_stream([self._call(op, t) for t in op.tokens], ordered=op.count == 0))
        except Exception as error:
            self._error(op, op.tokens, error)
        else:
            wanted = [result(token, op.returned) for token in op.tokens]
            if (got if op.count == 0 else sorted(got)) != wanted:
                kernel.K.fail(f"the results of {op.tokens} are {got}")

    def _background(self, op: Op) -> None:
        try:
            futures = [self.pool._run_async(self._call(op, token)) for token in op.tokens]
        except SkywardError as error:
            self._error(op, op.tokens, error)
            return
        for token, future in zip(op.tokens, futures, strict=True):
            self._expect(op, token, future.result)

    def _callback(self, op: Op) -> None:
        """Each call is followed by another one, which the callback of its future makes."""
        over = threads.Semaphore(0)
        half = len(op.tokens) // 2
        try:
            futures = [self.pool._run_async(self._call(op, token)) for token in op.tokens[:half]]
        except SkywardError as error:
            self._error(op, op.tokens, error)
            return
        for future, token in zip(futures, op.tokens[half:], strict=True):

            def follow(_future: Any, token: int = token) -> None:
                try:
                    self._expect(op, token, lambda: self.pool._run(self._call(op, token)))
                finally:
                    over.release()
                if op.count == 0:
                    raise SystemExit  # which ends nothing else

            future.add_done_callback(follow)
        for token, future in zip(op.tokens, futures, strict=False):
            self._expect(op, token, future.result)
        for _ in futures:
            over.acquire()

    def _cancel(self, op: Op) -> None:
        k = kernel.K
        try:
            futures = [self.pool._run_async(self._call(op, token)) for token in op.tokens]
        except SkywardError as error:
            self._error(op, op.tokens, error)
            return
        if op.count:
            k.sleep(op.count * 0.01)
        for token, future in zip(op.tokens, futures, strict=True):
            future.cancel()
            world.W.cancelled[token] = k.now
        for token, future in zip(op.tokens, futures, strict=True):
            began = k.now
            self._expect(op, token, future.result, cancelled=True)
            if k.now - began > 1.0 and not world.W.faults:
                k.fail(f"call {token} was cancelled, and its future was done {k.now - began:.1f} s later")

    def _stream(self, op: Op) -> None:
        self._items(op, op.count)

    def _half(self, op: Op) -> None:
        self._items(op, op.count // 2)

    def _items(self, op: Op, take: int) -> None:
        """Read items, and make other calls before and after: the generator needs no slot while it waits for them."""
        call = Call(items, (op.tokens[0], op.count, op.seconds * 0.1), {}, op.timeout, op.retries)
        got: list[Any] = []
        try:
            stream = self.pool._run(call)
            self._one(replace(op, tokens=op.tokens[1:]))
            got.extend(itertools.islice(stream, take))
            self._one(replace(op, tokens=op.tokens[2:]))
            if len(got) < take:
                kernel.K.fail(f"stream {op.tokens[0]} ended after {len(got)} of {op.count} items")
            if take == op.count and next(stream, None) is not None:
                kernel.K.fail(f"stream {op.tokens[0]} has more than its items")
            stream.close()
        except Exception as error:
            self._error(op, op.tokens[:1], error)
        if got != [op.tokens[0] + number for number in range(len(got))]:
            kernel.K.fail(f"the items of {op.tokens[0]} are {got}")

    def _everywhere(self, op: Op) -> None:
        self._broadcast(op, everywhere)

    def _together(self, op: Op) -> None:
        self._broadcast(op, together)

    def _broadcast(self, op: Op, fn: Callable[..., Any]) -> None:
        gathers = op.count if self.plan.ranks > 1 and self.plan.executor == "thread" else 0
        token = op.tokens[0]
        call = Call(fn, (token, op.seconds, gathers, op.fails_on, op.telling_s), {}, op.timeout, op.retries)
        try:
            got = self.pool._broadcast(call)
        except Exception as error:
            self._error(op, op.tokens, error, raises=bool(op.fails_on) and gathers > 0, broadcast=True)
            return
        per_node = self.plan.concurrency if self.plan.executor == "process" else 1
        if [value[:2] for value in got] != [(token, number * per_node) for number in range(self.plan.ranks)]:
            kernel.K.fail(f"the results of broadcast {token} are {got}")
        for number, first in enumerate(got[0][2]):
            if any(value[2][number] != first for value in got):
                kernel.K.fail(f"the ranks of broadcast {token} saw different ranks: {got}")
            if [value[:2] for value in first] != [(token, rank) for rank in range(self.plan.ranks)]:
                kernel.K.fail(f"gather {number} of broadcast {token} gave {first}")

    # what comes of it ------------------------------------------------------------------------------------------

    def _expect(self, op: Op, token: int, get: Callable[[], Any], **allowed: Any) -> None:
        returned, lines = allowed.pop("returned", op.returned), allowed.pop("lines", op.lines)
        try:
            value = get()
        except Exception as error:
            self._error(op, (token,), error, **allowed)
            return
        if allowed.get("raises"):
            kernel.K.fail(f"call {token} raises, and returned {value!r}")
        elif value != result(token, returned):
            kernel.K.fail(f"call {token} returned {value!r}")
        else:
            self.succeeded[token] = lines
            self._check_limit(op, token)

    def _value(self, op: Op, token: int, value: Any) -> None:
        if value != result(token, op.returned):
            kernel.K.fail(f"call {token} returned {value!r}")
        self.succeeded[token] = op.lines
        self._check_limit(op, token)

    def _check_limit(self, op: Op, token: int) -> None:
        """A call that has returned did so within its limit."""
        run = world.W.runs[token][-1]
        if op.timeout is not None and not world.W.faults and (run.ended or 0) - run.began > op.timeout + 1.0:
            kernel.K.fail(f"call {token} returned after {(run.ended or 0) - run.began:.1f} s: beyond its limit")

    def _error(
        self,
        op: Op,
        tokens: tuple[int, ...],
        error: BaseException,
        *,
        raises: bool = False,
        cancelled: bool = False,
        broadcast: bool = False,
    ) -> None:
        """Whether an error may be the outcome of these calls."""
        w = world.W
        kernel.K.note("error", op.kind, tokens, repr(error))
        runs = [run for token in tokens for run in w.runs.get(token, ())]
        if isinstance(error, ModelError) and raises:
            self._check_accounts(op, error)
            return
        if isinstance(error, CancelledError | TaskCancelledError) and cancelled:
            return
        if isinstance(error, TaskTimeoutError) and op.timeout is not None:
            ages = [(run.ended or kernel.K.now) - run.began for run in runs]
            # of STARTED, and of a result that the same thread writes before it begins: its own, or another slot's
            returned = max(each.returned for ops in self.plan.callers for each in ops)
            way_s = 4 * self.plan.latency_s * (1 + returned / self.plan.capacity)
            held_up = not ages and any(each.kind == "hold" for ops in self.plan.callers for each in ops)  # as it began
            if not held_up and (not ages or max(ages) < op.timeout - 0.01 - way_s) and not w.node_faults:
                kernel.K.fail(f"{tokens} ran {ages} s and failed of their limit of {op.timeout:g} s: {error}")
            return
        if isinstance(error, WorkerLostError):
            disbanded = broadcast and self.plan.slots > 1  # with another one, which failed
            if not (self._ended_workers() or w.node_faults or disbanded):
                kernel.K.fail(f"{tokens} failed though no worker has ended: {error}")
            if not runs and not w.node_faults and not broadcast:
                self.lost_unbegun += 1
                if self.lost_unbegun > self._ended_workers() * self.plan.slots:
                    kernel.K.fail(f"{tokens} had not begun and failed: {error}")
            return
        self._check_came(tokens, error)
        if isinstance(error, PoolError | PluginError) and (w.node_faults or (broadcast and (raises or w.faults))):
            return
        if isinstance(error, PoolClosedError) and w.closing:
            return
        if isinstance(error, PluginError) and broadcast and self._ended_workers():
            return
        kernel.K.fail(f"{op.kind} {tokens} failed with {type(error).__name__}: {error}")

    def _check_accounts(self, op: Op, error: ModelError) -> None:
        """The error of a group says of every rank that has failed that it has, and not that it was nowhere."""
        failed = {run.rank: run.failed for run in world.W.runs[op.tokens[0]] if run.failed is not None}
        in_time = bool(failed) and max(failed.values()) + op.telling_s - min(failed.values()) < 0.6
        text = "\n".join(getattr(error, "__notes__", ()))
        if op.telling_s and in_time and not world.W.faults and "was not in the call" in text:
            kernel.K.fail(f"ranks {list(failed)} of {op.tokens} had failed, and one is told as absent: {text}")

    def _check_came(self, tokens: tuple[int, ...], error: BaseException) -> None:
        """A rank comes within a minute where all that has gone wrong are workers that ended: they are started again."""
        kinds = {op.kind for ops in self.plan.callers for op in ops}
        faults = {fault.kind for fault in self.plan.faults}
        only_restarts = not world.W.node_faults and faults <= {"kill-worker"} and not kinds & {"hold", "raise"}
        if only_restarts and "did not come within" in str(error):
            kernel.K.fail(f"{tokens}: a rank that was started again never came: {error}")

    def _ended_workers(self) -> int:
        return sum(not process.alive or process.stopped for each in world.W.nodes for process in each.workers)


def simulate(seed: int, *, told: bool = False, ignored: str = "", chosen: Plan | None = None) -> Outcome:
    """Run the simulation of a seed."""
    chosen = chosen or plan(seed)
    began = real_time.perf_counter()
    k = kernel.K = kernel.Kernel(seed, limit_s=OVER_S, ignored=ignored)
    k.trace = [] if told else None
    install.chance.seed(seed)
    net.N = net.Network()
    net.N.capacity = chosen.capacity
    net.Socket._numbers = itertools.count(1)
    w = world.W = world.World(k, chosen)
    gc.disable()
    referee = kernel.Process(k, "world:referee")
    client = k.spawn(w.client, "main", lambda: _client(chosen), "client.main")
    first = k.spawn(referee, "referee", lambda: _referee(w, client), "referee")
    try:
        k.run(first)
    finally:
        kernel.K = None
        gc.enable()
    wall_s = real_time.perf_counter() - began
    return Outcome(seed, k.failure, k.hash, k.steps, k.switches, k.now - 1000, wall_s, k.trace or [])


def _client(chosen: Plan) -> None:
    """The main thread of the client."""
    k, w = kernel.K, world.W
    pool = w.pool = ComputePool(
        node.Provider(),
        nodes=Nodes(desired=chosen.nodes, min=chosen.least),
        worker=Worker(
            concurrency=chosen.concurrency,
            executor=chosen.executor,  # type: ignore[arg-type]
            per_node=chosen.per_node,
            buffer=chosen.buffer,
        ),
        secrets={"SIMULATED": "1"} if chosen.secrets else (),
        ttl=chosen.lease_s,
        provision_timeout=60.0,
    )
    load = Workload(pool, chosen)
    for fault in (fault for fault in chosen.faults if fault.after is None):  # the others follow on an event
        if fault.exact:
            k.at_step.setdefault(k.steps + fault.step, lambda fault=fault: w.happen(fault))
        else:
            k.after(fault.at_s, lambda fault=fault: w.happen(fault))
    try:
        pool.__enter__()
    except SkywardError as error:
        if not w.faults and not w.node_faults:
            k.fail(f"the pool could not be opened: {error!r}")
        return
    callers = [threads.Thread(target=load.caller, args=(ops,), name="caller") for ops in chosen.callers]
    over, opened = threads.Event(), k.now
    load.over = w.on_close = over.set
    for caller in callers:
        caller.start()
    over.wait()
    began, w.closing = k.now, True
    try:
        pool.__exit__(None, None, None)
    except SkywardError as error:
        if not w.node_faults:
            k.fail(f"the pool could not be closed: {error!r}")
    bound = _bound(chosen) * (1 + w.faults) + 30.0 * w.faults
    if (took := began - opened) > bound and not w.node_faults and not w.stops:
        k.fail(f"all was done after {took:.1f} s, which should take at most {bound:.1f} s")
    if k.now - began > CLOSE_S + w.stopped_client_s:
        k.fail(f"the end of the pool took {k.now - began:.1f} s")
    for caller in callers:
        caller.join(CLOSE_S)
        if caller.is_alive():
            k.fail(f"a caller still waits {CLOSE_S:g} s after the pool was closed")
    w.check_output(load.succeeded)
    w.check_runs(load.retries)
    left = [t for t in w.client.threads if not t.done and not t.dead and t.role != "client.main"]
    k.note("threads left", left)


def _bound(chosen: Plan) -> float:
    """Within how many seconds everything is done if nothing goes wrong."""
    bound = 3.0
    for op in (op for ops in chosen.callers for op in ops):
        times = {"hold": 4.0, "stream": 3.0, "half": 3.0}.get(op.kind, 4.0 * (op.count + 1) if op.fails_on else 1.0)
        stops = op.timeout is not None or op.kind in {"cancel", "half", "arriving", "everywhere", "together", "raise"}
        large = (op.sent + op.returned) / chosen.capacity + op.lines + op.count
        bound += len(op.tokens) * (op.seconds * times * (1 + chosen.ranks) + chosen.latency_s * (20 + 4 * large) + 0.1)
        bound += 15.0 if stops else 0.0
    return bound


def _referee(w: world.World, client: kernel.Thread) -> None:
    """Wait for the end of the client, and of what it may leave behind (a thread of nobody's)."""
    k = kernel.K
    client.joiners.append(k.current)
    w.client.waiters.append(k.current)
    while w.client.alive and not client.done:
        k.park("client", None)
    if w.client.alive:
        w.client.end(code=0)
    k.sleep(w.plan.lease_s + world.LEASE_SLACK_S + 30.0)
    w.check_nothing_left()
    k.finish()
