"""Bytes that are nearly those of the protocol: frames and handshakes with something wrong in them. Pure."""

from __future__ import annotations

import json
import pickle
import random
import struct
from typing import Any

from skyward.wire.frames import HEADER
from skyward.wire.messages import CALL_HEAD, NO_CALL, PROTOCOL, Kind

HELLO = struct.Struct("!8sH32s")  # as the handshake has it
MAGIC = b"SKYWARD\0"
HUGE = 1 << 44  # no length of a real message
DEEP = 100_000  # levels of JSON

NASTY: tuple[Any, ...] = (
    None, True, -1, 0, 1 << 70, 1e308, float("nan"), float("inf"), "", "x" * 1000, "\0", "\ud800", "127.0.0.1", [], {},
    [[]], {"worker": {}}, [None] * 100,
)  # fmt: skip

# What a client sends to an agent. Nothing here asks the agent to end, which would be obeyed: `grace_s` is never a time.
AGENT: tuple[tuple[Kind, dict[str, Any] | None], ...] = (
    (Kind.PING, None),
    (Kind.KILL, {"worker": 0, "generation": 0}),
    (Kind.DUMP, {"worker": 0, "generation": 0}),
    (Kind.PLACE, {"node": 0, "total_nodes": 1, "head_addr": "127.0.0.1", "head_port": 29400}),
    (Kind.USAGE, {}),
    (Kind.KEEP, {"keep_s": 60, "grace_s": 0}),  # of a node that this client has not taken
    (Kind.SHUTDOWN, {"grace": "soon"}),
)


class Bomb:
    """Unpickling it is what must never happen before authentication: it names a function of a module."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("unpickled",)


BOMB = pickle.dumps(Bomb())


def frame(kind: int, ident: int, head: bytes, buffers: tuple[bytes, ...] = ()) -> bytes:
    """A frame as bytes."""
    sizes = b"".join(struct.pack("<Q", len(each)) for each in buffers)
    return HEADER.pack(kind & 0xFF, len(buffers), len(head), ident) + sizes + head + b"".join(buffers)


def for_agent(chance: random.Random) -> bytes:
    """A frame for an agent with something wrong in it."""
    kind, document = chance.choice(AGENT)
    head = b"" if document is None else _document(document, chance)
    return _bytes(frame(kind, chance.getrandbits(64), head), chance) if chance.random() < 0.4 else _frame(
        kind, head, chance
    )  # fmt: skip


def for_worker(chance: random.Random) -> bytes:
    """A frame for a worker with something wrong in it."""
    kind = chance.choice([Kind.CALL, Kind.FUNCTION, Kind.CODE, Kind.CREDIT, Kind.GATHERED, Kind.PLACE, Kind.SHARED])
    heads: dict[Kind, bytes] = {
        Kind.CALL: CALL_HEAD.pack(chance.randrange(4), chance.randrange(256)) + pickle.dumps(((), {})),
        Kind.FUNCTION: chance.randbytes(20),
        Kind.CODE: pickle.dumps(((("../../outside.py", b"x"),), frozenset())),
        Kind.CREDIT: _document({"items": 1}, chance),
        Kind.GATHERED: _document({"round": 0, "parts": [1]}, chance),
        Kind.PLACE: _document({"node": 0}, chance),
        Kind.SHARED: chance.randbytes(20),
    }
    if chance.random() < 0.4:
        return _bytes(frame(kind, chance.randrange(8), heads[kind]), chance)
    return _frame(kind, heads[kind], chance)


def for_client(chance: random.Random) -> bytes:
    """A frame for a client with something wrong in it, as a node may send it."""
    kind = chance.choice([Kind.PONG, Kind.WORKER_EXIT, Kind.WORKER_UP, Kind.RESULT, Kind.ERROR, Kind.OUTPUT])
    head = _document({"worker": 0, "generation": 0, "address": "unix:w0.0.sock"}, chance)
    return _bytes(frame(kind, NO_CALL, head), chance) if chance.random() < 0.4 else _frame(kind, head, chance)


def stranger(chance: random.Random) -> bytes:
    """What somebody without the key may say to a runner, or in its place: never a proof."""
    hello = HELLO.pack(MAGIC, PROTOCOL, chance.randbytes(32))
    match chance.randrange(8):
        case 0:
            return chance.randbytes(chance.randrange(200))
        case 1:
            return hello[: chance.randrange(len(hello))]
        case 2:
            return _bytes(hello, chance) + chance.randbytes(32)
        case 3:
            return HELLO.pack(MAGIC, chance.randrange(1 << 16), chance.randbytes(32)) + BOMB
        case 4:
            return hello + BOMB + BOMB
        case 5:
            return hello + chance.randbytes(32) + frame(Kind.CALL, 1, CALL_HEAD.pack(1, 0) + BOMB)
        case 6:
            return frame(Kind.CALL, 1, BOMB) + frame(Kind.FUNCTION, 1, BOMB)
        case _:
            return hello + chance.randbytes(32) + frame(Kind.VERSIONS, 0, BOMB) + HEADER.pack(13, 0, HUGE, 1)


def _document(document: dict[str, Any], chance: random.Random) -> bytes:
    """A JSON document with something wrong in it."""
    found = dict(document)
    name = chance.choice([*found, "other"])
    match chance.randrange(8):
        case 0:
            found.pop(name, None)
        case 1 | 2:
            found[name] = chance.choice(NASTY)
        case 3:
            return json.dumps(chance.choice(NASTY)).encode()
        case 4:
            return b"[" * _depth(chance)
        case 5:
            return b'{"worker":' * _depth(chance)
        case 6:
            return _bytes(json.dumps(found).encode(), chance)
        case _:
            return chance.randbytes(chance.randrange(64))
    return json.dumps(found).encode()


def _depth(chance: random.Random) -> int:
    return DEEP if chance.random() < 0.02 else chance.choice((1, 100, 900))


def _frame(kind: int, head: bytes, chance: random.Random) -> bytes:
    """A frame whose kind or shape is wrong, or nothing but its head."""
    ident = chance.getrandbits(64)
    match chance.randrange(6):
        case 0:
            return frame(_kind(chance), ident, head)
        case 1:
            return HEADER.pack(kind, 0, chance.choice((HUGE, HUGE + 1, 1 << 62, (1 << 64) - 1, 1 << 33)), ident) + head
        case 2:
            return HEADER.pack(kind, chance.choice((1 << 20, (1 << 32) - 1, 3)), len(head), ident) + head
        case 3:
            sizes = struct.pack("<QQ", HUGE, chance.getrandbits(64))
            return HEADER.pack(kind, 2, len(head), ident) + sizes + head
        case 4:
            return frame(kind, ident, head, (b"", chance.randbytes(10)))
        case _:
            return frame(kind, ident, head)


def _kind(chance: random.Random) -> int:
    """Any number of a kind but the one that an agent ends for."""
    return chance.choice([kind for kind in range(256) if kind != Kind.SHUTDOWN])


def _bytes(data: bytes, chance: random.Random) -> bytes:
    """The same bytes with a few changed, left out or put in; the first, which is a frame's kind, stays."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        at = chance.randrange(1, max(2, len(changed)))
        match chance.randrange(4):
            case 0 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                del changed[at : at + chance.choice((1, 1, 4, 1000))]
            case 2:
                changed[at:at] = chance.randbytes(chance.choice((1, 4, 100)))
            case _ if at < len(changed):
                changed[at] = chance.choice((0, 255, 127, 128))
            case _:
                pass
    return bytes(changed)
