"""Python's `logging` on nodes: records that no handler of the node takes go to the client, as plain data."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

from skyward.runner.forked import is_child
from skyward.runtime import masking, output

_LONGEST = 64 * 1024  # characters of a string that are sent

Send = Callable[[int | None, dict[str, Any]], None]


class ClientHandler(logging.Handler):
    """Sends records to the client, with the call that they came from. It stands in for Python's handler of last resort.

    So a function that configures handlers of its own has these, and what they print is output.

    Args:
        send: sends the fields of a record, for the call with this number: `name`, `level` (a number), `text`, `trace`
            (of an exception, else ""), `line` (all of it, as text), `t`, `path`, `lineno`, `function`.
    """

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send
        self.setFormatter(logging.Formatter(logging.BASIC_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record, unless what the calling code prints to standard error is muted."""
        try:
            line = self.format(record)
            if is_child():
                sys.stderr.write(f"{line}\n")  # a forked process serves no client
                return
            call, muted = output.standard_error()
            if not muted:
                self._send(call, _fields(record, line))
        except Exception:  # texts of records are made by other people's code
            self.handleError(record)


def _fields(record: logging.LogRecord, line: str) -> dict[str, Any]:
    return {
        "name": record.name,
        "level": record.levelno,
        "text": _shown(record.getMessage()),
        "trace": _shown(record.exc_text or ""),
        "line": _shown(line),
        "t": record.created,
        "path": record.pathname,
        "lineno": record.lineno,
        "function": record.funcName,
    }


def _shown(text: str) -> str:
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text) - _LONGEST} characters more)"
    return masking.conceal(text)


def use(level: int, send: Send) -> None:
    """Log from this level on, and send what no handler here takes; called again, it sets the level."""
    logging.getLogger().setLevel(level)
    if not isinstance(logging.lastResort, ClientHandler):
        logging.lastResort = ClientHandler(send)
