"""The plugin `ray`: what it adds to an image, what it refuses, the command that starts Ray, and its settings."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import skyward as sky
from skyward.errors import PluginError
from skyward.model.image import Image
from skyward.model.image_fields import local_minor
from skyward.model.instance import InstanceInfo, Peer
from skyward.model.spec import Cluster, ClusterSpec
from skyward.plugins import _ray, transform_all
from skyward.plugins._ray import Ports, command

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
HERE = Path("/tmp/rayabc")


def place(node: int, *addresses: str) -> InstanceInfo:
    peers = tuple(Peer(node=number, private_ip=address) for number, address in enumerate(addresses))
    return InstanceInfo(node=node, total_nodes=len(addresses), head_addr=addresses[0], head_port=20_000, peers=peers)


def add(image: Image, *, python: str = "") -> Image:
    return transform_all(image, [sky.plugins.ray()], Cluster(spec=ClusterSpec(nodes=2, python=python or local_minor())))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray 2.60.0, which nothing has imported."""
    monkeypatch.setattr(_ray, "find_spec", lambda _name: True)
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "2.60.0")
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)


@pytest.mark.usefixtures("installed")
def test_another_ray_or_python_is_refused() -> None:
    """The message names both."""
    with pytest.raises(PluginError, match=r"asks for 'ray\[serve\]==2\.9\.0', installed here is 2\.60\.0"):
        add(Image(pip=["ray[serve]==2.9.0"]))
    with pytest.raises(PluginError, match=rf"would have 3\.99, this program runs on {local_minor()}"):
        add(Image(), python="3.99")


def test_the_command_of_the_head() -> None:
    """It listens on the port that the pool has claimed; the dashboard on loopback alone."""
    words = command(place(0, "10.0.0.4", "10.0.0.5"), Ports(client=7, dashboard=8), HERE)

    assert words[:6] == [sys.executable, "-u", "-m", "skyward.plugins._ray", "start", "--block"]
    for word in (
        "--head",
        "--port=20000",
        "--node-ip-address=10.0.0.4",
        "--ray-client-server-port=7",
        "--dashboard-host=127.0.0.1",
        "--dashboard-port=8",
        f"--temp-dir={HERE}",
    ):
        assert word in words


def test_a_ray_that_does_not_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has node, status and Ray's last output; nothing is left."""
    monkeypatch.setenv("SKYWARD_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("SKYWARD_PROCESSES", "1")
    monkeypatch.setattr(_ray, "_LONGEST", 200)
    for name in (*_ray._SETTINGS, "RAY_ADDRESS"):
        monkeypatch.setenv(name, "")
    failing = [sys.executable, "-c", "print('\\x1b[31mno room\\x1b[0m'); raise SystemExit(3)"]
    monkeypatch.setattr(_ray, "command", lambda *_: failing)
    with (
        pytest.raises(PluginError, match=r"on node 0 \(127\.0\.1\.1\): it ended with status 3\..*\nno room"),
        _ray.joined(place(0, "127.0.0.1"), ports=Ports(7, 8)),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["ray.lock"]


@needs_ray
def test_another_process_is_told_that_it_cannot_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has inherited the variable and not the token."""
    from skyward.plugins import _ray_client

    monkeypatch.setattr(_ray_client, "_session", None)
    with pytest.raises(PluginError, match="RAY_ADDRESS is that of a pool's program"):
        _ray_client.ClientBuilder("127.0.0.1:7").connect()
