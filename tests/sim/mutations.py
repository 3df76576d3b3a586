"""The small mistakes that `mutants.py` puts into the pool, and earlier fixes taken back."""

from __future__ import annotations

from tests.sim.mutants import Mutant

DISPATCH, SCHEDULE, NODE, MANAGER, TABLE, GROUP = (
    "_pool/dispatcher.py",
    "_pool/scheduler.py",
    "_pool/nodes/node_client.py",
    "_pool/nodes/manager.py",
    "_pool/nodes/node_table.py",
    "_pool/collective/worker_group.py",
)
COLLECTIVE, GATHER, TASK, RUNNER, STREAM = (
    "_pool/collective/call.py",
    "_pool/services.py",
    "_pool/task.py",
    "_pool/calls.py",
    "_pool/task.py",
)
FRAMES, WORKERS, WORKER, OUTPUT, CLOCK = (
    "wire/frames.py",
    "runner/calls.py",
    "_pool/nodes/worker_client.py",
    "_pool/console.py",
    "_pool/background.py",
)

MUTANTS: tuple[Mutant, ...] = (
    # the dispatcher
    Mutant(
        "what a result makes room for is not sent",
        DISPATCH,
        "            self._schedule.refill(worker)\n        _flush((worker, *touched))",
        "            self._schedule.refill(worker)\n        _flush(touched)",
    ),
    Mutant(
        "a result makes room for nothing",
        DISPATCH,
        "            self._schedule.refill(worker)\n        _flush((worker, *touched))",
        "        _flush((worker, *touched))",
    ),
    Mutant("what may have run runs again", SCHEDULE, "elif fate is Fate.WAITED:", "elif fate is not Fate.RAN:"),
    Mutant("retries are not counted", SCHEDULE, "task.retries - 1, task.retried", "task.retries, task.retried"),
    Mutant("one retry too many", SCHEDULE, "elif task.retries > 0:", "elif task.retries >= 0:"),
    Mutant("what is put back is lost", SCHEDULE, "            self._queue.appendleft(task)\n", "            pass\n"),
    Mutant(
        "a cancelled call is not told",
        DISPATCH,
        "                    worker.post_order(Kind.CANCEL, task.id)\n",
        "",
    ),
    Mutant(
        "limits are looked at once",
        DISPATCH,
        "            if self._ticking:\n                self._clock.after(TICK_S, self._tick)\n        _flush(touched)",
        "        _flush(touched)",
    ),
    Mutant(
        "limits are not noted",
        DISPATCH,
        "                    self._limits[frame.id] = (time.monotonic() + task.timeout, task)",
        "                    pass",
    ),
    Mutant(
        "a new worker is not sent what waits",
        DISPATCH,
        "            self._schedule.admit((worker,))\n        _flush((worker,))",
        "            self._schedule.admit((worker,))",
    ),
    Mutant(
        "what waits for a rank is dropped",
        SCHEDULE,
        "            if task.stopping is None:\n                self._assign(task, worker)",
        "            pass",
    ),
    Mutant("calls are not sent", DISPATCH, "        _flush(touched.values())\n", ""),
    Mutant(
        "a close forgets what runs",
        DISPATCH,
        "left = [*self._schedule.take_queued(), *held]",
        "left = self._schedule.take_queued()",
    ),
    Mutant(
        "a close forgets what waits",
        DISPATCH,
        "left = [*self._schedule.take_queued(), *held]",
        "left = held",
    ),
    Mutant(
        "calls go on resting",
        DISPATCH,
        "self._schedule.resting, self._suspended = False, None",
        "self._suspended = None",
    ),
    Mutant("what a worker gives back is dropped", DISPATCH, "                    given_back.append(task)\n", ""),
    Mutant(
        "what a cancelled call leaves behind is not refilled",
        DISPATCH,
        "                    del worker.outstanding[task.id]\n                    self._schedule.refill(worker)",
        "                    pass",
    ),
    # the fate of calls
    Mutant(
        "what was prefetched has not begun, whoever says so",
        WORKER,
        "(is_known and position >= self.slots)",
        "(position >= self.slots)",
    ),
    Mutant("nothing has begun", WORKER, "(is_known and position >= self.slots)", "is_known"),
    Mutant(
        "the end of a silent node is known",
        NODE,
        "        is_known = worker.all_received and (report is not None or self._end_is_known())\n",
        "        is_known = True\n",
    ),
    # calls, streams, callbacks
    Mutant(
        "a latch opens twice",
        RUNNER,
        "            self._open = True\n        self._gate.release()",
        "        self._gate.release()",
    ),
    Mutant(
        "a latch opens at the first result",
        RUNNER,
        "self._open or not (self._left == 0 or (self.first_failed and self._until_failure))",
        "self._open",
    ),
    Mutant("of two outcomes both count", TASK, "waiter = self._waiter.pop()", "waiter = self._waiter[0]"),
    Mutant(
        "a stream gets no credit",
        STREAM,
        "                self._source.credit(_CREDIT_STEP)\n",
        "                pass\n",
    ),
    Mutant(
        "credit is not sent",
        DISPATCH,
        "                worker.credit(task, items)\n        worker.flush()\n",
        "                worker.credit(task, items)\n",
    ),
    Mutant("a stream that waits for its reader keeps its slot", WORKER, "self.waiting.add(task.id)", "pass"),
    Mutant("a stream that waits is stopped when it is read", WORKERS, "if stream.stopped:", "if False:"),
    Mutant("a stream that waits is not woken", WORKERS, "            return stream.slot if waited else None", ""),
    Mutant(
        "the clock is not told of what is due",
        CLOCK,
        "                    heapq.heappush(due, asked)\n",
        "                    due.append(asked)\n",
    ),
    Mutant(
        "output is printed twice",
        OUTPUT,
        "                    items.append(item)\n",
        "                    items += (item, item)\n",
    ),
    Mutant(
        "a callback runs in the thread that reads",
        RUNNER,
        "lambda ended: self._callbacks.submit(what, lambda: fn(ended))",
        "lambda ended: (what, fn(ended))",
    ),
    # gathers and collective calls
    Mutant(
        "a gather leaves one rank out",
        GATHER,
        "elif len(self._given) == len(self._ranks):",
        "elif len(self._given) >= len(self._ranks) - 1:",
    ),
    Mutant("gathers are not counted", GATHER, "        self._number += 1\n", ""),
    Mutant(
        "a gather mixes the order of ranks",
        GATHER,
        "in_order = [self._given[rank] for rank in self._ranks]",
        "in_order = list(self._given.values())",
    ),
    Mutant(
        "ranks wait for one that has ended",
        GATHER,
        "answers = self._fail(self._absence([rank])) if self._given else []",
        "answers = []",
    ),
    Mutant(
        "a collective call does not see its ends",
        COLLECTIVE,
        "            self._returned[rank] = time.monotonic()\n",
        "",
    ),
    Mutant(
        "the caller of a collective call is not told",
        COLLECTIVE,
        "does not start in processes about to end\n        self._gate.set()\n",
        "\n",
    ),
    Mutant(
        "the next collective call waits for ever",
        COLLECTIVE,
        "        self._group.unregister(self.abort)  # last,",
        "        # last,",
    ),
    Mutant(
        "a broken collective call is not made again",
        COLLECTIVE,
        "            self._group.restart(f",
        "            str(f",
    ),
    Mutant(
        "the failure of a rank wakes nobody",
        COLLECTIVE,
        "                self._failures.append(failure)\n                self._changed.notify_all()",
        "                self._failures.append(failure)",
    ),
    # ranks together
    Mutant(
        "a group is made again for ever",
        GROUP,
        'self._draining, self._broken = 0, ""',
        "self._draining = 0",
    ),
    Mutant("a lost rank breaks nothing up", GROUP, "if self.collective and self._open and not ours:", "if False:"),
    Mutant(
        "ranks that should end go on",
        GROUP,
        "                    worker.end(f",
        "                    str(f",
    ),
    Mutant(
        "ranks made again are not used",
        GROUP,
        "self._dispatcher.resume([worker for _, worker in entering])",
        "str(entering)",
    ),
    Mutant(
        "calls begin while ranks are ended",
        GROUP,
        "        if not self._closed:\n            self._dispatcher.rest()",
        "        pass",
    ),
    # nodes
    Mutant("a lost node is not replaced", NODE, "        self._pool.node_gone(self)\n", ""),
    Mutant("the loss of a worker is not told", NODE, "        self._pool.worker_lost(worker)\n", ""),
    Mutant("answers do not count as signs of life", NODE, "                self._unanswered = []\n", ""),
    Mutant(
        "a silent node is not given up",
        NODE,
        "        if self._agent is not None:\n            self._agent.close()\n\n    def discard",
        "\n    def discard",
    ),
    Mutant(
        "readers of a silent node go on",
        NODE,
        "                    worker.connection.stop_reading()\n                self._changed.wait",
        "                    str(worker)\n                self._changed.wait",
    ),
    Mutant("no heartbeats", MANAGER, "                node.beat()\n", "                str(node)\n"),
    Mutant(
        "a node that came counts as coming",
        MANAGER,
        "slot.is_starting, slot.ready_at = 0, False, time.monotonic()",
        "slot.ready_at = 0, time.monotonic()",
    ),
    Mutant(
        "the first nodes are not announced",
        TABLE,
        "                self.early.append(node)\n                self.changed.notify_all()",
        "                self.early.append(node)",
    ),
    # connections
    Mutant(
        "what was queued meanwhile stays queued",
        FRAMES,
        "while done and (self._queue or self._urgent) and me not in self._flushing:",
        "if done:",
    ),
    Mutant(
        "the writer is not woken",
        FRAMES,
        "        self._wake.put(True)",
        "        pass",
    ),
    Mutant(
        "what the writer leaves stays queued",
        FRAMES,
        "                while self.is_behind():",
        "                if self.is_behind():",
    ),
    Mutant(
        "urgent frames cut into others",
        FRAMES,
        "                if not self._pending:\n                    self._pending = self._next_parts()",
        "                if not self._pending or self._urgent:\n                    self._pending = self._next_parts()",
    ),
)

