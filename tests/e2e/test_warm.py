"""Pools that are kept under a name: the next client takes the nodes over, alone, and sees nothing of the one before."""

from __future__ import annotations

import getpass
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from skyward.errors import PoolError
from skyward.nodes.run_directory import pool_directories
from skyward.records.kept_pool import KeptPool, pool_folder
from skyward.records.pools import runs_of_pool
from tests.e2e.sshd import Site, site
from tests.waiting import wait_until

__all__ = ["site"]

PATIENCE_S = 120.0
PROGRAM = """
import json, os, sys, time
import skyward as sky

IMAGE = sky.Image({image})

@sky.compute
def look(mark):
    import os, sys, tempfile
    from pathlib import Path
    places = [Path("left"), *([Path("/dev/shm/left"), Path(tempfile.gettempdir(), "left")] if {is_alone} else [])]
    def process(pid):
        return f"{{pid}} {{Path(f'/proc/{{pid}}/stat').read_text().rpartition(')')[2].split()[19]}}"
    found = {{
        "agent": process(os.getppid()), "worker": process(os.getpid()), "module": getattr(sys, "left", None),
        "cwd": os.getcwd(),
        "env": os.environ.get("LEFT"), "given": os.environ.get("GIVEN"), "secret": os.environ.get("TOKEN"),
        "files": [str(place) for place in places if place.exists()], "total": sky.instance_info().total_nodes,
    }}
    sys.left = os.environ["LEFT"] = mark
    for place in places:
        place.write_text(mark)
    os.chdir("/")
    return found

try:
    with sky.ComputePool({provider}, image=IMAGE, name={name!r}, **{{"keep": 60, **{pool!r}}}) as pool:
        print(json.dumps({{"pool": pool.id, "found": look({mark!r}) @ pool, **pool.stages}}), flush=True)
        {body}
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
Run = Callable[..., "Client"]


class Client:
    """A program in a process of its own that opens the pool; its streams are files, which never block it."""

    def __init__(self, folder: Path, number: int, text: str, env: dict[str, str]) -> None:
        program = folder / f"program{number}.py"
        program.write_text(text)
        self._out, self._err = folder / f"{number}.out", folder / f"{number}.err"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-u", str(program)], stdout=out, stderr=err, env={**os.environ, **env}, cwd=folder
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def says(self, words: str) -> None:
        wait_until(lambda: words in self.out + self.err or self.process.poll() is not None, PATIENCE_S)
        assert words in self.out + self.err, self.out + self.err

    def opened(self) -> dict[str, Any]:
        """What it has found, once it has the pool."""
        self.says('"found"')
        document: dict[str, Any] = json.loads(next(line for line in self.out.splitlines() if line.startswith("{")))
        return document

    def ends(self, status: int = 0) -> dict[str, Any]:
        assert self.process.wait(PATIENCE_S) == status, self.out + self.err
        return self.opened()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def main(words: list[str]) -> int:
    """The command, imported here alone: nodes import this module, and do not have it."""
    from skyward.cli.main import main

    return main(words)


@pytest.fixture(params=["Local", "Docker"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def run(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Start programs that open the pool "warm"; whatever is left of it when the test ends is removed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    clients: list[Client] = []

    def start(mark: str = "", body: str = "pass", env: dict[str, str] | None = None, **pool: Any) -> Client:
        pool |= {"env": pool.pop("variables")} if "variables" in pool else {}
        text = PROGRAM.format(
            image="",
            provider=pool.pop("provider", f"sky.{kind}()"),
            name="warm",
            mark=mark,
            pool=pool,
            is_alone=kind != "Local",
            body="BODY",
        )
        text = text.replace("BODY", textwrap.indent(textwrap.dedent(body), " " * 8).lstrip())
        clients.append(Client(tmp_path, len(clients), text, env or {}))
        return clients[-1]

    yield start
    for client in clients:
        client.kill()
    if record := KeptPool.read(pool_folder("warm")):
        provider_of(kind).destroy(record.pool)


def provider_of(kind: str) -> Any:
    return getattr(sky, kind)()


def agents(client: dict[str, Any]) -> list[Any]:
    return [(each["agent"], each["cwd"]) for each in client["found"]]


def is_untouched(found: Sequence[dict[str, Any]]) -> bool:
    """Whether nothing of an earlier client is to be seen."""
    return all(not (each["module"] or each["env"] or each["secret"] or each["files"]) for each in found)


def is_gone(kind: str, pool: str) -> bool:
    """Whether no node of a pool is left."""
    return all(each["pool"] != pool for each in provider_of(kind).find())


def left_directories(pool: str) -> list[Path]:
    return [each.path for each in pool_directories() if each.pool == pool]


def test_the_next_client_gets_the_nodes_with_fresh_workers(run: Run) -> None:
    """The same agents, other processes, and nothing of the client before: modules, variables, secrets, files."""
    first = run("one", nodes=2, secrets={"TOKEN": "s3cret"}).ends()
    second = run("two", nodes=2).ends()
    assert second["pool"] == first["pool"]
    assert agents(second) == agents(first)
    assert {each["worker"] for each in first["found"]}.isdisjoint(each["worker"] for each in second["found"])
    assert [each["secret"] for each in first["found"]] == ["s3cret"] * 2
    assert is_untouched(second["found"])
    pool, runs = runs_of_pool("warm") or ("", ())
    assert (pool, len(runs)) == (first["pool"], 2)  # `skyward logs warm` shows what both have printed


def test_a_client_gets_its_own_environment(run: Run, kind: str) -> None:
    """Variables of a program whose nodes are processes; where they are containers, another env= replaces them."""

    def given(value: str) -> Client:
        return run(value, env={"GIVEN": value}) if kind == "Local" else run(value, variables={"GIVEN": value})

    first, second = given("1").ends(), given("2")
    after = second.ends()
    assert [each["given"] for each in after["found"]] == ["2"]
    assert (agents(after) == agents(first)) == (kind == "Local")
    assert ("they have another environment" in second.err) == (kind != "Local")
    assert is_untouched(after["found"])


@pytest.mark.parametrize("kind", ["Local"], indirect=True)
def test_another_number_of_nodes(run: Run) -> None:
    """Nodes are added to those that are there; those that are too many end."""
    one, three, two = (run(str(count), nodes=count).ends() for count in (1, 3, 2))
    assert agents(three)[:1] == agents(one)
    assert agents(two) == agents(three)[:2]
    assert [each["total"] for each in two["found"]] == [2, 2]


@pytest.mark.parametrize("kind", ["Local"], indirect=True)
def test_two_at_once_never_share(run: Run) -> None:
    """The second waits and says for whom; its workers are others, started after the first has left.

    With share=False it does not wait; one that is interrupted while it waits ends at once.
    """
    first = run("one", body="open('inside', 'w').close()\nwhile os.path.exists('inside'): time.sleep(0.05)", nodes=2)
    first.opened()
    second = run("two", nodes=2)
    second.says("waiting for it")
    assert f"process {first.process.pid}" in second.err
    assert not second.out
    with pytest.raises(PoolError, match=rf"in use by program0.py \(process {first.process.pid}, since .*share=False"):
        sky.ComputePool(sky.Local(), name="warm", keep=5, share=False).__enter__()
    third = run("three")
    third.says("waiting for it")
    third.process.send_signal(signal.SIGINT)
    assert third.process.wait(PATIENCE_S) == 0
    assert "interrupted" in third.out
    Path(first._out.parent, "inside").unlink()
    before, after = first.ends(), second.ends()
    assert agents(before) == agents(after)
    assert is_untouched(after["found"])


def test_a_client_is_killed(run: Run, kind: str) -> None:
    """The next one ends the nodes, says so, and starts others."""
    first = run("one", body="time.sleep(600)")
    before = first.opened()
    first.kill()
    second = run("two")
    after = second.ends()
    assert "the program that had it was killed" in second.err
    assert after["pool"] != before["pool"]
    assert is_gone(kind, before["pool"])
    assert is_untouched(after["found"])


def test_a_node_that_has_died_is_started_anew(run: Run, kind: str, engine: Any) -> None:
    """One line says so; the others are taken over."""
    first = run("one", nodes=2).ends()
    if kind == "Local":
        os.kill(int(first["found"][1]["agent"].split()[0]), signal.SIGKILL)
    else:
        engine.containers.get(f"skyward-{first['pool']}-1").kill()
    second = run("two", nodes=2)
    after = second.ends()
    assert agents(after)[0] == agents(first)[0]
    assert agents(after)[1] != agents(first)[1]
    assert "node 1 of pool warm is restarted" in second.err


def test_the_time_that_it_is_kept_is_over(run: Run, kind: str) -> None:
    """The nodes end by themselves; the next pool of any kind removes their files."""
    first = run("one", keep=1).ends()
    wait_until(lambda: is_gone(kind, first["pool"]), PATIENCE_S)
    with sky.ComputePool(sky.Local()):
        assert not left_directories(first["pool"])
        assert not (pool_folder("warm") / "pool.json").exists()


def test_without_keep_the_pool_ends(run: Run, kind: str) -> None:
    """What was kept is taken over, and ended with the block: nodes, files, record."""
    first = run("one").ends()
    last = run("two", keep=None).ends()
    assert agents(last) == agents(first)
    assert is_gone(kind, first["pool"])
    assert not left_directories(first["pool"])
    assert not (pool_folder("warm") / "pool.json").exists()


def test_skyward_down(run: Run, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`skyward ps` shows the name and until when it is kept; `skyward down` ends it by its name."""
    first = run("one").ends()
    assert main(["ps"]) == 0
    shown = capsys.readouterr().out
    assert "warm" in shown
    assert "kept until" in shown
    assert main(["down", "warm"]) == 0
    assert is_gone(kind, first["pool"])
    assert not left_directories(first["pool"])
    assert not (pool_folder("warm") / "pool.json").exists()


