"""Hosts and nodes of a simulation: real agents and real workers in simulated processes, a provider that can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import Context, copy_context
from types import SimpleNamespace
from typing import Any, cast

import tests.sim.install  # noqa: F401 - before anything of skyward
from tests.sim import kernel, net, threads, world
from tests.sim.kernel import Process, SimExit

# isort: split
from skyward._pool import background as pool_callbacks
from skyward._pool import console as pool_output
from skyward._pool import pool as pool_itself
from skyward._pool import progress as pool_progress
from skyward._pool.code import functions as pool_functions
from skyward._pool.code.bundle import CodeBundle
from skyward._pool.collective import call as pool_gang
from skyward._pool.nodes import node_client as pool_node
from skyward._pool.nodes import starting as pool_setup
from skyward._pool.nodes import worker_client as pool_worker
from skyward._pool.progress import Progress
from skyward.errors import NodeStartError, PoolClosedError
from skyward.model.instance import ENV_VAR, InstanceInfo
from skyward.model.resource import Resource
from skyward.nodes.node import Announcement, Exit, Launch, parse_announcement
from skyward.providers import base
from skyward.runner import agent, calls, exchange, worker
from skyward.runner import shared_values as shared
from skyward.runner import threads as slots
from skyward.runner.children import Ended
from skyward.runner.config import RunnerSettings, WorkerStart, rank_environment
from skyward.wire.frames import listen


class Path:
    """A path of a simulated machine, where nothing is stored."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __truediv__(self, name: str) -> Path:
        return Path(f"{self._text}/{name}")

    def unlink(self, missing_ok: bool = False) -> None:
        pass

    def chmod(self, _mode: int) -> None:
        pass

    def glob(self, _pattern: str) -> list[Path]:
        return []


class System:
    """What the runner uses of `os`."""

    WNOHANG = 1

    @property
    def environ(self) -> dict[str, str]:
        process: Process = kernel.K.current.process
        return process.environ

    @staticmethod
    def getpid() -> int:
        return 1

    @staticmethod
    def write(stream: int, data: bytes) -> int:
        kernel.K.point()
        if stream == 1:
            kernel.K.current.process.model.says(data.decode())
        return len(data)

    @staticmethod
    def _exit(status: int) -> None:
        kernel.K.enter().process.end(code=status)
        raise SimExit

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the simulated machine has no os.{name}")


class MainSlot(slots.Slot):
    """The main thread of a simulated worker, interrupted wherever it waits."""

    def attach(self) -> None:
        super().attach()
        self._its = kernel.K.current

    def _signal(self) -> None:
        kernel.K.signal(self._its, self.deliver, wakes=True)


class ThreadSlot(slots.ThreadSlot):
    """Another thread; what it waits for ends first."""

    def attach(self) -> None:
        super().attach()
        self._its = kernel.K.current

    def _raise(self, exception: type[BaseException] | None) -> None:
        if exception is not None:
            kernel.K.signal(self._its, _interrupt, wakes=False)
        elif _interrupt in self._its.pending:
            self._its.pending.remove(_interrupt)


def _interrupt() -> None:
    raise slots.Interrupted("the call was interrupted by the client")


class WorkerModel:
    """What the world knows of a worker process."""

    def __init__(self, node: Node, index: int, generation: int) -> None:
        self.node, self.index, self.generation = node, index, generation
        self.rank = node.launch.node * node.processes + index
        self.worker: Any = None
        self.is_telling = False  # whether its call has failed, and puts the error into words

    def says(self, text: str) -> None:
        pass


