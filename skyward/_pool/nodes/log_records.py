"""Log records of nodes for the handlers of the logger "skyward.output": in order, off the threads that read."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

from skyward._pool.background import Callbacks
from skyward.system import threading

LOGGER = "skyward.output"
_MOST = 10_000  # records that wait for slow handlers; what comes beyond is left out, and counted


def level() -> int:
    """From which level on functions log: that of the logger "skyward.output", which is the root's unless it is set."""
    return logging.getLogger(LOGGER).getEffectiveLevel()


def wanted() -> bool:
    """Whether somebody has attached a handler to the logger, and so takes records in the place of printed lines."""
    return bool(logging.getLogger(LOGGER).handlers)


class LogRecords:
    """Hands the records of one node to handlers, in their order, in one of the pool's threads for callbacks."""

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self._lock = threading.Lock()
        self._waiting: deque[logging.LogRecord] = deque()
        self._left_out = 0
        self._delivering = False

    def put(self, fields: Mapping[str, Any], **place: int | None) -> None:
        """Take the fields of a record (see `runner.node_logging`), with `node`, `rank` and `call` as its attributes."""
        record = _record(fields, place)
        with self._lock:
            if len(self._waiting) >= _MOST:
                self._left_out += 1
                return
            self._waiting.append(record)
            if self._delivering:
                return
            self._delivering = True
        self._callbacks.submit("a handler of the logger skyward.output", self._deliver)

    def _deliver(self) -> None:
        logger = logging.getLogger(LOGGER)
        while True:
            with self._lock:
                if not self._waiting:
                    self._delivering = False
                    return
                record = self._waiting.popleft()
                left_out, self._left_out = self._left_out, 0
            if left_out:
                logger.warning("%d records of nodes were left out: handlers are too slow for them", left_out)
            if logger.isEnabledFor(record.levelno):
                try:
                    logger.handle(record)
                except Exception:  # a handler that raises loses its record, and no other
                    logging.getLogger(__name__).exception("A handler of the logger %s failed.", LOGGER)


def _record(fields: Mapping[str, Any], place: Mapping[str, int | None]) -> logging.LogRecord:
    record = logging.LogRecord(
        str(fields["name"]),
        int(fields["level"]),
        str(fields["path"]),
        int(fields["lineno"]),
        str(fields["text"]),
        None,
        None,
        str(fields["function"]),
    )
    record.created = float(fields["t"])
    record.msecs = record.created % 1 * 1000
    record.exc_text = str(fields["trace"]) or None
    vars(record).update(place)
    return record
