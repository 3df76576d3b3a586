"""The output that one worker process writes below Python: masked and recorded before it is sent to the client."""

from __future__ import annotations

from collections.abc import Callable

from skyward.runtime.masking import Masks


class ChildOutput:
    """Takes the text of a worker's descriptors, in the thread that reads them.

    Args:
        masks: the secrets of the client of now.
        keep: writes stream and text to this host's disk.
        tell: sends them to the client.
    """

    def __init__(
        self, masks: Callable[[], Masks], keep: Callable[[int, str], None], tell: Callable[[int, str], None]
    ) -> None:
        self._masks, self._keep, self._tell = masks, keep, tell
        self._held: dict[int, str] = {}  # what may be the beginning of a secret, by stream
        self._begun = set[int]()  # the streams whose last line has no end

    def add(self, stream: int, text: str) -> None:
        """Take what has been written."""
        masks = self._masks()
        if masks:
            text, held = masks.split(self._held.pop(stream, "") + text)
            if held:
                self._held[stream] = held
        self._pass_on(stream, text)

    def finish(self) -> None:
        """Take the end: what comes next is of another process, and begins a line."""
        for stream, held in self._held.items():
            self._pass_on(stream, self._masks().conceal(held))
        for stream in tuple(self._begun):
            self._pass_on(stream, "\n")

    def _pass_on(self, stream: int, text: str) -> None:
        if text:
            (self._begun.discard if text.endswith("\n") else self._begun.add)(stream)
            self._keep(stream, text)
            self._tell(stream, text)