class Child:
    """The life of a simulated worker process; the same for an agent as `runner.children.Child`."""

    def __init__(self, start: WorkerStart, env: dict[str, str] | None = None) -> None:
        self.start, self.env = start, dict(env or {})
        self.address: str | None = None
        k = kernel.K
        parent = k.enter().process
        k.sleep(world.W.start_s * k.rng.random())
        self._node: Node = parent.model
        self._asked = False
        self._orders = threads.SimpleQueue()
        self._listening = threads.Event()
        self.process = Process(k, f"{net.machine(parent)}:w{start.index}.{start.generation}")
        self.process.environ = {**parent.environ, **self.env}
        self.process.model = WorkerModel(self._node, start.index, start.generation)
        self._node.workers.append(self.process)
        self.process.on_exit.append(self._wake)
        k.spawn(self.process, "main", self._main, "worker.main")
        if not parent.alive:
            self.process.end(signal=9)

    def _main(self) -> None:
        kernel.K.sleep(world.W.start_s * kernel.K.rng.random())
        listener, address = listen(
            cast(Any, Path(self.start.run_dir)), f"w{self.start.index}.{self.start.generation}.sock"
        )
        place = InstanceInfo.from_json(self.process.environ[ENV_VAR])
        real = worker.Worker(self.start, place)
        self.process.model.worker = real
        real.start(cast(Any, listener))
        threads.Thread(target=self._obey, args=(real,), name="obey", daemon=True).start()
        self._announced = address
        self._listening.set()
        real.run()
        SYSTEM._exit(0)

    def _obey(self, real: worker.Worker) -> None:
        while self._orders.get() is not None:
            real.leave(1.0)
        SYSTEM._exit(1)  # the agent is gone

    def agent_gone(self) -> None:
        """The private socket has ended; told by the world, in no thread."""
        if self.process.alive:
            self._orders._items.append(None)
            for waiter in self._orders._waiters:
                kernel.K.ready(waiter)

    def _wake(self) -> None:
        for waiter in self._listening._waiters:
            kernel.K.ready(waiter)

    def ask_exit(self, _grace_s: float) -> None:
        self._orders.put("exit")

    def kill(self) -> None:
        kernel.K.point()
        if self.process.alive:
            self._asked = True
            if not self._node.agent._stopping:
                world.W.check_kill(self.process)
            self.process.end(signal=9)

    def signal(self, _number: int) -> None:
        kernel.K.point()

    def wait(self) -> Ended:
        k = kernel.K
        me = k.enter()
        self.process.waiters.append(me)
        while self.process.alive:
            k.park("process", self.process)
        return Ended(self.process.code, self.process.signal, self._asked)

    def read(self, on_listening: Callable[[str], None], _on_output: Callable[[int, str], None]) -> None:
        k = kernel.K
        me = k.enter()
        self._listening._waiters.append(me)
        while self.process.alive and not self._listening.is_set():
            k.park("event", self._listening)
        self._listening._waiters.remove(me)
        if self._listening.is_set():
            self.address = self._announced
            on_listening(self._announced)
        self.wait()

    def log(self) -> str:
        return ""

    def close(self) -> None:
        pass


