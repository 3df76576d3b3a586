"""What users write: the forms of programs that need no framework, as a user's own module would hold them.

A module without pytest, since nodes have none to import when they load these functions by name.
"""

from __future__ import annotations

import functools
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import skyward as sky


def here() -> sky.InstanceInfo:
    """This node's place, inside a pool."""
    info = sky.instance_info()
    assert info is not None
    return info


@sky.compute
def hand_out(words: list[str], limit_s: float = 20.0) -> str:
    """The head gives every other node its word, over the address and port that all of them were told."""
    info = here()
    if not info.is_head:
        return _ask_head(info, limit_s)
    with socket.create_server((info.head_addr, info.head_port)) as server:
        server.settimeout(limit_s)
        for _ in range(info.total_nodes - 1):
            connection, _ = server.accept()
            with connection:
                node = int(connection.recv(16))
                connection.sendall(words[node].encode())
    return f"head keeps {words[0]}"


def _ask_head(info: sky.InstanceInfo, limit_s: float) -> str:
    deadline = time.monotonic() + limit_s
    while True:  # the head may not listen yet, and nothing but trying tells
        try:
            connection = socket.create_connection((info.head_addr, info.head_port), timeout=limit_s)
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    with connection:
        connection.sendall(str(info.node).encode())
        return f"node {info.node} got {connection.recv(64).decode()}"


PACKAGE = "iniconfig"  # small, pure Python, and in no image of these tests unless the plugin adds it


def recorder(name: str, record: list[str], package: str | None = None) -> sky.Plugin:
    """A plugin with every hook: what happens on nodes it prints, what happens on the client it adds to `record`."""

    def transform(image: sky.Image, cluster: sky.Cluster) -> sky.Image:
        record.append(f"transform {name}, {cluster.spec.nodes} nodes, sees {', '.join(image.pip) or 'nothing'}")
        return image.pip_install(package) if package else image.with_env({f"RECORDER_{name.upper()}": "1"})

    def bootstrap(cluster: sky.Cluster) -> list[Any]:
        def note() -> None:
            with open("bootstrap.log", "a", encoding="utf-8") as log:
                log.write(f"{name} callable\n")

        return [f"echo '{name} shell, {cluster.spec.nodes} nodes' >> bootstrap.log", note]

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return f"{name}({fn(*args, **kwargs)})"

        return inner

    @contextmanager
    def around(hook: str, info: sky.InstanceInfo) -> Iterator[None]:
        print(f"{os.getpid()} enter {hook} {name} of node {info.node}")
        yield
        print(f"{os.getpid()} exit {hook} {name} of node {info.node}")

    def around_app(info: sky.InstanceInfo) -> AbstractContextManager[None]:
        return around("app", info)

    def around_process(info: sky.InstanceInfo) -> AbstractContextManager[None]:
        return around("process", info)

    @contextmanager
    def around_client(pool: sky.ComputePool, cluster: sky.Cluster) -> Iterator[None]:
        record.append(f"enter client {name}, {pool.current_nodes()} of {cluster.spec.nodes} nodes")
        yield
        record.append(f"exit client {name}, {pool.current_nodes()} nodes")

    return (
        sky.Plugin.create(name)
        .with_image_transform(transform)
        .with_bootstrap(bootstrap)
        .with_decorator(decorate)
        .with_around_app(around_app)
        .with_around_process(around_process)
        .with_around_client(around_client)
    )


@sky.compute
def bootstrap_log() -> str:
    with open("bootstrap.log", encoding="utf-8") as log:
        return log.read()


@sky.compute
def which(package: str, seconds: float = 0.0) -> str:
    """Import a package; a call that lasts long enough for every worker to take one of several."""
    time.sleep(seconds)
    return f"{__import__(package).__name__} in {os.getpid()}"


@sky.compute
def metered(x: int) -> str:
    return f"{x} at {os.environ['METER']}"
