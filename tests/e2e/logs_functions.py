"""Functions of the tests of logs; nodes import this module, which imports no pytest."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time


def die(how: str) -> None:
    """Print a line, the beginnings of two more, and be killed."""
    print("a whole line")
    print("begun", end="")
    sys.stderr.write("begun as well")
    os.write(1, b"below Python")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "kill the node":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    hoard = []
    while True:
        hoard.append(bytearray(16 * 1024**2))


def tell_secret() -> None:
    """Print a secret in every way, log it, and raise it."""
    secret = os.environ["HUSH"]
    print("the secret", secret)
    print(secret[:5], end="", flush=True)
    print(secret[5:])
    subprocess.run(["sh", "-c", 'printf \'%s\' "$1"; sleep 0.3; echo "$2"', "sh", secret[:7], secret[7:]], check=True)
    logging.getLogger("train").warning("it is %s", secret)
    raise ValueError(f"{secret} is wrong")


def log(levels: int) -> None:
    """Log at each of the first levels."""
    logger = logging.getLogger("train")
    for level in (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)[:levels]:
        logger.log(level, "at %d", level)


def print_much(megabytes: int) -> float:
    """Print numbered lines of 1000 characters; seconds that took."""
    began = time.perf_counter()
    for n in range(megabytes * 1000):
        print(f"{n:0999}")
    return time.perf_counter() - began


def say_and_wait(text: str) -> None:
    print(text, flush=True)
    time.sleep(60)
