"""How long a silent engine is waited for while it pushes to, or pulls from, a registry.

Registries take minutes to store a large layer, and an engine says nothing meanwhile: distribution's upload of a layer
ends with one request that is answered once the object store has the whole (https://github.com/distribution/distribution,
docs/spec: Completed Upload). So silence itself is no failure. It is one when the registry does not answer any more, or
answers and makes no progress for half an hour.
"""

from __future__ import annotations

from time import monotonic

from skyward.build.events import Report, note
from skyward.build.registry.client import failure_to_answer
from skyward.build.registry.reference import Reference
from skyward.errors import RegistryError

_ASK_AFTER_S = 15.0  # of silence; and between questions
_SAY_EVERY_S = 30.0
_GONE_S = 60.0  # without an answer: longer than a restart of a registry takes
_LONGEST_S = 1800.0


class Patience:
    """Called during an engine's silence with its seconds; see `skyward.engine.Images.push`.

    Args:
        reference: of the image and its registry.
        doing: what the engine does with it, such as "push".
        report: is told what is waited for.
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
        self._answered_s = max(self._answered_s, now - silent_s)  # what the engine told came from the registry
        failure = failure_to_answer(self._reference)
        self._asked_s = monotonic()
        name = self._reference.registry
        if not failure:
            self._answered_s = self._asked_s
            if silent_s > _LONGEST_S:
                raise RegistryError(
                    f"The engine was to {self._doing} {self._reference}, and has told of no progress for "
                    f"{silent_s:.0f} s. The registry {name} answers other questions.",
                    "See in the registry's log what it does with the layer; what has arrived stays. Then repeat it.",
                )
        elif self._asked_s - self._answered_s > _GONE_S:
            raise RegistryError(
                f"The engine was to {self._doing} {self._reference}, and waits for the registry {name}, which has not "
                f"answered for {self._asked_s - self._answered_s:.0f} s: {failure}",
                "See that the registry runs, and repeat it; layers that have arrived stay.",
            )
        if self._asked_s - self._said_s > _SAY_EVERY_S:
            self._said_s = self._asked_s
            state = f"cannot be asked: {failure}" if failure else "answers other questions"
            self._report(note(f"waiting for {name}, silent for {silent_s:.0f} s; it {state}"))
