"""Signals in a process whose threads keep the interpreter's lock busy."""

from __future__ import annotations

import signal
import subprocess
import sys

PROGRAM = """
import os, signal, threading
from skyward.system.process_end import on_signals

def work():
    while True:
        sum(range(100))

on_signals((signal.SIGTERM,), lambda number: os.write(1, b"%d\\n" % number))
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
os.write(1, b"ready\\n")
wait = threading.Event()
while True:
    wait.wait(3600)
"""


def test_each_is_heard_while_other_threads_are_busy() -> None:
    """However often, and wherever the main thread is at that moment."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            assert process.stdout.readline() == "ready\n"
            for _ in range(20):
                process.send_signal(signal.SIGTERM)
                assert process.stdout.readline() == f"{int(signal.SIGTERM)}\n"
        finally:
            process.kill()
