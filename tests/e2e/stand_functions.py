"""Functions that tests send to the stand's hosts; a module without pytest, since nodes have none to import."""

from __future__ import annotations

import os
import socket
import time

import skyward as sky


@sky.compute
def where() -> str:
    return socket.gethostname()


@sky.compute
def reverse(payload: bytes) -> bytes:
    return payload[::-1]


@sky.compute
def places() -> dict[str, object]:
    """Which node it is, and where."""
    info = sky.instance_info()
    assert info
    return {"node": info.node, "host": socket.gethostname()}


@sky.compute(retries=3)
def work(number: int, seconds: float) -> tuple[int, str]:
    """Say which call it was and where it ran."""
    time.sleep(seconds)
    return number, socket.gethostname()


@sky.compute
def work_once(number: int, seconds: float) -> tuple[int, str]:
    """The same, for calls that may not run twice."""
    time.sleep(seconds)
    return number, socket.gethostname()


@sky.compute
def wait(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@sky.compute
def ask_metadata() -> str:
    """What EC2's metadata service answers to code in a container, or the kind of error."""
    import urllib.request

    url, headers = "http://169.254.169.254/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers), timeout=5) as answer:
            return str(answer.read().decode())
    except OSError as error:
        return type(getattr(error, "reason", error)).__name__