class Node:
    """A started node, as the pool uses it: its agent, and the workers that this has started."""

    channel = b""

    def __init__(self, host: Host, launch: Launch) -> None:
        k = kernel.K
        self.host, self.launch = host, launch
        self.settings = RunnerSettings.from_json(launch.runner)
        self.processes = self.settings.processes
        self.workers: list[Process] = []
        self.children: list[Child] = []
        self.machine = f"n{len(world.W.nodes)}"
        self._said = ""
        self.agent: Any = None
        self._heard = threads.Event()
        self.process = Process(k, f"{self.machine}:agent")
        self.process.model = self
        self.process.environ = {**launch.env, ENV_VAR: launch.compute_pool}
        self.process.on_exit.append(self._ended)
        world.W.nodes.append(self)
        for pair in ((self.machine, "client"), ("client", self.machine)):
            net.N.links[pair] = net.Link(world.W.latency_s)
        k.spawn(self.process, "main", self._main, "agent.main")

    def _main(self) -> None:
        kernel.K.sleep(world.W.start_s * kernel.K.rng.random())
        place = InstanceInfo.from_json(self.process.environ[ENV_VAR])
        run_dir, key = Path(f"/sim/{self.machine}"), self.launch.key
        children = [
            Child(
                WorkerStart(index=i, generation=0, slots=self.settings.slots, run_dir=str(run_dir), key=key.hex()),
                rank_environment(place, i, self.process.environ),
            )
            for i in range(self.settings.processes)
        ]
        made: Any = agent.Agent
        self.agent = made(place.node, self.settings, run_dir, key, children)
        SYSTEM._exit(self.agent.run())

    def _ended(self) -> None:
        """The agent has ended: a container ends with it, a plain process's workers notice it."""
        world.W.check_lease(self)
        for process in self.workers:
            if world.W.containers:
                process.end(signal=9)
            elif process.alive:
                kernel.K.after(0.01, lambda process=process: _orphan(process))
        for waiter in self._heard._waiters:
            kernel.K.ready(waiter)

    def says(self, text: str) -> None:
        """The agent has written to its standard output."""
        self._said += text
        self._heard.set()

    @property
    def alive(self) -> bool:
        return self.process.alive or any(process.alive for process in self.workers)

    def kill(self, signal: int = 9) -> None:
        """Everything in it ends at once."""
        self.process.end(signal=signal)
        for process in self.workers:
            process.end(signal=9)

    def tell(self, number: int) -> None:
        """A signal for the agent, such as that of `docker stop`."""
        hear = self.process.on_signal
        if self.process.alive and hear is not None:
            kernel.K.spawn(self.process, "signals", lambda: _ignore(hear(number)))

    # what the pool asks ----------------------------------------------------------------------------------------

    def wait_ready(self, timeout_s: float) -> Announcement:
        k = kernel.K
        me = k.point()
        until = k.now + timeout_s
        self._heard._waiters.append(me)
        while self.process.alive and not self._heard.is_set():
            if not k.park("announcement", self, until):
                raise NodeStartError(f"Node {self.launch.node} was not ready within {timeout_s:g} s.")
        self._heard._waiters.remove(me)
        if not self._heard.is_set():
            raise NodeStartError(f"Node {self.launch.node} ended before it was ready.")
        found = parse_announcement(self._said.strip())
        assert found is not None
        return found

    def connect(self, address: str) -> Any:
        from skyward.errors import WireError

        sock = net.Socket()
        sock.settimeout(10.0)
        try:
            sock.connect(f"/sim/{self.machine}/{address.removeprefix('unix:')}")
        except OSError as error:
            sock.close()
            raise WireError(f"Nothing listens at {address} of this node ({error}).") from error
        return sock

    def wait_exit(self, timeout_s: float) -> Exit | None:
        k = kernel.K
        me = k.point()
        until = k.now + timeout_s
        self.process.waiters.append(me)
        try:
            while self.process.alive or net.N.link(self.machine, "client").shut_until > k.now:
                if not k.park("exit", self, until):
                    return None
        finally:
            self.process.waiters.remove(me)
        return Exit(code=self.process.code, signal=self.process.signal, text="")

    def remove(self) -> None:
        with world.W.provider_call("remove"):
            self.kill()


class Host:
    """A machine."""

    address = "10.0.0.1"

    def __init__(self, name: str) -> None:
        self.name = name

    def claim_port(self) -> int:
        kernel.K.point()
        return 20_000

    def start(self, launch: Launch) -> Node:
        with world.W.provider_call("start"):
            if world.W.released:
                raise PoolClosedError("the pool has ended")
            return Node(self, launch)


class Provider(base.Provider):
    """Gives hosts; every call may fail, or end the client, before it has an effect or after it."""

    name = "sim"
    capabilities = base.Capabilities()

    def open(self, request: base.PoolRequest) -> Allocation:
        return Allocation(request)

    def find(self) -> Sequence[Resource]:
        return ()

    def destroy(self, pool_id: str) -> None:  # noqa: ARG002
        raise AssertionError("no other client ends the pool")


class Allocation(base.Allocation):
    """The hosts of the simulated pool."""

    def __init__(self, request: base.PoolRequest) -> None:
        super().__init__(request)
        self._hosts = 0

    def _host(self) -> Host:
        self._hosts += 1
        return Host(f"host{self._hosts}")

    def acquire(self) -> Any:
        with world.W.provider_call("acquire"):
            return [self._host() for _ in range(self.request.nodes)]

    def replace(self, lost: Any) -> Any:
        with world.W.provider_call("replace"):
            self.check_open()
            return lost if lost is not None and kernel.K.rng.random() < 0.5 else self._host()

    def prepare(self, hosts: Sequence[object]) -> None:  # noqa: ARG002
        kernel.K.point()

    def release(self) -> None:
        world.W.released = True
        with world.W.provider_call("release"):
            for node in world.W.nodes:
                node.kill()


def _orphan(process: Process) -> None:
    if process.alive:
        process.end(code=1)


def _ignore(_value: object) -> None:
    pass


def _on_signals(_numbers: Any, action: Callable[[int], object]) -> None:
    kernel.K.current.process.on_signal = action


