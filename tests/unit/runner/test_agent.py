"""The agent with real workers: it announces, always answers, notices every end, and leaves nothing behind."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from skyward.errors import AuthenticationError
from skyward.wire import handshake
from skyward.wire.frames import dial
from skyward.wire.messages import Kind
from tests.unit.runner.node import Pid, RunningNode, Start

SOON_S = 15.0  # the agent's own bound is 0.2 s, a silenced agent would take 20 s
HOLD_THE_GIL = "import ctypes; ctypes.PyDLL(None).sleep(20)"


def _files(node: RunningNode) -> list[str]:
    """Those of its run directory, but for the logs, which go with the directory."""
    return sorted(path.name for path in node.run_dir.iterdir() if ".log" not in path.suffixes)


def _worker_breaks(folder: Path, how: str, when: str = "True") -> dict[str, str]:
    """Environment in which worker processes run `how` before anything else."""
    condition = f"'skyward.runner.worker' in sys.orig_argv and ({when})"
    (folder / "sitecustomize.py").write_text(f"import os, sys\nif {condition}:\n    {how}\n")
    return {"PYTHONPATH": str(folder)}


def test_it_answers_while_a_worker_holds_the_gil(node: RunningNode) -> None:
    """A C call in user code cannot silence the node."""
    client = node.client()
    node.do(HOLD_THE_GIL)
    assert max(client.ping_s() for _ in range(20)) < SOON_S


def test_a_wrong_key_disturbs_nobody(node: RunningNode) -> None:
    """The stranger is refused, an open connection goes on, and one line tells of all of it."""
    client = node.client()
    for _ in range(3):
        with pytest.raises(AuthenticationError):
            node.client(key=b"x" * 32)
    sock = dial(node.run_dir, "unix:agent.sock")
    with pytest.raises(AuthenticationError):  # the client's half: an agent that is not where it should be
        handshake.connect(sock, node.key, handshake.agent_endpoint(0))
    client.ping_s()
    client.tell(Kind.SHUTDOWN, grace_s=0)
    status, errors = node.end()
    assert status == 0
    assert errors.count("refused") == 1


def test_silent_connections_keep_nobody_out_of_a_worker(node: RunningNode) -> None:
    """A peer that says nothing does not even delay the client: each is heard in a thread of its own."""
    client = node.client()
    with ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(dial(node.run_dir, "unix:w0.0.sock"))
        began = time.monotonic()
        node.do("import os; os.write(1, b'let in\\n')")
        client.output(until="let in")
        assert time.monotonic() - began < SOON_S


def test_an_order_for_a_worker_that_was_replaced_is_void(node: RunningNode) -> None:
    """Work of the fresh worker is not lost to a late order."""
    client = node.client()
    client.tell(Kind.KILL, worker=0, generation=0)
    client.document(Kind.WORKER_UP)
    fresh = Pid(node.pid(client, generation=1))
    client.tell(Kind.KILL, worker=0, generation=0)
    client.ping_s()
    assert not fresh.ends(within_s=0.1)


def test_without_a_client_the_lease_ends_everything(start: Start) -> None:
    """Status 3, one line, no process, no socket."""
    node = start(lease_s=5.0)
    node.ready()
    client = node.client()
    worker = Pid(node.pid(client))
    node.do(HOLD_THE_GIL)
    client.connection.close()
    status, errors = node.end()
    assert (status, errors) == (3, "skyward: Node 1 ends: no client for 5 s (its lease).\n")
    assert worker.ends()
    assert _files(node) == []


def test_a_client_keeps_the_node_only_by_speaking(start: Start) -> None:
    """Pings hold the lease; a connection that has gone silent does not."""
    node = start(lease_s=9.0)
    node.ready()
    client = node.client()
    for _ in range(5):
        time.sleep(2)
        client.ping_s()
    assert node.process.poll() is None
    assert client.is_closed()
    assert node.end()[0] == 3


def test_sigterm_ends_the_node_in_order(node: RunningNode) -> None:
    """As `docker stop` does it: an idle worker leaves at once, the status is 0, clients see the end."""
    client = node.client()
    worker = Pid(node.pid(client))
    began = time.monotonic()
    node.process.send_signal(signal.SIGTERM)
    assert client.document(Kind.WORKER_EXIT)["code"] == 0
    assert client.is_closed()
    assert node.end() == (0, "")
    assert time.monotonic() - began < 15
    assert worker.ends()
    assert _files(node) == []


def test_a_shutdown_waits_for_its_grace_and_no_longer(node: RunningNode) -> None:
    """A worker that does not leave is killed with all it started, and not started again."""
    client = node.client()
    node.do("import ctypes; ctypes.PyDLL(None).system(b'echo now it holds; sleep 20')")
    client.output(until="now it holds")
    began = time.monotonic()
    client.tell(Kind.SHUTDOWN, grace_s=0.5)
    assert client.document(Kind.WORKER_EXIT)["signal"] == signal.SIGKILL
    assert node.end() == (0, "")
    assert 0.4 < time.monotonic() - began < 15
    assert _files(node) == []


@pytest.mark.parametrize(
    ("env", "words"),
    [
        pytest.param({"COMPUTE_POOL": ""}, "COMPUTE_POOL is not set", id="place"),
        pytest.param({"SKYWARD_RUNNER": "{"}, "SKYWARD_RUNNER is not", id="settings"),
        pytest.param({"SKYWARD_RUN_DIR": ""}, "SKYWARD_RUN_DIR is not set", id="directory"),
        pytest.param({"SKYWARD_RUN_DIR": "/nowhere"}, "key is not at /nowhere/key", id="key"),
    ],
)
def test_a_wrong_configuration_is_one_sentence(start: Start, env: dict[str, str], words: str) -> None:
    """Exit status 2, before anything is started."""
    status, errors = start(env).end()
    assert status == 2
    assert words in errors
    assert errors.count("\n") == 1


def test_a_worker_that_cannot_start_again_ends_the_node(start: Start, tmp_path: Path) -> None:
    """Three attempts, each reported, then a sentence."""
    node = start(_worker_breaks(tmp_path, "os._exit(7)", when=f"os.path.exists({str(tmp_path / 'broken')!r})"))
    node.ready()
    client = node.client()
    (tmp_path / "broken").touch()
    client.tell(Kind.KILL, worker=0)
    codes = [client.document(Kind.WORKER_EXIT)["code"] for _ in range(4)]
    assert codes == [None, 7, 7, 7]
    status, errors = node.end()
    assert status == 1
    assert "ended 3 times in a row before it listened (exit status 7)" in errors
