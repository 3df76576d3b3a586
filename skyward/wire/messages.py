"""The messages of the protocol: their kinds, who sends them, and the packing of the two frequent ones.

A message is a frame (see `frames`): kind, id, head, out-of-band buffers. For calls the id is the call's; the head of
a control message is JSON. Raise `PROTOCOL` whenever either side would misread the other.
"""

from __future__ import annotations

import json
import struct
from enum import IntEnum, unique
from typing import Any

PROTOCOL = 6
KEY_BYTES = 32  # of the key that a pool and its nodes share


@unique
class Kind(IntEnum):
    """Kind of a message; the comment says who sends it and what it carries."""

    VERSIONS = 1  # runner -> client, once: JSON of `handshake.versions()`

    # client -> worker
    CODE = 10  # pickled: tuple of (path, bytes), files that functions import, and the paths of programs among them
    SETUP = 11  # JSON of secret variables; pickled plugins, if any, in the buffers; answered by READY or ERROR
    FUNCTION = 12  # id = number of the function on this connection; pickled function; JSON of wishes as buffer, if any
    CALL = 13  # CALL_HEAD, then pickled (args, kwargs); of a BATCH, arguments of several calls as `wire.batch` has them
    CANCEL = 14  # interrupt the call; answered by its RESULT, ERROR or DROPPED
    RECALL = 15  # give the call back if it has not started; answered by DROPPED or not at all
    CREDIT = 16  # JSON number of further items of a stream that may be sent
    GATHERED = 17  # answers a GATHER: JSON {"round", "parts"}, the buffers of all ranks; or {"round", "error"}
    STACK = 18  # ask where the call with this id is; answered by STACKS
    SHARED = 19  # how it is kept (see `runner.shared`), digest, the pickled value unless a neighbour has it
    CHECKPOINTED = 27  # answers a CHECKPOINT: JSON {"request", what was asked for} or {"request", "error"}; id = call
    FORGET = 20  # the digest of a shared value that no call sent before needs any more
    ANSWER = 22  # answers TERMINAL, READ_LINE: JSON {"question"} and "source", "line", "end", "interrupt" or "error"
    LOGGING = 26  # JSON {"level"}: from which level on functions log; see `runner.process`
    BREAK_IN = 23  # let the call, which is being debugged, stop where it is

    # client -> worker, client -> agent
    PLACE = 21  # the node's new COMPUTE_POOL document: its neighbours have changed

    # worker -> client
    READY = 30  # id of the SETUP
    STARTED = 31  # the call left the queue (sent for calls that asked for it)
    RESULT = 32  # RESULT_HEAD, then pickled value; of a BATCH, the values of `wire.batch`, and their COUNT as buffer
    ERROR = 33  # RESULT_HEAD, then dumped exception; of a BATCH, the COUNT of the calls before as buffer
    STREAM = 34  # the call returned a generator; items follow
    ITEM = 35  # pickled item
    END = 36  # RESULT_HEAD; the generator is exhausted
    DROPPED = 37  # the call was given back unstarted
    OUTPUT = 38  # stream byte (1 or 2), then UTF-8 text; id = call, NO_CALL when unknown
    GATHER = 39  # JSON {"name", "round", "timeout_s"}, pickled value in the buffers; id = call, or that of the SETUP
    CHECKPOINT = 48  # JSON {"request", "name", "rank", "op", ...}, see `_pool.calls.checkpoints`; id = call
    STALE = 40  # a fresh process takes over; calls that this one holds and does not answer have not begun; id = a call
    LOG = 47  # JSON of a log record (see `runner.process`); id = call, NO_CALL when unknown
    STACKS = 41  # id of the STACK; JSON of `runner.diagnosis.describe`, empty when the call does not run
    TERMINAL = 42  # the call asks for the client's terminal: JSON {"question", "what", "where", "wants_source"}
    TERMINAL_TEXT = 43  # UTF-8 text for the terminal that the call has
    READ_LINE = 44  # the call waits for a line typed there: JSON {"question"}; answered by ANSWER
    TERMINAL_LEFT = 45  # the call needs it no longer

    # client -> agent
    PING = 50  # answered by PONG with the same id
    KILL = 51  # JSON {"worker", "generation"}: end this worker at once; it is started again
    SHUTDOWN = 52  # JSON {"grace_s": s}: leave hooks, end workers, exit
    DUMP = 53  # JSON {"worker", "generation"}: let a worker that does not answer write its stack
    PROBE = 55  # JSON of a step of `runner.diagnosis`, or the step "usage"; answered by PROBED with the same id
    MASK = 57  # JSON {"values"}: the secrets that are masked in what is written below Python
    TAKE = 60  # have a kept node: JSON {"compute_pool", "lease_s", "environment"}; answered by TAKEN
    KEEP = 61  # give it back: JSON {"keep_s", "grace_s"}: end the workers, start fresh ones; answered by KEPT

    # agent -> client
    PONG = 70
    WORKER_EXIT = 71  # JSON {"worker", "generation", "code", "signal", "oom", "log"}
    WORKER_UP = 72  # JSON {"worker", "generation", "address"}: a fresh worker listens
    WORKER_OUTPUT = 73  # id = worker; stream byte (1 or 2), then UTF-8 text written below Python
    DISMISSED = 75  # another client ends this node for good
    DUMPED = 74  # JSON {"worker", "generation", "text"}: what it wrote, as faulthandler has it
    PROBED = 76  # JSON of what the step gave
    UNFINISHED = 77  # JSON {"worker", "generation", "call", "stream", "text"}: of a line that a worker has not ended
    TAKEN = 90  # JSON {"workers": [[generation, address]]} once all listen, or {"refused": why}
    KEPT = 91  # the workers have ended, and the node waits for its next client


NO_CALL = 0
CALL_HEAD = struct.Struct("<IB")  # number of the function, flags
RESULT_HEAD = struct.Struct("<d")  # seconds the call ran
# flags of a CALL: send STARTED; all ranks have been sent this call; send only data, as `data.Pickler` makes it; it is
# several calls, of which as many are made as there is time for
WANT_STARTED, EVERYWHERE, ONLY_DATA, BATCH = 1, 2, 4, 8

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
    raise ValueError(f"a control message holds {name}, which is not a number of JSON")
