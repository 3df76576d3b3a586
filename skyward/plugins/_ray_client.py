"""Connects this program to the Ray cluster of its pool, also after a lost connection: `ClientBuilder`.

`RAY_ADDRESS` names this module while the pool is open, so that all of Ray's connection attempts come here:
`ray.init()`, and the first use of Ray by an unconnected program, for which Ray would otherwise start a local cluster.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import client_builder

from skyward.errors import PluginError

_ADDRESS = "RAY_ADDRESS"
_WORDY = ("client_builder", "_private.utils", "util.client_connect")
_LOGS = logging.getLogger("ray.util.client.logsclient")  # forwards the cluster's logs for this program
_OF_SERVER = "SIGTERM handler is not set"  # logged by Ray's server for programs, and irrelevant to a program


@dataclass(frozen=True)
class _Session:
    """The connection that this program may have.

    Attributes:
        token: required by the cluster.
        on_terminate: this program's handler for SIGTERM, which `ray.init` changes.
    """

    token: str = field(repr=False)
    on_terminate: Any


_session: _Session | None = None


@contextmanager
def connected(address: str, token: str) -> Iterator[None]:
    """Connect this program to Ray's server for programs at an address, and disconnect it at the end."""
    global _session
    before = os.environ.get(_ADDRESS)
    _session = _Session(token, signal.getsignal(signal.SIGTERM))
    os.environ[_ADDRESS] = f"{__name__}://{address}"
    _LOGS.addFilter(_is_for_programs)
    try:
        ray.init(os.environ[_ADDRESS])
        yield
    finally:
        ray.shutdown()
        _LOGS.removeFilter(_is_for_programs)
        _session = None
        os.environ.pop(_ADDRESS)
        if before is not None:
            os.environ[_ADDRESS] = before


class ClientBuilder(client_builder.ClientBuilder):  # type: ignore[misc]  # Ray is not followed
    """Created by `ray.init` for an address of this module. A program that is already connected stays so."""

    def _init_args(self, **given: Any) -> ClientBuilder:
        """Apply the parameters of `ray.init`, except those for starting a cluster, since there is one."""
        kept = {name: given[name] for name in ("namespace", "runtime_env", "logging_config") if given.get(name)}
        with _muted():
            super()._init_args(**kept, ignore_reinit_error=True)
        return self

    def connect(self) -> Any:
        """Connect with the token of the pool."""
        if _session is None:
            raise PluginError(
                f"This process cannot connect to Ray: {_ADDRESS} is that of a pool's program, which is another one. "
                "Use Ray in the program that has opened the pool, or in its tasks and functions."
            )
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _session.on_terminate)
        self._metadata = [("authorization", f"Bearer {_session.token}")]
        with _muted():
            return super().connect()


def _is_for_programs(record: logging.LogRecord) -> bool:
    return _OF_SERVER not in record.getMessage()


@contextmanager
def _muted() -> Iterator[None]:
    """Suppress Ray's messages about a connection: its own parameters, another patch release of Python."""
    loggers = [logging.getLogger(f"ray.{name}") for name in _WORDY]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
