"""Commands that connect this process to a node: `skyward exec`, one command there on this process' standard streams;
`skyward shell`, a shell; `skyward forward`, a port of the node on this machine's loopback interface.

For a command, raw terminal mode, signals, end of input and the exit status are passed between this process and the
node. With `--json` `forward` prints one object: `{"event": "forward", "pool", "node", "port", "local", "url"}`.
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
import signal
import socket
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, ClassVar

import click

from skyward.cli.places import NodeTarget, Place, find_node, place_options
from skyward.errors import ConfigError, SkywardError
from skyward.nodes.access import OUTPUT, NodeAccess, Program

if TYPE_CHECKING:
    from skyward.runner.entry.relay import Relay


_CHUNK = 1 << 16
_PASSED_ON = ("TERM", "COLORTERM", "NO_COLOR", "LANG", "LC_ALL")
_USUAL_SIZE = (24, 80)
_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_ENDING = ("SIGTERM", "SIGHUP")  # with a terminal these are for this process; keys typed there reach the node unchanged
_RELAY = ("python3", "-m", "skyward.runner.entry.relay")
_ENV = {"PYTHONSAFEPATH": "1"}  # do not import the node's files as modules
_LOOPBACK = "127.0.0.1"
_WAITING = 128


class _AfterDashes(click.Command):
    """A command that receives everything after the first `--` unchanged."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, words = (args, []) if "--" not in args else (args[: args.index("--")], args[args.index("--") + 1 :])
        ctx.meta["words"] = words
        return super().parse_args(ctx, own)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- COMMAND [WORD]..."]


@click.command(cls=_AfterDashes)
@click.argument("pool")
@click.argument("node", required=False)
@click.option("-t", "--tty", "in_terminal", is_flag=True, help="Give the command a terminal.")
@place_options
@click.pass_context
def command(context: click.Context, pool: str, node: str | None, in_terminal: bool, places: Sequence[Place]) -> int:
    """Run a command in a node of a pool.

    Such as `skyward exec POOL 1 -- nvidia-smi`; there is no shell between. It has the environment and the working
    directory of calls, and this command's standard input, output and error, each by itself. Signals reach it. Its
    exit status is this command's, 128 and the number if a signal has ended it, 127 and 126 if it was not found or
    cannot be run. What it has started ends with it.
    """
    words: list[str] = context.meta["words"]
    if not words:
        raise ConfigError("skyward exec takes a command after two dashes: `skyward exec POOL NODE -- nvidia-smi`.")
    with find_node(places, pool, node).enter() as access:
        return run_in_node(access, words, in_terminal=in_terminal)


@click.command()
@click.argument("pool")
@click.argument("node", required=False)
@place_options
def shell(pool: str, node: str | None, places: Sequence[Place]) -> int:
    """Open a shell in NODE of POOL: bash if it has it, else sh.

    POOL is an identifier as `skyward ps` shows it, the begin of one, or a name. NODE is a number; without it the shell
    is in node 0. It has the environment and the working directory of calls. What it has started ends with it. The exit
    status is the shell's.
    """
    if not os.isatty(0):
        raise ConfigError("skyward shell needs a terminal as its standard input. Run `skyward exec POOL NODE -- sh`.")
    target = find_node(places, pool, node)
    with target.enter() as access:
        click.echo(f"skyward: a shell in {target.title}; exit or Ctrl-D ends it", err=True)
        return run_in_node(access, (), in_terminal=True)


def run_in_node(access: NodeAccess, argv: Sequence[str], *, in_terminal: bool) -> int:
    """Run a command in a node, or a shell if `argv` is empty, on this process' streams; return its exit status.

    A terminal at standard input is in raw mode meanwhile, and is restored in any case.

    Raises:
        SkywardError: the node cannot be entered, or was lost.
        BrokenPipeError: the reader of this process' output is closed.
    """
    from skyward.runs.program import write_all  # not needed by `forward`

    signals: SimpleQueue[int | None] = SimpleQueue()
    is_raw = in_terminal and os.isatty(0)
    size = _size() if in_terminal else None
    screen = _Screen(write_all)
    with ExitStack() as last:
        last.enter_context(_signals_to(signals))
        program = Program(
            access, argv, screen.write if is_raw else write_all, size=size, env=_environment() if in_terminal else {}
        )
        last.callback(program.close)
        if is_raw:
            last.enter_context(_raw_terminal())
            last.callback(screen.restore)
        last.enter_context(_input_to(program))
        program.at_end(lambda: signals.put(None))
        ended_by = _pass_signals(signals, program, in_terminal=in_terminal)
        if ended_by is not None:
            return 128 + ended_by
        ending = program.wait()
    if ending.text:
        click.echo(f"skyward: {ending.text}", err=True)
    return ending.status


