"""Time limits for silent transfers to and from registries: an engine's push or pull, and uploads of our own.

Registries take minutes to store a large layer, and answer nothing meanwhile: distribution's upload of a layer ends with
one request that is answered once the object store has the whole (https://github.com/distribution/distribution,
docs/spec: Completed Upload). So silence itself is no failure. It is one when the registry does not answer other
requests any more, or answers them and the transfer makes no progress for half an hour.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic, sleep
from typing import TypeVar

import requests

from skyward.builder.events import Report, note
from skyward.builder.registry.http import new_session, trust, unreachable
from skyward.builder.registry.reference import Reference
from skyward.errors import RegistryError

LONGEST_S = 1800.0
_ASK_AFTER_S = 15.0  # of silence; and between questions
_SAY_EVERY_S = 30.0
_GONE_S = 60.0  # without an answer: longer than a restart of a registry takes
_LOOK_S = 1.0
_PIECE = 2**16
_PING_LIMITS_S = (3.0, 10.0)

R = TypeVar("R")


class Patience:
    """Called during a transfer's silence with its seconds; see `skyward.engine.Images.push`.

    Args:
        reference: of the image and its registry.
        doing: the transfer, in words that begin a sentence, such as "The engine's push of r.io/team/x:tag".
        report: receives what is waited for.
    """

    def __init__(self, reference: Reference, doing: str, report: Report) -> None:
        self._reference, self._doing, self._report = reference, doing, report
        self._asked_s = self._said_s = monotonic()
        self._answered_s = monotonic()

    def __call__(self, silent_s: float) -> None:
        """Go on waiting, or raise RegistryError."""
        now = monotonic()
        if silent_s < _ASK_AFTER_S or now - self._asked_s < _ASK_AFTER_S:
            return
        self._answered_s = max(self._answered_s, now - silent_s)  # progress until then came from the registry
        failure = failure_to_answer(self._reference)
        self._asked_s = monotonic()
        name = self._reference.registry
        if not failure:
            self._answered_s = self._asked_s
            if silent_s > LONGEST_S:
                raise RegistryError(
                    f"{self._doing} has made no progress for {silent_s:.0f} s, although the registry {name} answers "
                    "other requests.",
                    "See in the registry's log what it does with the layer; what has arrived stays. Then repeat it.",
                )
        elif self._asked_s - self._answered_s > _GONE_S:
            raise RegistryError(
                f"{self._doing} has ended: the registry {name} has not answered for "
                f"{self._asked_s - self._answered_s:.0f} s. {failure}",
                "See that the registry runs, and repeat it; layers that have arrived stay.",
            )
        if self._asked_s - self._said_s > _SAY_EVERY_S:
            self._said_s = self._asked_s
            state = f"does not answer: {failure}" if failure else "answers other requests"
            self._report(note(f"waiting for {name}, silent for {silent_s:.0f} s; it {state}"))


class Upload:
    """The body of a request. It is sent anew from its start by each redirect and retry."""

    def __init__(self, content: bytes) -> None:
        self._content, self._moved_s = content, 0.0

    def __len__(self) -> int:
        return len(self._content)

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._content), _PIECE):
            self._moved_s = monotonic()
            yield self._content[start : start + _PIECE]

    @property
    def silent_s(self) -> float:
        """Seconds since the last piece was sent."""
        return monotonic() - self._moved_s if self._moved_s else 0.0


def with_patience(send: Callable[[Upload], R], content: bytes, patience: Patience) -> R:
    """Send something that may be answered late, for as long as `patience` waits."""
    body, done = Upload(content), Future[R]()

    def run() -> None:
        try:
            done.set_result(send(body))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="skyward-upload", daemon=True).start()
    while True:
        try:
            return done.result(_LOOK_S)
        except TimeoutError:
            if done.done():
                raise
            patience(body.silent_s)


def wait_for_registry(reference: Reference, pause_s: float) -> None:
    """Wait before a registry that is busy is asked again: so long, and as long as it says that it wants to be left."""
    sleep(pause_s)
    with suppress(requests.RequestException), new_session(reference) as session:  # its retries heed Retry-After
        session.get(f"{reference.url}/v2/", timeout=_PING_LIMITS_S, allow_redirects=False, verify=trust(reference))


def failure_to_answer(reference: Reference) -> str:
    """The reason why a registry does not answer, as a sentence; "" if it gives any answer."""
    with new_session(reference, tries=1) as session:
        try:
            answer = session.get(
                f"{reference.url}/v2/", timeout=_PING_LIMITS_S, allow_redirects=False, verify=trust(reference)
            )
        except requests.RequestException as error:
            return unreachable(reference, error).reason
    return f"Status {answer.status_code} {answer.reason}." if answer.status_code in (502, 503, 504) else ""