REVERTS: tuple[Mutant, ...] = (
    Mutant(
        "part 1: flush blocks in the thread that calls it",
        FRAMES,
        "done = self._write(socket.MSG_DONTWAIT)",
        "done = self._write(0)",
    ),
    Mutant(
        "part 1: heartbeats wait for the socket",
        NODE,
        "            self._agent.post(frame)",
        "            self._agent.send(frame)",
    ),
    Mutant(
        "part 1: a worker answers a cancel with a send",
        "runner/worker.py",
        "connection.send(frame, by_writer=self._is_open_to_code()) if waits else connection.post(frame)",
        "connection.send(frame)",
    ),
    Mutant(
        "94b5876: a set-up that ends while its pool closes",
        NODE,
        "_unless_closed = suppress(InvalidStateError)",
        "_unless_closed = suppress()",
    ),
    Mutant(
        "94b5876: a host that is gone before its node has left",
        MANAGER,
        "        except SkywardError:\n            pass  # its host may be gone already;"
        " closing the pool tries again, and reports errors\n",
        "        finally:\n            pass\n",
    ),
    Mutant(
        "daeb22b: a pool closes while a node is drained",
        MANAGER,
        "            if node not in self._table.draining:\n"
        "                return  # it was lost, or the pool was closed, in the meantime\n",
        "",
    ),
    Mutant(
        "2d34217: the error of a rank that is just telling it",
        COLLECTIVE,
        "if not self._samples.get(task.rank)]",
        "if task.rank not in self._samples]",
    ),
    Mutant(
        "a rank lost before its pool was a group",
        GROUP,
        "                self._lost_alone.add(worker.rank)\n",
        "                pass\n",
    ),
)
