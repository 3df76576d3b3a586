"""`Program`: one command that runs in a node, with its streams, for a process that is not the pool's client."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from skyward.errors import WireError
from skyward.nodes.access import NodeAccess
from skyward.system import threading
from skyward.wire.session import WINDOW, Decoder, Kind, encode, encode_json

_CHUNK = 1 << 16
ERRORS, OUTPUT = 2, 1  # the streams of a command, by the numbers of their descriptors


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command ended.

    Attributes:
        status: its exit status; 128 and the number for a signal, as shells have it; 126 and 127 if it did not start.
        text: why it did not start, in a sentence; "" if it did.
    """

    status: int
    text: str = ""


class Program:
    """A command that runs in a node, in the environment and the directory of calls. It ends when it is closed.

    Args:
        access: the way into the node.
        argv: the command, without a shell between; none for a shell.
        on_output: is given a stream (1 or 2) and what was written to it, in a thread of its own; while it does not
            return the command has to wait. What it raises closes the program, and `wait` raises it.
        size: rows and columns of its terminal; None if it gets none, and separate streams.
        env: variables in addition to those of calls.

    Raises:
        SkywardError: there is no way in.
    """

    def __init__(
        self,
        access: NodeAccess,
        argv: Sequence[str],
        on_output: Callable[[int, bytes], None],
        *,
        size: tuple[int, int] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._access, self._on_output = access, on_output
        self._news = threading.Condition()
        self._sending = threading.Lock()
        self._room = WINDOW
        self._ending: Ending | None = None
        self._failure: BaseException | None = None
        self._over = self._closed = False
        self._at_end: list[Callable[[], None]] = []
        self._stream = access.open_session()
        rows, columns = size or (0, 0)
        order = {"argv": list(argv), "pool": access.pool, "node": access.node, "rows": rows, "columns": columns}
        self._send(encode_json(Kind.START, {**order, "env": dict(env or {}), "cwd": access.cwd}))
        threading.Thread(target=self._read, name="skyward-program", daemon=True).start()

    def write(self, data: bytes) -> bool:
        """Give it input; blocks while it takes none. False when it has ended."""
        left = memoryview(data)
        while left:
            with self._news:
                self._news.wait_for(lambda: self._room > 0 or self._over)
                if self._over:
                    return False
                part = left[: min(self._room, _CHUNK)]
                self._room -= len(part)
            self._send(encode(Kind.INPUT, part))
            left = left[len(part) :]
        return True

    def end_input(self) -> None:
        """Tell it that there is no more input; in a terminal, as Ctrl-D does."""
        self._send(encode(Kind.END))

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        self._send(encode_json(Kind.SIZE, [rows, columns]))

    def signal(self, number: int) -> None:
        """Send a signal to the command and those with it."""
        self._send(encode_json(Kind.SIGNAL, int(number)))

    def at_end(self, action: Callable[[], None]) -> None:
        """Have something done when it has ended, in whatever way; at once if it has."""
        with self._news:
            if not self._over:
                self._at_end.append(action)
                return
        action()

    def wait(self) -> Ending:
        """Block until it has ended.

        Raises:
            WireError: the connection, or the node, is gone, or has ended the command; says which.
        """
        with self._news:
            self._news.wait_for(lambda: self._over)
        if self._failure is not None:
            raise self._failure
        assert self._ending
        return self._ending

    def close(self) -> None:
        """End it with everything that it has started. Does nothing the second time."""
        self._closed = True
        self._stream.close()
        with self._news:
            self._news.wait_for(lambda: self._over, timeout=2.0)

    def _send(self, frame: bytes) -> None:
        with suppress(OSError, ValueError), self._sending:  # it has ended, which the reader finds out
            self._stream.send(frame)

    def _read(self) -> None:
        """Handle what comes from the node (a thread of its own)."""
        decoder = Decoder()
        try:
            for data in self._stream.received():
                for kind, content in decoder.feed(data):
                    self._take(kind, content)
        except BaseException as error:
            self._failure = error
        if self._ending is None and self._failure is None:
            self._failure = WireError(self._why_lost())
        self._stream.close()
        with self._news:
            self._over = True
            actions, self._at_end = self._at_end, []
            self._news.notify_all()
        for action in actions:
            action()

    def _take(self, kind: Kind, content: bytes) -> None:
        match kind:
            case Kind.OUTPUT:
                self._on_output(OUTPUT, content)
            case Kind.ERRORS:
                self._on_output(ERRORS, content)
            case Kind.TAKEN:
                with self._news:
                    self._room += int(json.loads(content))
                    self._news.notify_all()
            case Kind.EXIT:
                found = json.loads(content)
                self._ending = Ending(128 + found["signal"] if found["signal"] else found["status"])
            case Kind.FAILED:
                self._ending = Ending(**json.loads(content))
            case Kind.LOST:
                raise WireError(f"{self._subject} has ended, and what ran there with it.")
            case _:
                raise WireError(f"A node's session sent a frame {kind.name}, which is for nodes.")

    @property
    def _subject(self) -> str:
        return f"Node {self._access.node} of pool {self._access.pool} ({self._access.title})"

    def _why_lost(self) -> str:
        if self._closed:
            return f"{self._subject}: the command was ended by this client."
        if reason := self._access.loss_reason():
            return f"{self._subject} {reason}. What ran there has ended with it."
        said = self._stream.said()
        more = f" Its last lines:\n{said}" if said else ""
        if f"No module named {'skyward'!r}" in said or "runner.entry.session" in said:
            more = f" The node runs another version of skyward, or none: open the pool anew with this one.{more}"
        return f"{self._subject} ended the session.{more}"
