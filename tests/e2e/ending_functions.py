"""Functions that leave to the end of their process what Python does there; nodes import this module."""

from __future__ import annotations

import atexit
import ctypes
import logging
import logging.handlers
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import skyward as sky

KEPT: list[Any] = []


@sky.compute
def leaves_all_to_the_end() -> None:
    """Each way prints one word when the process ends, and none before."""
    atexit.register(print, "exit-handler")
    file = open(os.dup(1), "w", encoding="utf-8")  # noqa: SIM115 - it is for Python to close  # noqa: SIM115 - it is for Python to close
    file.write("file\n")
    handler = logging.handlers.MemoryHandler(100, target=logging.StreamHandler())
    handler.buffer.append(logging.makeLogRecord({"msg": "log", "levelno": logging.INFO}))
    queue: Any = multiprocessing.Queue()
    reader = multiprocessing.Process(target=_print_from, args=(queue,), daemon=False)
    reader.start()
    queue.put("queue")
    last = threading.Event()
    threading.Thread(target=lambda: (last.wait(0.2), print("thread"))).start()
    KEPT.extend((file, handler, queue))


def _print_from(queue: Any) -> None:
    os.write(1, f"{queue.get()}\n".encode())


@sky.compute
def never_ends() -> None:
    """Has an exit handler, and a thread that runs for ever."""
    atexit.register(print, "exit-handler")
    threading.Thread(target=threading.Event().wait, name="endless").start()


@sky.compute
def starts_a_child(how: str) -> int:
    """The process ID of one that would outlive its parent."""
    sleep = ["sleep", "300"]
    if how == "session":
        return subprocess.Popen(sleep, start_new_session=True).pid
    if how == "no environment":
        return subprocess.Popen(sleep, start_new_session=True, env={}).pid
    if how == "shell":
        return int(subprocess.check_output("setsid nohup sleep 300 >/dev/null 2>&1 & echo $!", shell=True))
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.setsid()
        if (daemon := os.fork()) == 0:
            os.execvpe(sleep[0], sleep, {} if how == "bare daemon" else os.environ)
        os.write(write, b"%d" % daemon)
        os._exit(0)
    os.waitpid(child, 0)
    return int(os.read(read, 16))


@sky.compute
def ends_its_node() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


@sky.compute
def leaves_orphans(count: int) -> None:
    """So many processes whose parents are gone, and which end."""
    subprocess.run(f"for i in $(seq {count}); do (true &) ; done", shell=True, check=True)


@sky.compute
def zombies() -> int:
    """How many children of the node's agent have ended and are still there."""
    agent, count = os.getppid(), 0
    for pid in Path(f"/proc/{agent}/task/{agent}/children").read_text().split():
        with suppress(FileNotFoundError):  # it has just been released
            count += " Z " in Path("/proc", pid, "stat").read_text()
    return count


@sky.compute
def says(text: str) -> None:
    print(text)


@sky.compute
def crashes(how: str) -> None:
    print("before the crash")
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    _crash(how)


def _crash(how: str) -> None:
    if how == "abort":
        os.abort()
    ctypes.string_at(0)