def _pass_signals(signals: SimpleQueue[int | None], program: Program, *, in_terminal: bool) -> int | None:
    """Forward signals until the program has ended; return the number of one that is to end this process, else None."""
    had = set[int]()
    while (number := signals.get()) is not None:
        if number == signal.SIGWINCH:
            if in_terminal:
                program.resize(*_size())
        elif number in had or (in_terminal and signal.Signals(number).name in _ENDING):
            return number
        else:
            if number != signal.SIGINT:
                had.add(number)
            program.signal(number)
    return None


class _Screen:
    """Terminal modes that programs in the node have switched, to be reset if they were ended before they did so."""

    _SWITCH = re.compile(rb"\x1b\[\?(1049|1047|47|1000|1002|1003|1006|1004|2004|25)([hl])")
    _USUAL: ClassVar[Mapping[bytes, bytes]] = {b"25": b"h"}  # the cursor is shown; all other modes are off

    def __init__(self, write: Callable[[int, bytes], None]) -> None:
        self._write = write
        self._last: dict[bytes, bytes] = {}

    def write(self, stream: int, data: bytes) -> None:
        """Write data, and remember the modes it switches."""
        self._last.update(self._SWITCH.findall(data))
        self._write(stream, data)

    def restore(self) -> None:
        """Reset modes that differ from the default; none do after programs that ended normally."""
        for mode, state in self._last.items():
            if state != (usual := self._USUAL.get(mode, b"l")):
                with suppress(OSError):  # the terminal was hung up
                    self._write(1, b"\x1b[?%b%b" % (mode, usual))


@contextmanager
def _signals_to(queue: SimpleQueue[int | None]) -> Iterator[None]:
    """Put the numbers of signals into a queue instead of their usual effect."""
    before = {}
    try:
        for name in (*_FORWARDED, "SIGWINCH"):
            number = signal.Signals[name]
            if signal.getsignal(number) != signal.SIG_IGN or number == signal.SIGINT:  # keep the effect of nohup
                before[number] = signal.signal(number, lambda number, _: queue.put(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _raw_terminal() -> Iterator[None]:
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0, termios.TCSADRAIN)
        yield
    finally:
        with suppress(termios.error):  # it was hung up, so there is nothing to restore
            termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextmanager
def _input_to(program: Program) -> Iterator[None]:
    """Copy standard input to the program until it has ended."""
    over, end = os.pipe()

    def copy() -> None:
        while True:
            ready, _, _ = select.select([0, over], [], [])
            if over in ready:
                return
            try:
                data = os.read(0, _CHUNK)
            except OSError:  # the terminal was hung up
                data = b""
            if not data:
                program.end_input()
                return
            if not program.write(data):
                return

    thread = threading.Thread(target=copy, name="skyward-input", daemon=True)
    try:
        if sys.stdin is None:
            program.end_input()
        else:
            thread.start()
        yield
    finally:
        os.close(end)
        if thread.ident is not None:
            thread.join(1.0)
        if not thread.is_alive():
            os.close(over)


def _size() -> tuple[int, int]:
    """Return the rows and columns of this process' terminal."""
    for stream in (0, 1, 2):
        try:
            columns, rows = os.get_terminal_size(stream)
        except OSError:
            continue
        if rows and columns:
            return rows, columns
    return _USUAL_SIZE


def _environment() -> Mapping[str, str]:
    found = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {"TERM": "xterm", **found}


@click.command()
@click.argument("target", metavar="POOL[:NODE]")
@click.argument("port", type=click.IntRange(1, 65535))
@click.option("--local", type=click.IntRange(0, 65535), help="Port here, in place of the same; 0 for any that is free.")
@click.option("--json", "as_json", is_flag=True, help="Print where it is as JSON.")
@place_options
def forward(target: str, port: int, local: int | None, as_json: bool, places: Sequence[Place]) -> int:
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
    from skyward.runner.entry.relay import Relay

    local = int(listener.getsockname()[1])
    url = f"http://{_LOOPBACK}:{local}"
    with target.enter() as access:
        said = bytearray()

        def take(stream: int, data: bytes) -> None:
            if stream == OUTPUT:
                relay.feed(data)
            else:
                said.extend(data[-2000:])

        program = Program(access, [*_RELAY, str(port)], take, env=_ENV)
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
    """Forward connections to the node until the listener is closed."""
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
    """Return a callback that reports why the port in the node cannot be reached; repeated reasons are printed once."""
    lock, last = threading.Lock(), ""

    def tell(why: str) -> None:
        nonlocal last
        with lock:
            if why == last:
                return
            last = why
        click.echo(f"skyward: port {port} of {target.title} cannot be reached: {why}", err=True)

    return tell
