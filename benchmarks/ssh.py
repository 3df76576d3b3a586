"""What large arguments and results cost through SSH, next to bare forwards of the same run.

Prints JSON, and writes it to benchmarks/results/ssh.json.

make stand
python benchmarks/ssh.py                       # to the stand's first host
python benchmarks/ssh.py --hosts hosts.json    # to another: {"hosts": [...], "key": ..., "known_hosts": ...}

The other end of the bare forwards is a process in the node's own container. With paramiko installed, its forward is
measured, too.

The stand's hosts are this machine. Measured once as it is, and once with half of its cores for this side and half for
the hosts, as two machines have their own: on shared cores each way takes what the kernel's placement of four busy
processes leaves it, which goes up and down by a third from run to run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import skyward as sky
from skyward.model.ssh import SshHost
from skyward.ssh.connection import OPTIONS

MB = 1_000_000
PAYLOAD = 64 * MB
FLOOR = 0.9  # of the best forward
RESULTS = Path(__file__).parent / "results" / "ssh.json"
STAND = Path(__file__).parent.parent / ".stand" / "hosts.json"
SINK = "/run/skyward/bench"  # in the node's container, whose directory it shares with the host
# takes so many bytes into the same memory and says so, over and over, on a unix socket and on a port of loopback
SERVER = f"""
import os, socket, sys, threading
def serve(server):
    while True:
        connection, _ = server.accept()
        threading.Thread(target=take, args=(connection,)).start()
def take(connection):
    target = memoryview(bytearray({PAYLOAD}))
    while True:
        done = 0
        while done < {PAYLOAD}:
            got = connection.recv_into(target[done:])
            if not got:
                return
            done += got
        connection.sendall(b"k")
if os.path.exists("{SINK}"):
    os.unlink("{SINK}")
near, far = socket.socket(socket.AF_UNIX), socket.create_server(("127.0.0.1", 0))
near.bind("{SINK}")
near.listen()
for server in (near, far):
    threading.Thread(target=serve, args=(server,), daemon=True).start()