def _describe(_thread: int) -> dict[str, Any]:
    """Where a call is: always somewhere else, in nothing that waits for others; nowhere if it has failed."""
    if kernel.K.current.process.model.is_telling:
        return {}
    here = kernel.K.sequence
    frames = [["functions.py", 1, "work", ""]]
    return {"frames": frames, "place": str(here), "waits": False, "cpu_s": float(here), "switches": here}


def _fixed_hash(cls: type) -> None:
    """Let sets of these have the same order in every run of a seed: their addresses are not of the seed."""

    def serial(self: Any) -> int:
        number: int | None = self.__dict__.get("_sim_hash")
        if number is None:
            number = self.__dict__["_sim_hash"] = world.W.serial()
        return number

    cls.__hash__ = serial  # type: ignore[method-assign,assignment]


_enter = pool_setup.WorkerSetup.enter


def _enter_told(self: pool_setup.WorkerSetup, workers: Any, clock: Any) -> None:
    """`WorkerSetup.enter`, which faults may follow on."""
    world.W.event("setup")
    _enter(self, workers, clock)


@contextmanager
def _quiet_stage(_self: Progress, _name: str, _doing: str) -> Iterator[None]:
    yield


SYSTEM = System()


def patch() -> None:
    """Put models in the place of what is neither time nor thread nor socket: processes, signals, files, output."""
    patched: list[tuple[Any, dict[str, Any]]] = [
        (agent, {"Child": Child, "os": SYSTEM, "on_signals": _on_signals, "say": _ignore}),
        (agent, {"OomCounter": lambda: SimpleNamespace(take=lambda: False)}),
        (agent, {"dump_file": lambda _s: Path("/"), "read_dump": lambda *_: ""}),
        (worker, {"MainSlot": MainSlot, "ThreadSlot": ThreadSlot, "os": SYSTEM, "_say": _ignore}),
        (worker, {"install_gather": _ignore}),
        (worker, {"environment": SimpleNamespace(leave_contexts=lambda: None)}),
        (exchange, {"os": SYSTEM}),
        (worker, {"diagnosis": SimpleNamespace(describe=_describe)}),
        (shared, {"values": SimpleNamespace(clear=lambda: None)}),
        (calls, {"os": SYSTEM, "task_output": lambda _n: nullcontext(_TaskOutput()), "environment": _Environment()}),
        (pool_functions, {"local_modules": lambda *_: CodeBundle()}),
        (pool_functions, {"is_collective": lambda fn: fn.__name__ == "together"}),
        (pool_output, {"_write": lambda text, _error, _cell=None: world.W.prints(text)}),
        (pool_callbacks, {"_report": _ignore}),
        (pool_itself, {"PoolRecord": lambda *_: _Record(), "show_to_watchers": lambda *_: lambda: None}),
        (pool_setup.WorkerSetup, {"enter": _enter_told}),
        (pool_progress, {"_print": lambda text: kernel.K.note("tell", text)}),
        (Progress, {"tell": lambda _self, line: kernel.K.note("tell", line), "stage": _quiet_stage}),
    ]
    for module, names in patched:
        for name, value in names.items():
            assert hasattr(module, name), f"{module} has no {name} any more"
            setattr(module, name, value)
    for cls in (pool_worker.WorkerClient, pool_node.NodeClient, pool_gang.CollectiveCall):
        _fixed_hash(cls)


class _Record:
    """`records.pools.PoolRecord`, without a disk."""

    def output(self, *_: object, **__: object) -> None: ...
    def event(self, *_: object, **__: object) -> None: ...
    def count(self, *_: object) -> None: ...
    def close(self, _error: str) -> None: ...
    def telling(self, tell: Callable[[str], None]) -> Callable[[str], None]:
        return tell


class _TaskOutput:
    """Of a task of `runtime.output`, which is not simulated."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...


class _Environment:
    """`runtime.environment`, without effects: all simulated workers share one interpreter."""

    def begin_call(self, *, everywhere: bool) -> None: ...
    def end_call(self) -> None: ...
    def hand_over(self) -> Context:
        return copy_context()

    def prepare(self, _fn: object) -> None: ...
    def apply(self, _env: object) -> None: ...
    def conflict(self, _env: object) -> None:
        return None
