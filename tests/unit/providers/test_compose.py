"""The compose file and its provider, as far as they go without an engine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import skyward as sky
from skyward.cli.documents import compose_file
from skyward.cli.main import main
from skyward.engine import EngineAddress
from skyward.errors import ConfigError, ProviderError
from skyward.model.spec import Accelerator
from skyward.providers import compose, compose_project
from skyward.providers.base import PoolRequest
from skyward.providers.compose_project import Project, Standby, project_name

ROOT = Path(__file__).parents[3]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "compose.yaml"
    path.write_text(compose_file(3))
    return path


def test_the_file_in_the_repository_is_the_one_the_command_writes(capsys: pytest.CaptureFixture[str]) -> None:
    """Its first line names the command; what that prints is the file."""
    written = (ROOT / "compose.yaml").read_text()
    said = re.search(r"`skyward (compose [^`]*)`", written.splitlines()[0])
    assert said is not None

    assert main(said[1].split()) == 0

    assert capsys.readouterr().out == written
    assert "replicas: 3" in written


def test_functions_have_no_privileges() -> None:
    """The user skyward, or the image's own, whom the pool that brings the file up names by a variable."""
    text = compose_file(1)
    assert '  user: "${SKYWARD_NODE_USER:-10001:10001}"\n  cap_drop: [ALL]\n' in text
    assert '  security_opt: ["no-new-privileges:true"]\n' in text


def test_nothing_in_a_file_is_published_beyond_this_machine() -> None:
    """The one published port is the registry's, on loopback."""
    ports = re.findall(r'^\s*- "(\S+:\d+)"$', compose_file(3), re.MULTILINE)

    assert len(ports) == 1
    assert ports[0].startswith("127.0.0.1:")


def test_a_project_is_called_as_compose_calls_it() -> None:
    """By the variable that compose reads, else by the folder, without what a name may not have."""
    assert project_name(Path("/srv/My.Project_1/compose.yaml"), {}) == "myproject_1"
    assert project_name(Path("/srv/_-a/compose.yaml"), {}) == "a"
    assert project_name(Path("/srv/a/compose.yaml"), {"COMPOSE_PROJECT_NAME": "b"}) == "b"
    with pytest.raises(ProviderError, match=r"project=NAME"):
        project_name(Path("/compose.yaml"), {})


@pytest.mark.parametrize("name", ["", "Upper", "a b", "-x"])
def test_a_wrong_name_of_a_project_is_refused(file: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="not a name of a project"):
        sky.Compose(file, project=name)


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"machine": "m5.large"}, "machine= is for providers of rented machines"),
        ({"max_hourly_cost": 1.0}, "max_hourly_cost= is for"),
        ({"cpu": 2}, "cpu= is decided by .*compose.yaml"),
        ({"memory": "2GB"}, "memory= is decided by .*compose.yaml"),
    ],
)
def test_what_the_file_decides_cannot_be_asked_of_the_pool(file: Path, wish: dict[str, object], words: str) -> None:
    """Refused, and not ignored, when the pool is made."""
    with pytest.raises(ConfigError, match=words):
        sky.ComputePool(sky.Compose(file), **wish)  # type: ignore[arg-type]


def test_an_accelerator_that_no_service_has_is_refused_before_the_engine_is_asked(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")

    with pytest.raises(ProviderError, match=r"have no GPUs .*asks for 2 on each.*compose --nodes 3 --gpus 2"):
        sky.ComputePool(sky.Compose(file), nodes=3, accelerator="A100:2", display="quiet").__enter__()


def test_a_pool_takes_nodes_that_have_its_gpus(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those without are left to others; too few are refused, with the command for more."""
    running = [Standby(f"c{n}", f"node{n}", "10.0.0.2", "x", gpus) for n, gpus in ((0, 0), (1, 2), (2, 2))]
    taken = list[str]()
    file.write_text(compose_file(2, gpus=2))
    monkeypatch.setattr(Project, "is_up", lambda _: True)
    monkeypatch.setattr(Project, "nodes", lambda _: running)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")

    def take(_: EngineAddress, standby: Standby) -> Standby:
        taken.append(standby.name)
        return standby

    monkeypatch.setattr(compose, "take", take)

    def acquire(nodes: int) -> None:
        request = PoolRequest(pool_id="p1", nodes=nodes, accelerator=Accelerator("A100", 2))
        sky.Compose(file, project="p").open(request).acquire()

    acquire(2)
    assert sorted(taken) == ["node1", "node2"]

    with pytest.raises(
        ProviderError, match=r"needs 3 nodes with 2 GPUs each of .* 2 run\. .*--gpus 2 > compose\.yaml`"
    ):
        acquire(3)


def test_gpus_are_reserved_for_one_node_each() -> None:
    """The machine's in their order, and nodes are taken in the order of their names."""
    text = compose_file(11, gpus=2)

    assert re.findall(r'device_ids: \["(\d+)", "(\d+)"\]', text) == [(str(2 * n), str(2 * n + 1)) for n in range(11)]
    names = re.findall(r"^  (node-\d+):$", text, re.MULTILINE)
    assert names == sorted(names)
    assert len(names) == 11
    assert 'skyward.gpus: "2"' in text
    assert "replicas" not in text


def test_what_a_pool_brought_up_goes_with_it_and_nothing_else(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`destroy` brings down what bears the pool's label, and leaves alone what a person has brought up since."""
    downs = list[str]()
    monkeypatch.setattr(Project, "containers", lambda _: [{"Labels": {"skyward.pool": "p1"}}])
    monkeypatch.setattr(Project, "down", lambda self: downs.append(self.name))
    provider = sky.Compose(file, project="trial")

    provider.destroy("p2")
    assert downs == []
    provider.destroy("p1")
    assert downs == ["trial"]


def test_a_reaper_waits_for_the_end_of_a_compose_that_outlives_its_client(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is compose's as well, so that a client killed in the middle of `up` leaves nothing half-made behind."""
    monkeypatch.setattr(compose_project, "_UP_LIMIT_S", 0.1)
    project = Project(file, "trial")
    with project.locked() as lock:
        up = subprocess.Popen(["cat"], pass_fds=[lock], stdin=subprocess.PIPE)
    with pytest.raises(ProviderError, match=r"Another client has been bringing up"), project.locked():
        raise AssertionError("compose still runs")
    up.communicate()
    with project.locked():
        pass
