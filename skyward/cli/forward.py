"""`skyward forward`: a port of a node as a port of this machine's loopback.

With `--json` standard output has one object: `{"event": "forward", "pool", "node", "port", "local", "url"}`.
"""

from __future__ import annotations

import errno
import json
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

import click

from skyward.cli.places import NodeTarget, Place, find_node, place_options
from skyward.errors import ConfigError, SkywardError
from skyward.nodes.program import OUTPUT, Program
from skyward.runner.entry.relay import Relay

_PROGRAM = ("python3", "-m", "skyward.runner.entry.relay")
_ENV = {"PYTHONSAFEPATH": "1"}  # the node's files are no modules for it
_LOOPBACK = "127.0.0.1"
_WAITING = 128


@click.command()
@click.argument("target", metavar="POOL[:NODE]")
@click.argument("port", type=click.IntRange(1, 65535))
@click.option("--local", type=click.IntRange(0, 65535), help="Port here, in place of the same; 0 for any that is free.")
@click.option("--json", "as_json", is_flag=True, help="Print where it is as JSON.")
@place_options
def command(target: str, port: int, local: int | None, as_json: bool, places: Sequence[Place]) -> int:
    """Forward a port of this machine's loopback to a node's.

    Until Ctrl-C: `skyward forward POOL:0 6006`. What listens there may listen on the node's loopback alone. Nobody
    but this machine's users reaches the port here.
    """
    found = find_node(places, target)
    with closing(_listen(port if local is None else local, port)) as listener:
        return _forward(found, port, listener, as_json)


def _listen(local: int, port: int) -> socket.socket:
    try:
        return socket.create_server((_LOOPBACK, local), backlog=_WAITING)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            same = (
                " A node that shares this machine's network may itself be what listens there." if local == port else ""
            )
            raise ConfigError(
                f"Port {local} of {_LOOPBACK} is in use; say --local PORT, or --local 0.{same}"
            ) from error
        raise ConfigError(f"Port {local} of {_LOOPBACK} cannot be had ({error.strerror}); say --local PORT.") from error


def _forward(target: NodeTarget, port: int, listener: socket.socket, as_json: bool) -> int:
    local = int(listener.getsockname()[1])
    url = f"http://{_LOOPBACK}:{local}"
    with target.enter() as access:
        said = bytearray()

        def take(stream: int, data: bytes) -> None:
            if stream == OUTPUT:
                relay.feed(data)
            else:
                said.extend(data[-2000:])

        program = Program(access, [*_PROGRAM, str(port)], take, env=_ENV)
        relay = Relay(program.write, on_refused=_refusals(target, port))
        program.at_end(lambda: _close(listener))  # wakes `accept`
        if as_json:
            about = {"pool": target.node["pool"], "node": target.node["node"], "port": port, "local": local, "url": url}
            click.echo(json.dumps({"event": "forward", **about}))
        else:
            click.echo(f"{url} leads to port {port} of {target.title}; Ctrl-C ends it")
        try:
            _accept(listener, relay)
            status = program.wait().status
        except KeyboardInterrupt:
            return 0
        finally:
            program.close()
            relay.end()
    raise SkywardError(f"The relay in {target.title} ended with {status}. {said.decode(errors='replace')}".strip())


def _accept(listener: socket.socket, relay: Relay) -> None:
    """Lead connections to the node until the listener is closed."""
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        relay.accept(sock)


def _close(listener: socket.socket) -> None:
    with suppress(OSError):  # it is closed
        listener.shutdown(socket.SHUT_RDWR)


def _refusals(target: NodeTarget, port: int) -> Callable[[str], None]:
    """What says why nothing can be reached in the node, once for as long as that is so."""
    lock, last = threading.Lock(), ""

    def tell(why: str) -> None:
        nonlocal last
        with lock:
            if why == last:
                return
            last = why
        click.echo(f"skyward: port {port} of {target.title} cannot be reached: {why}", err=True)

    return tell
