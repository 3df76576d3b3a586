import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skyward.errors import NodeStartError, WireError
from skyward.nodes.node import Node
from skyward.providers import Local
from skyward.providers.base import Allocation, PoolRequest
from tests.standin import ask, install, launch
from tests.waiting import wait_until

Start = Callable[..., Node]


@pytest.fixture
def pool() -> str:
    return uuid.uuid4().hex[:8]


@pytest.fixture
def allocation(pool: str) -> Iterator[Allocation]:
    opened = Local().open(PoolRequest(pool_id=pool, nodes=2))
    yield opened
    opened.close()


@pytest.fixture
def start(allocation: Allocation, pool: str, tmp_path: Path) -> Start:
    (host, _) = allocation.acquire()
    standin = install(tmp_path / "standin")

    def _start(node: int = 0, how: str = "serve", **env: str) -> Node:
        return host.start(launch(pool, node, how, env={"PYTHONPATH": str(standin), **env}))

    return _start


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_node_is_a_process_of_this_interpreter(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the client's interpreter, environment and modules, a private working directory, and the pool's words."""
    monkeypatch.setenv("FROM_CLIENT", "1")
    monkeypatch.syspath_prepend("/somewhere/of/mine")
    node = start(0, MINE="2")
    announced = node.wait_ready(60)
    assert (announced.agent, announced.workers) == ("unix:agent.sock", ("unix:w0.sock",))
    facts = ask(node.connect(announced.agent), "facts")
    assert facts["executable"] == sys.executable
    assert facts["env"]["FROM_CLIENT"] == "1"
    assert facts["env"]["MINE"] == "2"
    assert "/somewhere/of/mine" in facts["path"]
    assert str(Path.cwd()) in facts["path"]
    assert facts["cwd"] != str(Path.cwd())
    assert not list(Path(facts["cwd"]).iterdir())


def test_the_key_reaches_the_node_by_file_alone(start: Start) -> None:
    """The node has the key; its environment does not, and the file is gone once it has been read."""
    node = start()
    facts = ask(node.connect(node.wait_ready(60).agent), "facts")
    assert bytes.fromhex(facts["key"]) == b"the pool's key"
    assert not any("the pool's key" in value for value in facts["env"].values())
    assert not (Path(facts["env"]["SKYWARD_RUN_DIR"]) / "key").exists()


def test_a_node_that_cannot_start_says_why(start: Start) -> None:
    """The error names node, pool and exit status, and holds the last lines of both streams."""
    with pytest.raises(NodeStartError, match="ended with exit status 1 before it was ready") as caught:
        start(1, "fail").wait_ready(60)
    message = str(caught.value)
    assert message.startswith("Node 1 of pool ")
    assert message.endswith("the stand-in starts\nit cannot start")


@pytest.mark.parametrize(
    ("request_", "code", "signal_", "words"),
    [(7, 7, None, "ended with exit status 7"), (-9, 137, 9, r"was killed \(SIGKILL\)")],
)
def test_how_a_node_ends_is_told_at_once(
    start: Start, request_: int, code: int, signal_: int | None, words: str
) -> None:
    """Exit status or signal arrive as such, while somebody waits for them."""
    node = start()
    agent = node.wait_ready(60).agent
    assert node.wait_exit(0) is None
    asked = time.monotonic()
    ask(node.connect(agent), request_)
    ended = node.wait_exit(60)
    assert time.monotonic() - asked < 10.0
    assert ended is not None
    assert (ended.code, ended.signal, ended.oom) == (code, signal_, False)
    assert re.fullmatch(words, ended.text)
    assert "half a line" in ended.log


@pytest.mark.parametrize("how", ["serve", "deaf"])
def test_removal_ends_everything_the_node_started(start: Start, how: str) -> None:
    """Its children end with it, even if it will not listen; its directory goes; a second removal does nothing."""
    node = start(0, how)
    agent = node.wait_ready(60).agent
    directory = Path(ask(node.connect(agent), "facts")["env"]["SKYWARD_RUN_DIR"])
    child = ask(node.connect(agent), "child")
    assert _runs(child)
    node.remove()
    node.remove()
    wait_until(lambda: not _runs(child), 10)  # it has been killed, and closes its files before it is gone
    assert not directory.exists()
    with pytest.raises(WireError):
        node.connect(agent)
