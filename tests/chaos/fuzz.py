"""Mutated bytes for the runner's sockets: with the key after the handshake, without it in its place.

Run as a program in a fresh process, `python -m tests.chaos.fuzz SEED FRAMES HANDSHAKES`, it prints its figures and what
went wrong, as JSON. Most of it talks over socket pairs to the very objects that serve a socket, in this process, which
sees what they unpickle and hold; a smaller part goes to a real agent and its real workers.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from skyward.errors import WireError
from skyward.model.instance import InstanceInfo
from skyward.runner import agent as agents
from skyward.runner.config import RunnerSettings, WorkerStart
from skyward.wire import handshake
from skyward.wire.frames import Connection, dial
from tests.chaos import mutate
from tests.chaos.workload import Result

MEMORY_KB = 96 * 1024  # how much more a process may hold at its peak than before
READ = 0.6  # share of frames that are read and go no further
REAL = 0.02  # share of frames and handshakes that go to real processes
KILLED = 10  # workers that are ended by what they cannot understand, which costs a start each
SAID = 500  # bytes, of what is written for people about a frame, on the average
AT_ONCE = 200  # frames of one connection
_KEY = b"k" * 32
_BACK_S = 20.0  # for a worker to be started again
Mutant = Callable[[random.Random], bytes]


class Fuzz:
    """Sends mutants, and notes what must not happen."""

    def __init__(self, seed: str) -> None:
        self._chance = random.Random(seed)
        self.figures: dict[str, Any] = {}
        self.broken: list[str] = []
        self._hunted = False  # whether nothing may be unpickled now
        self._outcomes: Counter[str] = Counter()
        sys.addaudithook(self._on_event)
        threading.excepthook = lambda args: self._wrong(f"a thread of the agent failed with {args.exc_value!r}")

    def _on_event(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "pickle.find_class" and self._hunted:
            self._wrong(f"{args} was unpickled before authentication")

    def _wrong(self, text: str) -> None:
        if len(self.broken) < 100:
            self.broken.append(f"Fuzzing: {text}.")

    @contextlib.contextmanager
    def _part(self, what: str, count: int) -> Iterator[None]:
        self._outcomes = Counter()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.monotonic()
        yield
        grew = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        if grew > MEMORY_KB:
            self._wrong(f"{what} took {grew} KiB of memory")
        seconds = round(time.monotonic() - began, 1)
        self.figures[what] = {"sent": count, "seconds": seconds, "memory, KiB": grew, "met": dict(self._outcomes)}

    # without the key ------------------------------------------------------------------------------------------

    def strangers(self, count: int) -> None:
        """Handshakes without the key, for a runner and for a client; nothing of them may be unpickled."""
        self._hunted = True
        for what, greet in (("runner", handshake.accept), ("client", handshake.connect)):
            with self._part(f"handshakes without the key, to a {what}", count // 2):
                for _ in range(count // 2):
                    self._greet(greet, mutate.stranger(self._chance))
        self._hunted = False

    def _greet(self, greet: Callable[[socket.socket, bytes, str], Connection], data: bytes) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)
            try:
                greet(ours, _KEY, "node 0 agent").close()
                self._wrong(f"{data!r} was taken for a proof")
            except WireError as error:
                self._outcomes[type(error).__name__] += 1
            except BaseException as error:
                self._wrong(f"a handshake failed with {error!r}, for {data!r}")
            if ours.fileno() != -1:
                self._wrong(f"the socket of a failed handshake stayed open, for {data!r}")

    # with the key ---------------------------------------------------------------------------------------------

    def frames(self, count: int) -> None:
        """Frames for whoever reads them; each arrives, or ends its connection with a WireError."""
        for what, mutant in (("an agent", mutate.for_agent), ("a client", mutate.for_client)):
            with self._part(f"frames for {what}, to be read", count // 2):
                for _ in range(count // 2):
                    self._read(mutant(self._chance))

    def _read(self, data: bytes) -> None:
        ours, theirs = _pair()
        with theirs:
            connection = Connection(ours)
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)
            try:
                while connection.receive():
                    self._outcomes["frame"] += 1
            except WireError:
                self._outcomes["WireError"] += 1
            except BaseException as error:
                self._wrong(f"reading failed with {error!r}, for {_shown(data)}")
            connection.close()

    def agent(self, count: int, run_dir: Path) -> None:
        """Frames for an agent that serves its connections in this process; it must want to go on."""
        place = InstanceInfo(node=0, total_nodes=1, head_addr="127.0.0.1", head_port=29400)
        start = WorkerStart(index=0, generation=0, slots=1, run_dir=str(run_dir), key=_KEY.hex())
        os.environ["COMPUTE_POOL"] = place.to_json()
        child: Any = _Child(start)
        served = agents.Agent(0, RunnerSettings(lease_s=3600.0), run_dir, _KEY, [child])
        chatter = io.StringIO()
        with self._part("frames for an agent, to be obeyed", count):
            for _ in range(count):
                data = mutate.for_agent(self._chance)
                ours, theirs = _pair()
                with theirs, contextlib.redirect_stderr(chatter):
                    theirs.sendall(data)
                    theirs.shutdown(socket.SHUT_WR)
                    try:
                        served._welcome(Connection(ours))
                        self._outcomes["served"] += 1
                    except BaseException as error:
                        self._wrong(f"an agent failed with {error!r}, for {_shown(data)}")
                if not served._inbox.empty():
                    self._wrong(f"an agent would end ({served._inbox.get()}), for {_shown(data)}")
                _wait_threads(64)
            _wait_threads(8)

    # real processes -------------------------------------------------------------------------------------------

    def real(self, frames: int, handshakes: int) -> None:
        """The same for a real agent with a real worker, which go on working."""
        from tests.unit.runner.node import PLACE, RunningNode

        with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
            node = RunningNode(Path(folder) / "run", {}, RunnerSettings(lease_s=120))
            assert node.process.stderr
            said: deque[str] = deque(maxlen=10_000)
            # the agent says why it closes a connection: it would block once this pipe is full
            reader = threading.Thread(target=said.extend, args=(node.process.stderr,), daemon=True)
            reader.start()
            try:
                node.ready()
                heard = node.client()
                endpoint = handshake.agent_endpoint(PLACE.node)
                before = _memory(node.process.pid)
                with self._part("handshakes without the key, to processes", handshakes):
                    for _ in range(handshakes):
                        self._knock(node.run_dir, self._chance.choice(["agent.sock", "w0.0.sock"]))
                with self._part("frames for a real agent", frames):
                    for _ in range(frames):
                        self._tell(node, endpoint, mutate.for_agent(self._chance))
                        if node.process.poll() is not None:
                            self._wrong(f"a real agent ended with status {node.process.returncode}")
                            return
                if heard.ping_s() > _BACK_S:
                    self._wrong("the agent answers slowly")
                if (grew := _memory(node.process.pid) - before) > MEMORY_KB:
                    self._wrong(f"the agent grew by {grew} KiB")
                with self._part("workers that were sent nonsense", KILLED):
                    self._break_workers(node, heard)
            except (WireError, AssertionError) as error:
                self._wrong(f"a real agent was not there any more: {error!r}")
            finally:
                node.process.send_signal(signal.SIGKILL)
                node.process.wait()
                reader.join(_BACK_S)
                node.close()
                if "Traceback" in (errors := "".join(said)):
                    self._wrong(f"a real agent wrote {errors[-1000:]}")

    def _knock(self, run_dir: Path, name: str) -> None:
        """What a stranger does at a socket; a worker, which serves its client, lets him wait."""
        with contextlib.suppress(WireError, OSError), dial(run_dir, f"unix:{name}", 2.0) as sock:
            sock.settimeout(0.5 if name == "agent.sock" else 0.001)
            sock.sendall(mutate.stranger(self._chance))
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                self._outcomes["answered"] += 1

    def _tell(self, node: Any, endpoint: str, data: bytes) -> None:
        sock = dial(node.run_dir, "unix:agent.sock")
        connection = handshake.connect(sock, node.key, endpoint)  # what it has to say about workers stays unread
        with contextlib.suppress(OSError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            sock.settimeout(_BACK_S)
            while sock.recv(65536):
                self._outcomes["answered"] += 1
        connection.close()

    def _break_workers(self, node: Any, heard: Any) -> None:
        from skyward.wire.messages import Kind
        from tests.unit.runner.node import PLACE

        while not (found := [int(path.name.split(".")[1]) for path in node.run_dir.glob("w0.*.sock")]):
            time.sleep(0.02)  # a frame may have been an order to end it
        generation = max(found)
        for _ in range(KILLED):
            address = f"unix:w0.{generation}.sock"
            sock = dial(node.run_dir, address)
            connection = handshake.connect(sock, node.key, handshake.worker_endpoint(PLACE.node, 0, generation))
            with contextlib.suppress(OSError):
                for _ in range(AT_ONCE):
                    sock.sendall(mutate.for_worker(self._chance))
            heard.tell(Kind.KILL, worker=0, generation=generation)  # in case it has understood all of it
            connection.close()
            before = generation
            while generation <= before:  # an order among the mutants before these may have ended another one
                generation = heard.document(Kind.WORKER_UP)["generation"]
            self._outcomes["started again"] += 1
        node.do("import os; os.write(1, b'works\\n')", generation=generation)
        heard.output(until="works")


class _Child:
    """A worker of an agent that is served here; orders to it do nothing."""

    def __init__(self, start: WorkerStart) -> None:
        self.start, self.address, self.env = start, "unix:w0.0.sock", dict[str, str]()

    def kill(self) -> None: ...
    def signal(self, number: int) -> None: ...


def _pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)  # a mutant fits, nobody waits for its reader
    return ours, theirs


def _wait_threads(most: int) -> None:
    while threading.active_count() > most:
        time.sleep(0.001)


def _memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def _shown(data: bytes) -> str:
    return f"{data[:120]!r} ({len(data)} bytes)"


def fuzz(seed: str, frames: int, handshakes: int) -> Result:
    """All of it, in this process, which should be a fresh one."""
    made = Fuzz(seed)
    made.strangers(int(handshakes * (1 - REAL)))
    read, real = int(frames * READ), int(frames * REAL)
    made.frames(read)
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        made.agent(frames - read - real, Path(folder))
    made.real(real, int(handshakes * REAL))
    return Result(made.figures, made.broken)


def run(seed: str, frames: int, handshakes: int) -> Result:
    """The same in a fresh process."""
    command = [sys.executable, "-m", "tests.chaos.fuzz", seed, str(frames), str(handshakes)]
    with tempfile.TemporaryFile("w+") as said:  # the agent tells of every connection that it closes
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=said, text=True, check=False)
        said.seek(0, os.SEEK_END)
        size = said.tell()
        said.seek(max(0, size - 2000))
        if done.returncode:
            return Result({}, [f"The fuzzing ended with status {done.returncode}: {said.read()}"])
    found = Result(**json.loads(done.stdout.splitlines()[-1]))
    if size > frames * SAID:
        found.broken.append(f"The agent wrote {size} bytes about {frames} frames.")
    return found


if __name__ == "__main__":
    print(json.dumps(fuzz(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))._asdict()))
