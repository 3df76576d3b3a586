"""The clients of the conformance tests, as a process: `python -m skyward.testing.client`, with an action on stdin.

One process imports skyward once and forks the clients, each of which opens a pool of the provider and is killed at one
call.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from skyward._compute import ComputeFunction, compute
from skyward._pool.pool import ComputePool
from skyward.errors import WorkerLostError
from skyward.providers.base import PoolRequest, Provider

# the calls at which clients are killed, by object
ALLOCATION_CALLS = ("acquire", "prepare", "replace", "release")
HOST_CALLS = ("claim_port", "start")
NODE_CALLS = ("wait_ready", "connect", "remove")
CALLS = ("open", *ALLOCATION_CALLS, *HOST_CALLS, *NODE_CALLS)
_AT_ONCE = 6  # clients


def node_functions() -> tuple[ComputeFunction[[], str], ComputeFunction[[], None]]:
    """Return two functions for nodes: one identifies the start of its node, the other ends its node.

    They are local functions so that they are sent by value: nodes do not have this module.
    """

    @compute
    def incarnation() -> str:
        import os
        import socket
        from pathlib import Path

        agent = os.getppid()
        stat = Path(f"/proc/{agent}/stat")
        started = stat.read_text().rpartition(")")[2].split()[19] if stat.exists() else ""
        # containers on their host's network have its name, and two started at once have the same numbers
        namespace = Path("/proc/self/ns/pid")
        return f"{socket.gethostname()} {namespace.readlink() if namespace.exists() else ''} {agent} {started}"

    @compute
    def end_node() -> None:
        import os
        import signal
        import time

        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(60)

    return incarnation, end_node


def use(pool: ComputePool, *, loses_a_node: bool) -> None:
    """Open a pool, call once, and lose a node if requested."""
    incarnation, end_node = node_functions()
    with pool:
        before = incarnation() @ pool
        if loses_a_node:
            try:
                end_node() >> pool
            except WorkerLostError:
                pass  # the purpose of the function
            assert set(incarnation() @ pool) != set(before)


def crash(provider: Provider, settings: Mapping[str, Any], calls: Sequence[tuple[str, str]]) -> None:
    """Kill a client before or after each call, a few at a time; report each one's call, pool and exit status."""
    waiting, running = list(calls), dict[int, tuple[str, str, int]]()
    while waiting or running:
        while waiting and len(running) < _AT_ONCE:
            name, when = waiting.pop(0)
            ours, theirs = os.pipe()
            if (pid := os.fork()) == 0:
                _crash_at(provider, settings, name, when, theirs)
            os.close(theirs)
            running[pid] = (name, when, ours)
        pid, status = os.wait()
        name, when, ours = running.pop(pid)
        with os.fdopen(ours) as pipe:
            _say(json.dumps([name, when, pipe.read(), os.waitstatus_to_exitcode(status)]))


def _crash_at(provider: Provider, settings: Mapping[str, Any], name: str, when: str, pipe: int) -> None:
    status = 1
    try:
        _kill_at(provider, name, when)
        pool = ComputePool(provider, **settings)
        os.write(pipe, pool.id.encode())
        use(pool, loses_a_node=name == "replace")
        status = 0
    except Exception as error:  # reported, whatever it is
        sys.stderr.write(f"{name}, {when}: {error!r}\n")
    finally:
        os._exit(status)


def _kill_at(provider: Provider, name: str, when: str) -> None:
    """Kill this process at the first call of that name, before or after it."""
    allocation = type(provider.open(PoolRequest(pool_id="00000000")))
    if name == "open":
        _replace(type(provider), name, _killing(when))
    elif name in ALLOCATION_CALLS:
        _replace(allocation, name, _killing(when))
    elif name in HOST_CALLS:
        _replace(allocation, "acquire", lambda hosts: _replace(type(hosts[0]), name, _killing(when)))
    else:

        def found(hosts: Sequence[object]) -> None:
            _replace(type(hosts[0]), "start", lambda node: _replace(type(node), name, _killing(when)))

        _replace(allocation, "acquire", found)


def _killing(when: str) -> Callable[[Any], None] | None:
    return (lambda _: _die()) if when == "after" else None


def _replace(owner: type, name: str, then: Callable[[Any], None] | None) -> None:
    """Call `then` with the result of a method; if it is None, kill the process before the call."""
    original = getattr(owner, name)
    if getattr(original, "is_watched", False):
        return  # another object of the same class

    def call(*given: Any, **more: Any) -> Any:
        if then is None:
            _die()
        result = original(*given, **more)
        if then is not None:
            then(result)
        return result

    call.is_watched = True  # type: ignore[attr-defined]
    setattr(owner, name, call)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fall_silent(provider: Provider, settings: Mapping[str, Any]) -> None:
    """Open a pool and stop; when continued, report whether any of its nodes has survived."""
    incarnation, _ = node_functions()
    with ComputePool(provider, **settings) as pool:
        before = incarnation() @ pool
        _say(pool.id)
        os.kill(os.getpid(), signal.SIGSTOP)
        after: list[str] = []
        while not after:
            try:
                after = incarnation() @ pool
            except WorkerLostError:
                continue  # the call was in progress when that was noticed
        _say(json.dumps(bool(set(before) & set(after))))


def destroy(provider: Provider, settings: Mapping[str, Any], pool_id: str) -> None:  # noqa: ARG001 - alike for all
    """Report the resources of a pool, destroy it twice, and report again."""
    for times in (0, 2):
        for _ in range(times):
            provider.destroy(pool_id)
        _say(json.dumps([found for found in provider.find() if found["pool"] == pool_id]))


def _say(line: str) -> None:
    """Send a line to the test."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    action, *given, more = pickle.load(sys.stdin.buffer)
    actions: Mapping[str, Callable[..., None]] = {"crash": crash, "silence": fall_silent, "destroy": destroy}
    actions[action](*given, **more)
