"""The messages of the protocol: their kinds, who sends them, and the packing of the two frequent ones.

A message is a frame (see `frames`): kind, id, head, out-of-band buffers. For calls the id is the call's; the head of
a control message is JSON. Raise `PROTOCOL` whenever either side would misread the other.
"""

from __future__ import annotations

import json
import struct
from enum import IntEnum
from typing import Any

PROTOCOL = 4
KEY_BYTES = 32  # of the key that a pool and its nodes share


class Kind(IntEnum):
    """Kind of a message; the comment says who sends it and what it carries."""

    VERSIONS = 1  # runner -> client, once: JSON of `handshake.versions()`

    # client -> worker
    CODE = 10  # pickled tuple of (path, bytes): files that functions import
    SETUP = 11  # JSON of secret variables; pickled plugins, if any, in the buffers; answered by READY or ERROR
    FUNCTION = 12  # id = number of the function on this connection; pickled function; JSON of wishes as buffer, if any
    CALL = 13  # CALL_HEAD, then pickled (args, kwargs)
    CANCEL = 14  # interrupt the call; answered by its RESULT, ERROR or DROPPED
    RECALL = 15  # give the call back if it has not started; answered by DROPPED or not at all
    CREDIT = 16  # JSON number of further items of a stream that may be sent
    GATHERED = 17  # answers a GATHER: JSON {"round", "parts"}, the buffers of all ranks; or {"round", "error"}
    STACK = 18  # ask where the call with this id is; answered by STACKS
    SHARED = 19  # how it is kept (see `runner.shared`), digest, the pickled value unless a neighbour has it
    FORGET = 20  # the digest of a shared value that no call sent before needs any more

    # client -> worker, client -> agent
    PLACE = 21  # the node's new COMPUTE_POOL document: its neighbours have changed

    # worker -> client
    READY = 30  # id of the SETUP
    STARTED = 31  # the call left the queue (sent for calls that asked for it)
    RESULT = 32  # RESULT_HEAD, then pickled value
    ERROR = 33  # RESULT_HEAD, then dumped exception
    STREAM = 34  # the call returned a generator; items follow
    ITEM = 35  # pickled item
    END = 36  # RESULT_HEAD; the generator is exhausted
    DROPPED = 37  # the call was given back unstarted
    OUTPUT = 38  # stream byte (1 or 2), then UTF-8 text; id = call, NO_CALL when unknown
    GATHER = 39  # JSON {"name", "round", "timeout_s"}, pickled value in the buffers; id = call, or that of the SETUP
    STALE = 40  # a fresh process is to take over; calls that this one holds and does not answer have not begun
    STACKS = 41  # id of the STACK; JSON of `runner.stacks.describe`, empty when the call does not run

    # client -> agent
    PING = 50  # answered by PONG with the same id
    KILL = 51  # JSON {"worker", "generation"}: end this worker at once; it is started again
    SHUTDOWN = 52  # JSON {"grace_s": s}: leave hooks, end workers, exit
    DUMP = 53  # JSON {"worker", "generation"}: let a worker that does not answer write where it is
    REACH = 55  # JSON of a step of `runner.reach`; answered by REACHED with the same id

    # agent -> client
    PONG = 70
    WORKER_EXIT = 71  # JSON {"worker", "generation", "code", "signal", "oom", "log"}
    WORKER_UP = 72  # JSON {"worker", "generation", "address"}: a fresh worker listens
    WORKER_OUTPUT = 73  # id = worker; stream byte (1 or 2), then UTF-8 text written below Python
    DISMISSED = 75  # another client ends this node for good
    DUMPED = 74  # JSON {"worker", "generation", "text"}: what it wrote, as faulthandler has it
    REACHED = 76  # JSON of what the step gave


NO_CALL = 0
CALL_HEAD = struct.Struct("<IB")  # number of the function, flags
RESULT_HEAD = struct.Struct("<d")  # seconds the call ran
# flags of a CALL: send STARTED; all ranks have been sent this call; send only data, as `data.Pickler` makes it
WANT_STARTED, EVERYWHERE, ONLY_DATA = 1, 2, 4

STDOUT, STDERR = 1, 2


def encode(document: dict[str, Any]) -> bytes:
    """The head of a control message."""
    return json.dumps(document, separators=(",", ":")).encode()


def decode(head: bytes | bytearray | memoryview) -> dict[str, Any]:
    """The document of a control message; only ever called on what an authenticated peer sent.

    Raises:
        ValueError: it is none.
    """
    try:
        document = json.loads(bytes(head), parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("a control message is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError(f"a control message must hold an object, found {type(document).__name__}")
    return document


def _refuse_constant(name: str) -> None:
    raise ValueError(f"a control message holds {name}, which is no number of JSON")
