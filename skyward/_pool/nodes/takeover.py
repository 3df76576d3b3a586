"""The client's messages to an agent by which it takes over a node of a pool with a name, and leaves it to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from skyward.errors import PoolError, WireError
from skyward.system import threading
from skyward.wire.frames import Connection, Frame
from skyward.wire.messages import Kind, decode, encode

PATIENCE_S = 10.0  # how long an agent may take to end workers that do not end by themselves


class NodeInUseError(PoolError):
    """Another client has the node."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a node is to be for its next client.

    Attributes:
        document: its COMPUTE_POOL document.
        lease_s: seconds that it lives without this client.
        environment: the whole environment of its workers; None for the one that they have.
    """

    document: str
    lease_s: float
    environment: Mapping[str, str] | None = field(default=None, repr=False)


def take(agent: Connection, order: Order, timeout_s: float) -> list[tuple[int, str]]:
    """Take a node; generation and address of each of its workers, which no other client has used.

    What the agent has said before its answer was for the client before, and is dropped.

    Raises:
        NodeInUseError: another client has it.
        WireError: it ends, or does not answer in time.
    """
    about = {"compute_pool": order.document, "lease_s": order.lease_s, "environment": order.environment}
    agent.post(Frame(Kind.TAKE, 0, encode(about)))
    late = threading.Timer(timeout_s, agent.stop_reading)
    late.daemon = True
    late.start()
    try:
        while frames := agent.receive():
            for frame in frames:
                if frame.kind == Kind.TAKEN:
                    answer = decode(frame.head)
                    if "refused" in answer:
                        raise NodeInUseError(f"It cannot be taken over: {answer['refused']}.")
                    return [(int(generation), str(address)) for generation, address in answer["workers"]]
    finally:
        late.cancel()
    raise WireError(f"Its agent did not give it to this client: it ended, or took longer than {timeout_s:g} s.")


def keeping(keep_s: float, grace_s: float) -> Frame:
    """The message by which a client gives a node back."""
    return Frame(Kind.KEEP, 0, encode({"keep_s": keep_s, "grace_s": grace_s}))
