"""The wait for machines that have just been launched."""

from __future__ import annotations

import threading
import time

import pytest

from skyward.errors import ProviderError
from skyward.model.ssh import SshHost
from skyward.providers.cloud import launch as waiting
from skyward.providers.cloud.launch import StartingMachine, wait_ready


def test_a_machine_that_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cloud knows before the time for connecting is over: somebody else has ended the pool, or the cloud has."""
    monkeypatch.setattr(waiting, "_REPORT_EVERY_S", 0.3)
    host = SshHost(host="127.0.0.1", port=1)  # refuses connections
    machine = StartingMachine(id="i-1", first=host, host=host)
    began = time.monotonic()

    with pytest.raises(ProviderError, match=r"The machine i-1 at 127\.0\.0\.1 has ended before it was ready\."):
        wait_ready([machine], False, lambda *_: None, lambda _: None, threading.Event(), lambda: {"i-2"})

    assert time.monotonic() - began < 100  # of the 300 s in which machines become ready
