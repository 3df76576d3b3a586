"""Commands that connect this process to a node: `skyward exec`, one command there on this process' standard streams;
`skyward shell`, a shell; `skyward forward`, a port of the node on this machine's loopback interface.

With `--json` `forward` prints one object: `{"event": "forward", "pool", "node", "port", "local", "url"}`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress

import click

from skyward.cli.places import NodeTarget, Place, find_node, place_options
from skyward.cli.sources import ProgramCommand
from skyward.errors import ConfigError, WireError
from skyward.nodes.access import NodeAccess, Program

_PASSED_ON = ("TERM", "COLORTERM", "NO_COLOR", "LANG", "LC_ALL")
_USUAL_SIZE = (24, 80)
_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_ENDING = ("SIGTERM", "SIGHUP")  # with a terminal these are for this process; keys typed there reach the node unchanged
_LOOPBACK = "127.0.0.1"
_WAITING = 128


@click.command(cls=ProgramCommand)
@click.argument("pool")
@click.argument("node", required=False)
@click.option("-t", "--tty", "in_terminal", is_flag=True, help="Give the command a terminal.")
@place_options
def command(
    pool: str, node: str | None, in_terminal: bool, arguments: Sequence[str] | None, places: Sequence[Place]
) -> int:
    """Run a command in a node of a pool.

    Such as `skyward exec POOL 1 -- nvidia-smi`; there is no shell between. It has the environment and the working
    directory of calls, and this command's standard input, output and error, each by itself. Signals reach it. Its
    exit status is this command's, 128 and the number if a signal has ended it, 127 and 126 if it was not found or
    cannot be run.
    """
    if not arguments:
        raise ConfigError("skyward exec needs a command after two dashes: `skyward exec POOL NODE -- nvidia-smi`.")
    if in_terminal and not os.isatty(0):
        raise ConfigError("skyward exec -t needs a terminal as its standard input. Leave out -t.")
    with find_node(places, pool, node).enter() as access:
        return run_in_node(access, arguments, in_terminal=in_terminal)


@click.command()
@click.argument("pool")
@click.argument("node", required=False)
@place_options
def shell(pool: str, node: str | None, places: Sequence[Place]) -> int:
    """Open a shell in NODE of POOL: bash if it has it, else sh.

    POOL is an identifier as `skyward ps` shows it, the begin of one, or a name. NODE is a number; without it the shell
    is in node 0. It has the environment and the working directory of calls. The exit status is the shell's.
    """
    if not os.isatty(0):
        raise ConfigError("skyward shell needs a terminal as its standard input. Run `skyward exec POOL NODE -- sh`.")
    target = find_node(places, pool, node)
    with target.enter() as access:
        click.echo(f"skyward: a shell in {target.title}; exit or Ctrl-D ends it", err=True)
        return run_in_node(access, (), in_terminal=True)


@click.command()
@click.argument("pool")
@click.argument("node", required=False)
@place_options
def debug(pool: str, node: str | None, places: Sequence[Place]) -> int:
    """Connect to the debugger of a call that is at a breakpoint() in NODE of POOL.

    It is pdb: `c` continues the call and ends this command, `q` ends the call. Ctrl-C and Ctrl-D end this command
    alone; the call waits for the next one.
    """
    with find_node(places, pool, node).enter() as access:
        return subprocess.call(access.command(["debug", access.pool, str(access.node)]))


class _EndedError(BaseException):
    """A signal asks for the end of this process."""

    def __init__(self, number: int) -> None:
        self.status = 128 + number


def run_in_node(access: NodeAccess, argv: Sequence[str], *, in_terminal: bool) -> int:
    """Run a command in a node, or a shell if `argv` is empty, on this process' streams; return its exit status.

    A terminal at standard input is restored in any case.

    Raises:
        SkywardError: the node cannot be entered, or was lost.
    """
    size, env = (_size(), _environment()) if in_terminal else (None, {})
    given = subprocess.DEVNULL if sys.stdin is None else None
    with _restored_terminal(in_terminal), closing(Program(access, argv, size=size, env=env, stdin=given)) as program:
        try:
            with _signals_to(program, in_terminal=in_terminal):
                return program.wait()
        except _EndedError as ended:
            return ended.status


@contextmanager
def _signals_to(program: Program, *, in_terminal: bool) -> Iterator[None]:
    """Pass signals on to the program instead of their usual effect; the second of a kind, except SIGINT, has that."""
    had = set[int]()

    def on_signal(number: int, _: object) -> None:
        name = signal.Signals(number).name
        if number in had or (in_terminal and name in _ENDING):
            raise _EndedError(number)
        if name != "SIGINT":
            had.add(number)
        if not (in_terminal and name in ("SIGINT", "SIGQUIT")):  # typed there, they reach it without this process
            program.signal(number)

    before = {}
    try:
        for name in _FORWARDED:
            number = signal.Signals[name]
            if signal.getsignal(number) != signal.SIG_IGN or number == signal.SIGINT:  # keep the effect of nohup
                before[number] = signal.signal(number, on_signal)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _restored_terminal(in_terminal: bool) -> Iterator[None]:
    """Set the terminal back to its settings and to this process' group, also after programs that were killed."""
    if not in_terminal:
        yield
        return
    settings = termios.tcgetattr(0)
    try:
        yield
    finally:
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        with suppress(termios.error, OSError):  # it was hung up, so there is nothing to restore
            os.tcsetpgrp(0, os.getpgrp())
            termios.tcsetattr(0, termios.TCSADRAIN, settings)
        signal.signal(signal.SIGTTOU, before)


def _size() -> tuple[int, int]:
    """Return the rows and columns of this process' terminal."""
    columns, rows = os.get_terminal_size(0)
    return (rows, columns) if rows and columns else _USUAL_SIZE


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
    with closing(_listen(port if local is None else local)) as listener:
        return _forward(found, port, listener, as_json)


def _listen(local: int) -> socket.socket:
    try:
        return socket.create_server((_LOOPBACK, local), backlog=_WAITING)
    except OSError as error:
        raise ConfigError(
            f"Port {local} of {_LOOPBACK} is unavailable ({error.strerror}): choose another with "
            "--local PORT, or --local 0 for any."
        ) from error


def _forward(target: NodeTarget, port: int, listener: socket.socket, as_json: bool) -> int:
    """Serve each connection by a program of its own, until Ctrl-C."""
    local = int(listener.getsockname()[1])
    url = f"http://{_LOOPBACK}:{local}"
    with target.enter() as access:
        words = access.command(["forward", str(port)])
        if as_json:
            about = {"pool": target.node["pool"], "node": target.node["node"], "port": port, "local": local, "url": url}
            click.echo(json.dumps({"event": "forward", **about}))
        else:
            click.echo(f"{url} leads to port {port} of {target.title}; Ctrl-C ends it")
        running, lost = set[subprocess.Popen[bytes]](), list[str]()

        def wait(process: subprocess.Popen[bytes]) -> None:
            if reason := access.why_cut_off(process.wait()):
                lost.append(reason)
                with suppress(OSError):  # another connection's end was noticed before
                    listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
            running.discard(process)

        try:
            while not lost:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    continue
                with sock:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    # a session of its own: Ctrl-C here must not end it before this process does
                    process = subprocess.Popen(words, stdin=sock.fileno(), stdout=sock.fileno(), start_new_session=True)
                running.add(process)
                threading.Thread(target=wait, args=(process,), daemon=True).start()
        except KeyboardInterrupt:
            return 0
        finally:
            for process in list(running):
                process.terminate()
    raise WireError(f"{target.title.capitalize()} {lost[0]}.")
