"""Looking into the nodes of another process: `skyward shell`, `exec`, `cp`, `forward`, on containers and processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import skyward as sky
from skyward.errors import WorkerLostError
from tests.e2e.commands import SKYWARD
from tests.e2e.conftest import provider_of
from tests.e2e.look_functions import end_first_node, place, processes, serve
from tests.e2e.terminal import Terminal
from tests.waiting import wait_until

IMAGE = sky.Image(env={"GREETING": "hello there"})
SHOW = "import json, os, sys; print(json.dumps({'cwd': os.getcwd(), 'python': sys.executable, **os.environ}))"


@pytest.fixture(scope="module", params=["local", "docker"])
def looked(request: pytest.FixtureRequest) -> Iterator[sky.ComputePool]:
    """A pool of two nodes."""
    os.environ.update(IMAGE.env)  # processes have the environment of their client, and no image
    with sky.ComputePool(provider_of(request.param), nodes=2, image=IMAGE, display="quiet") as pool:
        for name in IMAGE.env:
            del os.environ[name]
        yield pool


def on_node(pool: sky.ComputePool, node: int, *words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    """Run a command there, and wait for it."""
    command = [*SKYWARD, "exec", pool.id, str(node), "--", *words]
    return subprocess.run(command, capture_output=True, check=False, timeout=120, **options)  # type: ignore[call-overload, no-any-return]


def test_a_command_gets_its_words_and_streams_as_they_are(looked: sky.ComputePool) -> None:
    """No shell is between, streams are separate and binary, and the exit status is the command's."""
    given = bytes(range(256)) * 3000
    program = (
        "import sys; d = sys.stdin.buffer.read(); sys.stdout.buffer.write(d[::-1]); "
        "print(sys.argv[1:], file=sys.stderr); sys.exit(7)"
    )
    words = ["a b", "", "$HOME 'x'", "--debug", "--", "grün"]

    done = on_node(looked, 1, "python", "-c", program, *words, input=given)

    assert done.returncode == 7
    assert done.stdout == given[::-1]
    assert done.stderr.decode() == f"{words}\n"


def test_a_command_sees_what_calls_see(looked: sky.ComputePool) -> None:
    """Working directory, interpreter, variables of the image and of the node; the virtual environment comes first."""
    seen = (place() @ looked)[1]

    found = json.loads(on_node(looked, 1, "python", "-c", SHOW).stdout)

    path = os.pathsep.join(dict.fromkeys([os.path.dirname(seen["python"]), *seen.pop("PATH").split(os.pathsep)]))  # noqa: PTH120
    assert {name: found.get(name, "") for name in seen} == seen
    assert found["GREETING"] == "hello there"
    assert os.pathsep.join(dict.fromkeys(found["PATH"].split(os.pathsep))) == path


@pytest.mark.parametrize("looked", ["local"], indirect=True)
@pytest.mark.parametrize(
    ("words", "status"), [(["no-such-program"], 127), (["/"], 126), (["sh", "-c", "kill -TERM $$"], 143)]
)
def test_a_command_that_fails_says_so_by_its_status(looked: sky.ComputePool, words: list[str], status: int) -> None:
    """As in a shell: not found, not to be run, ended by a signal."""
    done = on_node(looked, 0, *words, stdin=subprocess.DEVNULL)

    assert done.returncode == status
    assert (b"on the node" in done.stderr) == (status < 128)


def test_signals_reach_the_command(looked: sky.ComputePool) -> None:
    """It may handle them, and its status then counts."""
    command = [
        *SKYWARD,
        "exec",
        looked.id,
        "--",
        "sh",
        "-c",
        "trap 'echo heard; exit 9' INT; echo ready; while :; do sleep 0.1; done",
    ]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as client:
        assert client.stdout
        assert client.stdout.readline() == b"ready\n"
        client.send_signal(signal.SIGINT)
        assert client.stdout.read() == b"heard\n"
        assert client.wait(60) == 9


