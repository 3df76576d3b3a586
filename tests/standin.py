"""A runner of a few lines that providers can start in tests: it announces itself and does what it is asked.

It stands in for `skyward.runner` by being found first on PYTHONPATH, so providers start it exactly as the real one.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from skyward.nodes.node import Launch

PROGRAM = """
import json, os, resource, signal, socket, subprocess, sys, time

run_dir = os.environ["SKYWARD_RUN_DIR"]
with open(os.path.join(run_dir, "key"), "rb") as file:
    key = file.read()
os.unlink(os.path.join(run_dir, "key"))
start = json.loads(os.environ["SKYWARD_RUNNER"])
print("the stand-in starts", flush=True)
if start == "fail":
    sys.exit("it cannot start")
if start == "silent":
    time.sleep(600)
if start == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
server = socket.socket(socket.AF_UNIX)
server.bind(os.path.join(run_dir, "agent.sock"))
os.chmod(os.path.join(run_dir, "agent.sock"), 0o666)
server.listen()
sys.stderr.write("half a line ")
sys.stderr.flush()
print('skyward-ready {"agent": "unix:agent.sock", "workers": ["unix:w0.sock"]}', flush=True)
while True:
    connection, _ = server.accept()
    request = json.loads(connection.makefile().readline())
    if request == "facts":
        facts = {
            "key": key.hex(), "env": dict(os.environ), "cwd": os.getcwd(), "path": sys.path, "pid": os.getpid(),
            "limits": {name: resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))
                       for name in ("nofile", "stack", "memlock")},
            "shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
            "executable": sys.executable, "host": socket.gethostname(),
        }
        connection.sendall(json.dumps(facts).encode())
    elif request == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        connection.sendall(json.dumps(child.pid).encode())
    elif request == "memory":
        hoard = []
        while True:
            hoard.append(bytearray(b"x" * 2**24))
    elif request == "chatter":
        for number in range(100_000):
            print("line", number)
        connection.sendall(json.dumps(number).encode())
    elif isinstance(request, int) and request < 0:
        os.kill(os.getpid(), -request)
    else:
        sys.exit(request)
    connection.close()
"""


def install(folder: Path) -> Path:
    """Write the stand-in where `python -m skyward.runner` finds it with `folder` on PYTHONPATH."""
    runner = folder / "skyward" / "runner"
    runner.mkdir(parents=True)
    for package in (runner.parent, runner):
        (package / "__init__.py").touch()
    (runner / "__main__.py").write_text(PROGRAM)
    return folder


def launch(pool: str, node: int = 0, start: str = "serve", **more: Any) -> Launch:
    """A launch of the stand-in; `start` is "serve", "fail", "silent" or "deaf" (to SIGTERM)."""
    given: dict[str, Any] = {"image": None, "env": {}, "key": b"the pool's key"} | more
    return Launch(
        pool=pool, node=node, name=f"skyward-{pool}-{node}", compute_pool="{}", runner=json.dumps(start), **given
    )


def ask(connection: socket.socket, request: object) -> Any:
    """Send one request; its answer, None if the stand-in ended over it."""
    with connection:
        connection.sendall(json.dumps(request).encode() + b"\n")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return json.loads(answer) if answer else None