@pytest.mark.parametrize("kind", ["Docker"], indirect=True)
@pytest.mark.parametrize("site", ["OpenSSH"], indirect=True)
def test_over_ssh(run: Run, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of a host are taken over after a client has left, and ended after one was killed; nothing stays there."""
    server = site.serve(f"SetEnv=DOCKER_HOST={os.environ['DOCKER_HOST']}")
    host, known = f"{getpass.getuser()}@127.0.0.1:{server.port}", site.known(server)
    monkeypatch.setenv("SSH_AUTH_SOCK", "")
    provider = f"sky.SSH({host!r}, key={site.key!r}, known_hosts={known!r})"
    first = run("one", nodes=2, provider=provider, secrets={"TOKEN": "s3cret"}).ends()
    second = run("two", nodes=1, provider=provider, body="time.sleep(600)", ttl=6)
    assert second.opened()["found"][0]["agent"] == first["found"][0]["agent"]
    assert is_untouched(second.opened()["found"])
    second.kill()
    third = run("three", nodes=1, provider=provider).ends()
    assert third["pool"] != first["pool"]
    assert is_untouched(third["found"])
    pools = Path.home() / ".cache" / "skyward" / "pools"
    assert main(["down", "warm", "--at", f"ssh://{host}?key={site.key}&known_hosts={known}"]) == 0
    assert not (pool_folder("warm") / "pool.json").exists()
    last = run("four", nodes=1, keep=1, provider=provider).ends()
    assert last["pool"] != first["pool"]
    ended = [each["pool"] for each in (first, third, last)]
    wait_until(lambda: not [path for pool in ended for path in pools.glob(f"{pool}.*")], PATIENCE_S)
    assert is_gone("Docker", first["pool"])
    assert is_gone("Docker", last["pool"])


DYING = """
import os
import skyward as sky
from skyward._pool.named import NamedPool
from skyward._pool import named
from skyward._pool.nodes.node_client import NodeClient
from skyward.providers.{module} import {kind}Allocation as Allocation
from skyward.records.kept_pool import KeptPool, PoolLock
from tests.e2e.dying import die_at
from tests.e2e.stand_functions import where

CALLS = [
    (PoolLock, "acquire"), (KeptPool, "write"), (Allocation, "adopt"), (named, "take"), (NamedPool, "note"),
    (NodeClient, "keep"), (NamedPool, "keep"), (PoolLock, "release"),
]
number, when = os.environ["CLIENT_DIES"].split()
die_at(*CALLS[int(number)], when)
with sky.ComputePool(sky.{kind}(), name="warm", keep=60, display="quiet") as pool:
    where() >> pool
"""


@pytest.mark.parametrize(("kind", "when"), [("Local", "before"), ("Docker", "after")], indirect=["kind"])
def test_a_client_killed_at_any_call_of_taking_over_and_leaving(run: Run, kind: str, tmp_path: Path, when: str) -> None:
    """The next one gets nodes that nobody has used since they were started; in the end nothing is left."""
    pools = set[str]()
    for number in range(8):
        kept = run("kept").ends()
        pools.add(kept["pool"])
        assert is_untouched(kept["found"])
        words = [sys.executable, "-c", DYING.format(kind=kind, module=kind.lower())]
        client = subprocess.run(words, env={**os.environ, "CLIENT_DIES": f"{number} {when}"}, check=False, timeout=100)
        assert client.returncode == -signal.SIGKILL, f"call {number} was never made"
    last = run("last").ends()
    assert is_untouched(last["found"])
    assert main(["down", "warm"]) == 0
    assert all(is_gone(kind, pool) for pool in (*pools, last["pool"]))
    assert not [path for pool in pools for path in left_directories(pool)]
    assert not list((tmp_path / "state" / "skyward" / "pools").glob("*/pool.json"))
