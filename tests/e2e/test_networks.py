"""A process group over a real network: two network namespaces with two links each, of which only one leads anywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyward.model.instance import ENV_VAR, InstanceInfo, Peer
from tests.conftest import ROOT

pytest.importorskip("torch", reason="torch is not installed here; `pip install -e .[dev]` brings it")
if shutil.which("ip") is None or os.geteuid() != 0:
    pytest.skip("network namespaces need root and the command `ip`", allow_module_level=True)

HEAD, OTHER = "10.88.0.1", "10.88.0.2"
RANK = """
import os, pickle, sys, time
from pathlib import Path

from skyward.errors import PluginError
from skyward.model.instance import InstanceInfo
from skyward.plugins._torch import process_group
from skyward.runtime.ranks import install_gather

info, place = InstanceInfo.current(), Path(sys.argv[1])

def exchange(value, name, timeout_s):
    \"\"\"What the pool does over its own connections, by files: ranks need no network for it.\"\"\"
    own = place / f"{name} {info.node}"
    own.with_suffix(".part").write_bytes(pickle.dumps(value))
    own.with_suffix(".part").rename(own)
    files = [place / f"{name} {rank}" for rank in range(info.total_nodes)]
    while not all(file.exists() for file in files):
        time.sleep(0.01)
    return [pickle.loads(file.read_bytes()) for file in files]

install_gather(exchange)
try:
    with process_group(info):
        import torch
        import torch.distributed as dist

        total = torch.tensor(float(dist.get_rank() + 1))
        dist.all_reduce(total)
        print(total.item(), os.environ["GLOO_SOCKET_IFNAME"])
        dist.barrier()
except PluginError as error:
    print(error)
"""


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """Two of them. `wire0` connects them; `aside0` comes first and leads to addresses that the other side lacks."""
    names = [f"skyward-test-{uuid.uuid4().hex[:6]}-{number}" for number in range(2)]
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for link, addresses in (("aside0", ("10.77.1.1", "10.77.2.1")), ("wire0", (HEAD, OTHER))):
            ip("link", "add", link, "netns", names[0], "type", "veth", "peer", "name", link, "netns", names[1])
            for name, address in zip(names, addresses, strict=True):
                ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
                ip("-n", name, "link", "set", link, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def ranks(namespaces: list[str], exchanged: Path) -> list[str]:
    """What rank 0 and rank 1 print, each in its namespace."""
    peers = tuple(Peer(node=node, private_ip=address) for node, address in enumerate((HEAD, OTHER)))
    running = []
    for node, name in enumerate(namespaces):
        place = InstanceInfo(node=node, total_nodes=2, head_addr=HEAD, head_port=29555, peers=peers)
        env = {**os.environ, ENV_VAR: place.to_json()}
        env.pop("GLOO_SOCKET_IFNAME", None)
        program = ["ip", "netns", "exec", name, sys.executable, "-c", textwrap.dedent(RANK), str(exchanged)]
        running.append(subprocess.Popen(program, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True))
    try:
        return [process.communicate(timeout=90)[0].strip() for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_the_group_takes_the_link_that_leads_to_the_head(namespaces: list[str], tmp_path: Path) -> None:
    """On both sides the interface is named after the route to the head, not after the host's name or the first link."""
    assert ranks(namespaces, tmp_path) == ["3.0 wire0", "3.0 wire0"]


def test_a_rank_that_cannot_reach_the_head_is_named_before_any_collective(
    namespaces: list[str], tmp_path: Path
) -> None:
    """Both ranks say the same, within seconds, though only one of them has the trouble."""
    ip("-n", namespaces[1], "link", "set", "wire0", "down")

    first, second = ranks(namespaces, tmp_path)

    assert first == second
    assert first.startswith("torch: rank 1 on node 1 (")
    assert "unreachable) cannot reach rank 0 on node 0 at 10.88.0.1, TCP port 29555." in first
