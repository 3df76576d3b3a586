"""A real runner started by a test, and a client of it that speaks the wire by hand."""

from __future__ import annotations

import os
import queue
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skyward.errors import WireError
from skyward.model.instance import ENV_VAR, KEY_FILE, RUN_DIR_VAR, SETTINGS_VAR, InstanceInfo
from skyward.nodes.node import Announcement, parse_announcement
from skyward.runner.config import RunnerSettings
from skyward.wire import handshake, payload
from skyward.wire.frames import Connection, Frame, dial
from skyward.wire.messages import CALL_HEAD, Kind, decode, encode

PATIENCE_S = 120.0  # before a test fails; a loaded machine may be slow
PLACE = InstanceInfo(node=1, total_nodes=2, head_addr="127.0.0.1", head_port=29400)


class Client:
    """An authenticated connection to an agent; everything it says is kept until asked for."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._heard: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while frames := self.connection.receive():
                for frame in frames:
                    self._heard.put(frame)
        except WireError:
            pass
        self._heard.put(None)

    def tell(self, kind: Kind, ident: int = 0, **document: object) -> None:
        self.connection.send(Frame(kind, ident, encode(document) if document else b""))

    def next(self, kind: Kind) -> Frame:
        """The next message of this kind; others are skipped."""
        while (frame := self._heard.get(timeout=PATIENCE_S)) is not None:
            if frame.kind == kind:
                return frame
        raise AssertionError(f"the agent closed the connection instead of sending {kind!r}")

    def document(self, kind: Kind) -> dict[str, Any]:
        return decode(self.next(kind).head)

    def output(self, until: str) -> list[tuple[int, int, str]]:
        """Worker, stream and text of each piece of output up to the one that contains `until`."""
        pieces: list[tuple[int, int, str]] = []
        while not any(until in text for _, _, text in pieces):
            frame = self.next(Kind.WORKER_OUTPUT)
            pieces.append((frame.id, frame.head[0], bytes(frame.head[1:]).decode()))
        return pieces

    def ping_s(self) -> float:
        """Seconds until a ping is answered."""
        start = time.monotonic()
        self.tell(Kind.PING, 7)
        assert self.next(Kind.PONG).id == 7
        return time.monotonic() - start

    def is_closed(self) -> bool:
        """Whether the agent closes the connection, in time."""
        while self._heard.get(timeout=PATIENCE_S) is not None:
            pass
        return True


class RunningNode:
    """A process of `python -m skyward.runner`."""

    def __init__(self, run_dir: Path, env: dict[str, str], settings: RunnerSettings) -> None:
        run_dir.mkdir(mode=0o700)
        self.run_dir, self.key = run_dir, secrets.token_bytes(32)
        (run_dir / KEY_FILE).write_bytes(self.key)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "skyward.runner"],
            env={
                **os.environ,
                ENV_VAR: PLACE.to_json(),
                SETTINGS_VAR: settings.to_json(),
                RUN_DIR_VAR: str(run_dir),
                **env,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._connections: list[Connection] = []
        self._workers: dict[tuple[int, int], Connection] = {}  # a worker serves one client at a time
        self._calls = 0

    def ready(self) -> Announcement:
        assert self.process.stdout
        line = self.process.stdout.readline()
        announcement = parse_announcement(line)
        assert announcement, (line, self.process.communicate())
        return announcement

    def client(self, key: bytes | None = None) -> Client:
        sock = dial(self.run_dir, "unix:agent.sock")
        connection = handshake.connect(sock, key or self.key, handshake.agent_endpoint(PLACE.node))
        self._connections.append(connection)
        return Client(connection)

    def do(self, source: str, *, worker: int = 0, generation: int = 0) -> None:
        """Let a worker run some source code as a call; the answer is not waited for."""
        connection = self._workers.get((worker, generation))
        if connection is None:
            sock = dial(self.run_dir, f"unix:w{worker}.{generation}.sock")
            connection = handshake.connect(sock, self.key, handshake.worker_endpoint(PLACE.node, worker, generation))
            self._workers[worker, generation] = connection
            connection.send(Frame(Kind.FUNCTION, 1, payload.dumps_function(exec)[1]))
        self._calls += 1
        data, _ = payload.dumps(((source, {}), {}))
        connection.send(Frame(Kind.CALL, self._calls, CALL_HEAD.pack(1, 0) + data))

    def pid(self, client: Client, *, worker: int = 0, generation: int = 0) -> int:
        """The process id of a worker."""
        self.do("import os; os.write(1, b'pid %d.\\n' % os.getpid())", worker=worker, generation=generation)
        (_, _, text) = client.output(until=".\n")[-1]
        return int(text.split()[1].rstrip("."))

    def end(self) -> tuple[int, str]:
        """Wait until it has ended by itself; exit status and standard error."""
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, errors

    def close(self) -> None:
        for connection in (*self._connections, *self._workers.values()):
            connection.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)  # its workers end by themselves
        self.process.communicate()


class Pid:
    """A handle of a process that tells of its end even where nobody reaps it."""

    def __init__(self, pid: int) -> None:
        self._fd = os.pidfd_open(pid)

    def ends(self, within_s: float = PATIENCE_S) -> bool:
        readable, _, _ = select.select([self._fd], [], [], within_s)
        os.close(self._fd)
        return bool(readable)


Start = Callable[..., RunningNode]
