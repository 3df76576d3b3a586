"""The messages of the protocol: their kinds, who sends them, and the formats of the two frequent ones.

A message is a frame (see `frames`): kind, id, head, out-of-band buffers. For calls the id is the call's; the head of a
control message is JSON. Increment `PROTOCOL` whenever either side would misread the other.
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
    """Kind of a message; the comment states who sends it and what it carries."""

    VERSIONS = 1  # runner -> client, once: JSON of `handshake.versions()`

    # client -> worker
    CODE = 10  # pickled: files that functions import as (path, bytes), paths of executables, folders for sys.path
    SETUP = 11  # JSON of secret variables; pickled plugins, if any, in the buffers; answered by READY or ERROR
    FUNCTION = 12  # id = number of the function on this connection; pickled function; JSON of requirements as buffer
    CALL = 13  # CALL_HEAD, then pickled (args, kwargs); of a BATCH, arguments of several calls packed by `wire.batch`
    CANCEL = 14  # interrupt the call; answered by its RESULT, ERROR or DROPPED
    RECALL = 15  # return the call if it has not started; answered by DROPPED or not at all
    CREDIT = 16  # JSON number of further items of a stream that may be sent
    GATHERED = 17  # answers a GATHER: JSON {"round", "parts"}, the buffers of all ranks; or {"round", "error"}
    STACK = 18  # request the stack of the call with this id; answered by STACKS
    SHARED = 19  # digest and the pickled value
    CHECKPOINTED = 27  # answers a CHECKPOINT: JSON {"request", result} or {"request", "error"}; id = call
    FORGET = 20  # no call needs the shared value with this digest or, without one, the function with this id
    LOGGING = 26  # JSON {"level"}: minimum level of functions' logging; see `runner.process`

    # client -> worker, client -> agent
    PLACE = 21  # the node's new COMPUTE_POOL document: its neighbours have changed

    # worker -> client
    READY = 30  # id of the SETUP
    STARTED = 31  # the call left the queue (sent for calls that request it)
    RESULT = 32  # RESULT_HEAD, then pickled value; of a BATCH, the values of `wire.batch`, and their COUNT as buffer
    ERROR = 33  # RESULT_HEAD, then dumped exception; of a BATCH, the COUNT of the calls before as buffer
    STREAM = 34  # the call returned a generator; items follow
    ITEM = 35  # pickled item
    END = 36  # RESULT_HEAD and what the generator returned, pickled
    DROPPED = 37  # the call was returned unstarted
    OUTPUT = 38  # stream byte (1 or 2), then UTF-8 text; id = call, NO_CALL when unknown
    GATHER = 39  # JSON {"name", "round", "timeout_s"}, pickled value in the buffers; id = call, or that of the SETUP
    CHECKPOINT = 48  # JSON {"request", "name", "rank", "op", ...}, see `_pool.calls.checkpoints`; id = call
    STALE = 40  # a fresh process takes over; calls not answered by this one have not begun; id = a call
    LOG = 47  # JSON of a log record (see `runner.process`); id = call, NO_CALL when unknown
    STACKS = 41  # id of the STACK; JSON of `runner.diagnosis.describe`, empty when the call does not run

    # client -> agent
    PING = 50  # answered by PONG with the same id
    KILL = 51  # JSON {"worker", "generation"}: end this worker at once; it is started again
    SHUTDOWN = 52  # JSON {"grace_s": s}: exit contexts, end workers, exit
    DUMP = 53  # JSON {"worker", "generation"}: make an unresponsive worker write its stack
    USAGE = 55  # answered by MEASURED with the same id
    MASK = 57  # JSON {"values"}: the secrets to mask in output through file descriptors
    TAKE = 60  # take a kept node: JSON {"compute_pool", "lease_s", "environment"}; answered by TAKEN
    KEEP = 61  # release it: JSON {"keep_s", "grace_s"}: end the workers, start fresh ones; answered by KEPT

    # agent -> client
    PONG = 70
    WORKER_EXIT = 71  # JSON {"worker", "generation", "code", "signal", "oom", "log", "stack"}
    WORKER_UP = 72  # JSON {"worker", "generation", "address"}: a fresh worker listens
    WORKER_OUTPUT = 73  # id = worker; stream byte (1 or 2), then UTF-8 text from the file descriptors
    DISMISSED = 75  # another client ends this node permanently
    DUMPED = 74  # JSON {"worker", "generation", "text"}: what it wrote, in the format of faulthandler
    MEASURED = 76  # JSON of the node's resource usage
    TAKEN = 90  # JSON {"workers": [[generation, address]]} once all listen, or {"refused": why}
    KEPT = 91  # the workers have ended, and the node waits for its next client


NO_CALL = 0
CALL_HEAD = struct.Struct("<IB")  # number of the function, flags
RESULT_HEAD = struct.Struct("<d")  # seconds the call ran
STREAM_WINDOW = 16  # items of a generator that may be sent before the client has taken one
# flags of a CALL: send STARTED; all ranks have been sent this call; it is
# several calls, run as far as time permits
WANT_STARTED, EVERYWHERE, BATCH = 1, 2, 4

STDOUT, STDERR = 1, 2


def encode(document: dict[str, Any]) -> bytes:
    """Return the head of a control message."""
    return json.dumps(document, separators=(",", ":")).encode()


def decode(head: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Parse the document of a control message; only for data from an authenticated peer.

    Raises:
        ValueError: it is not a JSON object.
    """
    document = json.loads(bytes(head))
    if not isinstance(document, dict):
        raise ValueError(f"a control message must hold an object, found {type(document).__name__}")
    return document