def test_nothing_is_left_of_a_client_that_is_ended(looked: sky.ComputePool) -> None:
    """Neither the command nor what it has started, in whatever session of its own."""
    script = "env -i setsid sleep 98765 & trap '' HUP; sleep 98765 & echo ready; sleep 98765"
    command = [*SKYWARD, "exec", looked.id, "--", "sh", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout
        assert client.stdout.readline() == b"ready\n"
        client.terminate()
        client.terminate()

    wait_until(lambda: not any(processes("98765") @ looked), 60)
    wait_until(lambda: not any(processes("entry.session") @ looked), 60)


def resized(terminal: Terminal) -> bool:
    """Resize the terminal, and look whether the shell has seen that: `docker exec` may not listen yet at its start."""
    terminal.resize(21, 132)
    terminal.resize(20, 132)
    terminal.type("stty size\r")
    try:
        return bool(terminal.wait_for("20 132", 2))
    except AssertionError:
        return False


def test_a_shell_is_a_terminal(looked: sky.ComputePool) -> None:
    """Its size, Ctrl-C, Ctrl-Z and the exit status are the shell's; afterwards the terminal is as it was."""
    with Terminal([*SKYWARD, "shell", looked.id, "1"], rows=30, columns=50) as terminal:
        before = terminal.settings
        terminal.type("echo $((6 * 7))=$GREETING; stty size\r")
        terminal.wait_for("42=hello there")
        terminal.wait_for("30 50")
        wait_until(lambda: terminal.settings != before, 60)
        terminal.type("sleep 98764\r")
        wait_until(lambda: any("sleep" in each for each in (processes("98764") @ looked)[1]), 60)
        terminal.type("\x03")
        terminal.type("echo interrupted $?; tty\r")
        terminal.wait_for("interrupted 130")
        terminal.wait_for("/dev/pts/")
        wait_until(lambda: resized(terminal), 60)
        terminal.type("sleep 98763\r")
        wait_until(lambda: any("sleep" in each for each in (processes("98763") @ looked)[1]), 60)
        terminal.type("\x1a")
        terminal.wait_for("Stopped")
        terminal.type("exit 3\r")
        terminal.type("exit 3\r")

        assert terminal.wait() == 3
        assert terminal.settings == before
    assert not any(processes("98763") @ looked)


def cp(*words: object) -> subprocess.CompletedProcess[str]:
    """Copy, and wait for it."""
    command = [*SKYWARD, "cp", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_folders_go_into_a_node_and_come_back(looked: sky.ComputePool, tmp_path: Path) -> None:
    """With modes and links, as large as they are."""
    data = tmp_path / "data"
    (data / "sub").mkdir(parents=True)
    (data / "big").write_bytes(os.urandom(1 << 22) * 4)
    (data / "sub" / "run").write_text("#!/bin/sh\necho it runs\n")
    (data / "sub" / "run").chmod(0o750)
    (data / "link").symlink_to("sub/run")

    assert cp(data, f"{looked.id}:1:there").returncode == 0
    assert on_node(looked, 1, "there/link").stdout == b"it runs\n"
    assert cp(f"{looked.id}:1:there/.", f"{looked.id}:1:there/sub/run", tmp_path / "data" / "sub").returncode == 0

    subprocess.run(["diff", "-r", data / "big", data / "sub" / "big"], check=True)
    assert (data / "sub" / "sub" / "run").stat().st_mode & 0o777 == 0o750
    assert (data / "sub" / "link").readlink() == Path("sub/run")


def test_links_that_lead_out_are_not_copied_from_a_node(looked: sky.ComputePool, tmp_path: Path) -> None:
    """They are named, and the rest is copied; so are things that are not there."""
    on_node(
        looked, 0, "sh", "-c", "mkdir -p mixed; ln -sf /etc/passwd mixed/out; ln -sf ../../x mixed/up; echo 1 >mixed/in"
    )

    done = cp(f"{looked.id}:0:mixed", tmp_path)

    assert done.returncode == 1
    assert {line.split()[3] for line in done.stderr.splitlines() if "not copied" in line} == {"mixed/out", "mixed/up"}
    assert [path.name for path in (tmp_path / "mixed").iterdir()] == ["in"]
    missing = cp(f"{looked.id}:0:nowhere", tmp_path)
    assert missing.returncode == 1
    assert "nowhere does not exist." in missing.stderr
    deep = cp(tmp_path, f"{looked.id}:0:/no/such/folder")
    assert deep.returncode == 1
    assert "There is no folder /no/such. Create it first." in deep.stderr
    assert cp(tmp_path / "none", f"{looked.id}:0:x").returncode == 2


@contextmanager
def forward(pool: sky.ComputePool, port: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A forward to a port of node 0: its process, and the port here."""
    command = [*SKYWARD, "forward", f"{pool.id}:0", str(port), "--local", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process, json.loads(process.stdout.readline())["local"]
        finally:
            process.kill()


def exchange(port: int, data: bytes) -> bytes:
    """Send all, say that it is all, and read all."""
    with socket.create_connection(("127.0.0.1", port), 60) as sock:
        sock.settimeout(60)
        sender = threading.Thread(target=sock.sendall, args=(data,))
        sender.start()
        sender.join()
        sock.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: sock.recv(1 << 16), b""))


def test_a_port_of_a_node_is_reached_here(looked: sky.ComputePool) -> None:
    """Many connections at once, each with its own ends; one that nobody reads stops no other. Ctrl-C ends all."""
    port = (serve() @ looked)[0]
    with forward(looked, port) as (process, here):
        with socket.create_connection(("127.0.0.1", here)) as idle:
            idle.sendall(b"x" * (1 << 20))  # the server keeps all that comes
            sent = [os.urandom(100_000 + number) for number in range(30)]
            with ThreadPoolExecutor(30) as threads:
                assert list(threads.map(lambda data: exchange(here, data), sent)) == [data[::-1] for data in sent]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    wait_until(lambda: not any(processes("entry.session") @ looked), 60)


@pytest.mark.parametrize("looked", ["local"], indirect=True)
def test_a_port_where_nothing_listens_is_said(looked: sky.ComputePool) -> None:
    """A connection to it ends at once, and the forward goes on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    with forward(looked, port) as (process, here):
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", here), 60) as sock, suppress(ConnectionResetError):
                assert sock.recv(1) == b""
        assert process.stderr
        assert f"nothing answers at port {port} of the node" in process.stderr.readline()
        assert process.poll() is None


def test_the_end_of_a_node_ends_its_shell(looked: sky.ComputePool) -> None:
    """It is said, and the terminal is as it was."""
    with Terminal([*SKYWARD, "shell", looked.id]) as terminal:
        before = terminal.settings
        terminal.type("echo $((6 * 7)) is it\r")
        terminal.wait_for("42 is it")
        with pytest.raises(WorkerLostError):
            end_first_node() @ looked

        assert terminal.wait() == 9
        terminal.wait_for("skyward: Node ")
        assert terminal.settings == before