print(far.getsockname()[1], flush=True)
sys.stdin.read()
os.unlink("{SINK}")
os._exit(0)
"""


@sky.compute
def size(array: Any) -> int:
    return int(array.nbytes)


@sky.compute
def give(n: int, kept: dict[int, Any] = {}) -> Any:  # noqa: B006 - the worker keeps it between calls
    import numpy

    if n not in kept:
        kept[n] = numpy.ones(n, dtype=numpy.uint8)
    return kept[n]


def carry(end: socket.socket, block: memoryview) -> None:
    end.sendall(block)
    assert end.recv(1) == b"k"


@contextmanager
def forward(
    host: SshHost, sink: str, *, cipher: str | None = None, session: bool = True
) -> Iterator[Callable[[memoryview], None]]:
    """OpenSSH's own forward of the sink's socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        local = Path(folder) / "sink"
        options = ["-o", f"Ciphers={cipher}"] if cipher else []
        options += ["-S", "none", "-o", "ExitOnForwardFailure=yes", "-L", f"{local}:{sink}"]
        command = host.command("cat", options=options if session else [*options, "-N"])
        ssh = subprocess.Popen(command if session else command[:-1], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        try:
            while not local.exists():
                assert ssh.poll() is None, "ssh ended"
                time.sleep(0.01)
            with socket.socket(socket.AF_UNIX) as end:
                end.connect(str(local))
                yield lambda block: carry(end, block)
        finally:
            ssh.terminate()
            ssh.communicate()


@contextmanager
def stdio(host: SshHost) -> Iterator[Callable[[memoryview], None]]:
    """The standard input of a command over there, which is no forward: nodes would need a relay."""
    script = f"while [ $(head -c {PAYLOAD} | wc -c) = {PAYLOAD} ]; do echo; done"
    command = host.command("sh", "-c", script, options=["-S", "none", "-o", "Ciphers=^aes128-gcm@openssh.com"])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as ssh:
        assert ssh.stdin
        assert ssh.stdout
        into, out = ssh.stdin, ssh.stdout

        def send(block: memoryview) -> None:
            into.write(block)
            into.flush()
            out.readline()

        yield send
        into.close()


@contextmanager
def library(host: SshHost, port: int) -> Iterator[Callable[[memoryview], None]]:
    """A channel of paramiko, which is what its forwards are made of."""
    import paramiko

    client = paramiko.SSHClient()
    client.load_host_keys(host.known_hosts or str(Path("~/.ssh/known_hosts").expanduser()))
    client.connect(host.host, host.port or 22, host.user, key_filename=host.key)
    transport = client.get_transport()
    assert transport is not None
    transport.default_window_size = 2**27
    channel = transport.open_channel("direct-tcpip", ("127.0.0.1", port), ("127.0.0.1", 0))

    def send(block: memoryview) -> None:
        channel.sendall(block)  # type: ignore[arg-type]
        assert channel.recv(1) == b"k"

    yield send
    client.close()


@contextmanager
def apart() -> Iterator[None]:
    """Half of the cores for this process and its children, and half for the processes of the stand's hosts."""
    cores = sorted(os.sched_getaffinity(0))
    near, far = set(cores[: len(cores) // 2]), set(cores[len(cores) // 2 :])
    here, me, moved = Path("/proc/self/ns/net").readlink(), os.getpid(), list[int]()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            is_far = (process / "ns/net").readlink() != here
            if is_far or me in (int(process.name), parent):
                threads = [int(path.name) for path in (process / "task").iterdir()]
                for thread in threads:
                    os.sched_setaffinity(thread, far if is_far else near)
                moved += threads
    try:
        yield
    finally:
        for thread in moved:
            with suppress(OSError):
                os.sched_setaffinity(thread, cores)


def seconds_of(ways: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds that each way took, in order of size; taken in turn, so that other work here hits all of them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(repeats + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            if number:  # the first warms up
                seconds[name].append(time.perf_counter() - began)
    return {name: sorted(times) for name, times in seconds.items()}


def gb_per_s(seconds: float) -> float:
    return round(PAYLOAD / seconds / 1e9, 3)


def figures_of(found: dict[str, list[float]], forwards: Iterable[str]) -> dict[str, Any]:
    """The fastest quarter, which tells what a way can do; medians next to it tell what else the machine did."""
    fast_s = {name: statistics.median(times[: 1 + len(times) // 4]) for name, times in found.items()}
    best_s = min(fast_s[name] for name in forwards)
    return {
        "gb_per_s": {name: gb_per_s(seconds) for name, seconds in fast_s.items()},
        "median_gb_per_s": {name: gb_per_s(statistics.median(times)) for name, times in found.items()},
        "argument_of_best_forward": round(best_s / fast_s["argument of a call"], 2),
        "result_of_best_forward": round(best_s / fast_s["result of a call"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=Path, default=STAND, help="JSON file with hosts, key and known_hosts")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    logging.getLogger("skyward").setLevel(logging.ERROR)
    facts = json.loads(options.hosts.read_text())
    provider = sky.SSH(facts.pop("hosts")[0], **facts)
    (host,) = provider.hosts
    array = np.ones(PAYLOAD, dtype=np.uint8)
    block = array.data  # the same memory for all: zeros fresh from the kernel would be read from the cache
    fast = OPTIONS["Ciphers"]
    with ExitStack() as open_, sky.ComputePool(provider, image=sky.Image(pip=["numpy"]), display="quiet") as pool:
        words = ("docker", "exec", "-i", f"skyward-{pool.id}-0", "/opt/venv/bin/python", "-c", SERVER)
        server = subprocess.Popen(
            host.command(*words, options=["-S", "none"]), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        open_.callback(server.communicate)  # its input ends, and so does it
        assert server.stdout
        port = int(server.stdout.readline())
        sink = f"/tmp/.skyward-{pool.id}/0/{Path(SINK).name}"
        forwards = {
            "openssh, aes128-gcm, session": forward(host, sink, cipher=fast),
            "openssh, default cipher, session": forward(host, sink),
            "openssh, aes128-gcm, -N": forward(host, sink, cipher=fast, session=False),
        }
        if importlib.util.find_spec("paramiko"):
            forwards["paramiko"] = library(host, port)
        senders = {name: open_.enter_context(way) for name, way in forwards.items()}
        piped = open_.enter_context(stdio(host))
        ways: dict[str, Callable[[], object]] = {name: partial(send, block) for name, send in senders.items()}
        ways |= {
            "ssh host cat": partial(piped, block),
            "argument of a call": lambda: size(array) >> pool,
            "result of a call": lambda: give(PAYLOAD) >> pool,
        }
        shared = seconds_of(ways, options.repeats)
        with apart() if options.hosts == STAND else nullcontext():
            found = seconds_of(ways, options.repeats)
    figures = {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "megabytes": PAYLOAD // MB,
        **figures_of(found, forwards),
        **({"on_shared_cores": figures_of(shared, forwards)} if options.hosts == STAND else {}),
        "floor": FLOOR,
    }
    text = json.dumps(figures, indent=2)
    print(text)
    RESULTS.write_text(text + "\n")
    judged = {"": figures, " on cores that both sides share": figures.get("on_shared_cores", figures)}
    missed = [where for where, of in judged.items() if of["argument_of_best_forward"] < FLOOR]
    if missed:
        sys.exit("\n".join(f"An argument has less than {FLOOR:g} of the best forward{where}." for where in missed))


if __name__ == "__main__":
    main()
