"""Pools on machines reached by SSH: where images come from, what is checked first, what is left when it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from scripts.stand import faults
from scripts.stand.place import Stand
from skyward.errors import ConfigError, EngineError, ProviderError
from tests.e2e import functions, programs
from tests.e2e.functions import lengths
from tests.e2e.stand import IMAGE, directories_on, forget_image, wait_until
from tests.e2e.stand_functions import where
from tests.printed import Printed

Make = Callable[..., sky.SSH]
pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture
def repository(stand: Stand) -> Iterator[str]:
    """A fresh repository of the registry that the hosts reach; what came from it is removed from all engines."""
    if stand.registry is None:
        pytest.skip("`make engine` has made no registry here")
    name = f"{stand.registry}/skyward/test-{uuid.uuid4().hex[:8]}"
    yield f"http://{name}"
    for host in stand.hosts:
        forget_image(host, name)
    tags = subprocess.run(["docker", "images", "-q", name], capture_output=True, text=True, check=True).stdout.split()
    subprocess.run(["docker", "rmi", "-f", *tags], capture_output=True, check=bool(tags))


def forget(stand: Stand, image: str) -> None:
    for host in stand.hosts:
        host.run("docker", "rmi", "-f", image, check=False)


def refusal(provider: sky.SSH, **settings: object) -> str:
    """What a pool that cannot start says."""
    with (
        pytest.raises(ProviderError) as caught,
        sky.ComputePool(provider, **{"nodes": len(provider.hosts), "image": IMAGE, "display": "quiet", **settings}),  # type: ignore[arg-type]
    ):
        raise AssertionError("the pool started")
    return str(caught.value)


# how it works when all is well --------------------------------------------------------------------------------------


def test_nodes_know_each_other_by_addresses_that_hosts_reach(ssh: Make, stand: Stand) -> None:
    """One node on each host; the head's address is the first host's own, at which the others get their words."""
    with sky.ComputePool(ssh(), nodes=3, image=IMAGE) as pool:
        places = functions.place() @ pool
        assert [place["node"] for place in places] == [0, 1, 2]
        assert {place["addr"] for place in places} == {stand.host(1).address}
        names = where() @ pool
        assert names == ["stand1", "stand2", "stand3"]
        assert programs.hand_out(["a", "b", "c"]) @ pool == ["head keeps a", "node 1 got b", "node 2 got c"]


def test_nothing_listens_on_the_network(ssh: Make, stand: Stand) -> None:
    """While a pool runs, a host listens where it listened before; one connection serves all; the key is in no text."""
    host = stand.host(1)
    before = host.run("sh", "-c", "grep ' 0A ' /proc/net/tcp /proc/net/tcp6 | wc -l")

    def connections() -> int:
        return int(host.run("sh", "-c", "grep ':0016 .* 01 ' /proc/net/tcp | wc -l"))

    alone = connections()
    with sky.ComputePool(ssh(1), image=IMAGE) as pool:
        assert (functions.double(21) >> pool) == 42
        assert host.run("sh", "-c", "grep ' 0A ' /proc/net/tcp /proc/net/tcp6 | wc -l") == before
        assert connections() == alone + 1
        name = host.run("docker", "ps", "-q", "--filter", f"label=skyward.pool={pool.id}").strip()
        seen = host.run("docker", "inspect", name) + host.run(
            "sh", "-c", "tr '\\0' ' ' </proc/[0-9]*/cmdline", check=False
        )
        assert not any(node._key.hex() in seen for node in pool._table.nodes)
        (directory,) = directories_on(host, pool.id)
        assert host.run("stat", "-c", "%a", directory).strip() == "700"


def test_an_image_is_sent_to_hosts_that_lack_it(ssh: Make, stand: Stand, printed: Printed) -> None:
    """To the one of three that lost it, and to nobody the next time."""
    with sky.ComputePool(ssh(), nodes=3, image=IMAGE) as pool:
        (tag,) = {found["image"] for found in ssh().find() if found["pool"] == pool.id}
    stand.host(2).run("docker", "rmi", "-f", tag)
    printed.read()
    with sky.ComputePool(ssh(), nodes=3, image=IMAGE) as pool:
        assert where() @ pool == ["stand1", "stand2", "stand3"]
    said = printed.read().err
    has_it = [f"{host.login}: has the image after" in said for host in stand.hosts]
    assert has_it == [False, True, False]
    with sky.ComputePool(ssh(), nodes=3, image=IMAGE):
        assert "sending" not in printed.read().err


def test_an_image_comes_from_a_registry_by_digest(ssh: Make, stand: Stand, repository: str, printed: Printed) -> None:
    """Built here, pushed, pulled by every host by its digest; found in the registry the next time."""
    image = IMAGE.with_env({"STAND_TEST": uuid.uuid4().hex})
    with sky.ComputePool(ssh(registry=repository), nodes=3, image=image) as pool:
        assert where() @ pool == ["stand1", "stand2", "stand3"]
        (tag,) = {found["image"] for found in ssh().find() if found["pool"] == pool.id}
    name = repository.removeprefix("http://")
    said = printed.read().err
    assert f"pushing {name}" in said
    assert f"pulling {name}@sha256:" in said
    for host in stand.hosts:
        assert f"{name}@sha256:" in host.run("docker", "inspect", "--format", "{{.RepoDigests}}", tag)
    forget_image(stand.host(3), name)
    with sky.ComputePool(ssh(3, registry=repository), image=image):
        said = printed.read().err
    assert "pushing" not in said
    assert "building" not in said
    assert f"pulling {name}@sha256:" in said
    forget(stand, tag)
    subprocess.run(["docker", "rmi", tag], capture_output=True, check=True)


@pytest.mark.parametrize("way", ["sent", "pulled", "built there"])
def test_another_image_by_our_tag_is_replaced(
    ssh: Make, stand: Stand, repository: str, printed: Printed, way: str
) -> None:
    """On two of three hosts something else has our tag: the right image runs on all, and a line for each says so."""
    base = f"{stand.registry}/{sky_base()}"
    image = sky.Image(base=base if way == "built there" else None, env={"STAND_TEST": uuid.uuid4().hex})
    settings: dict[str, Any] = {"registry": repository} if way == "pulled" else {}
    settings |= {"build": "remote"} if way == "built there" else {}
    provider = ssh(**settings)
    with sky.ComputePool(provider, nodes=3, image=image) as pool:
        (tag,) = {found["image"] for found in provider.find() if found["pool"] == pool.id}
    for number in (1, 3):
        stand.host(number).run("docker", "pull", "-q", base)
        stand.host(number).run("docker", "tag", base, tag)
    printed.read()
    with sky.ComputePool(provider, nodes=3, image=image) as pool:
        assert lengths(["STAND_TEST"]) @ pool == [{"STAND_TEST": 32}] * 3
    said = printed.read().err
    for number in (1, 3):
        assert f"{tag} was another image on {stand.host(number).login} (sha256:" in said
    assert f"{tag} was another image on {stand.host(2).login}" not in said
    with sky.ComputePool(provider, nodes=3, image=image):
        assert "another image" not in printed.read().err
    forget(stand, tag)
    subprocess.run(["docker", "rmi", tag], capture_output=True, check=False)


def test_an_image_is_built_on_the_first_host(ssh: Make, stand: Stand, printed: Printed) -> None:
    """The engine here has no part in it; the others get it by way of the client."""
    if stand.registry is None:
        pytest.skip("the hosts can get no base: `make engine` has made no registry here")
    image = sky.Image(base=f"{stand.registry}/{sky_base()}", pip=["packaging"])
    provider = ssh(build="remote")
    with sky.ComputePool(provider, nodes=3, image=image) as pool:
        assert where() @ pool == ["stand1", "stand2", "stand3"]
        (tag,) = {found["image"] for found in provider.find() if found["pool"] == pool.id}
    said = printed.read().err
    assert f"building {tag}" in said
    for number in (2, 3):
        assert f"{stand.host(number).login}: has the image after" in said
    assert "could not" not in said
    assert subprocess.run(["docker", "inspect", tag], capture_output=True, check=False).returncode != 0


def sky_base() -> str:
    return os.environ["SKYWARD_BASE"]


# what is wrong with hosts is one table -------------------------------------------------------------------------------


def test_an_unknown_host_key_is_refused(ssh: Make, stand: Stand, tmp_path: Path) -> None:
    """No first use is trusted: all three are named, and nothing was changed."""
    nobody = tmp_path / "known_hosts"
    nobody.touch()
    said = refusal(ssh(known_hosts=nobody))
    assert said.startswith("3 of 3 hosts cannot be used. Nothing was changed on them.\n")
    assert said.count("Its host key is not known here.") == 3


def test_a_host_of_another_architecture_is_named(ssh: Make, stand: Stand, tmp_path: Path) -> None:
    """Before anything is changed, beside what is wrong with others; and for a platform that none has."""
    first, _, third = stand.known_hosts.read_text().splitlines()
    known = tmp_path / "known_hosts"
    known.write_text(f"{first}\n{third}\n")
    host = stand.host(3)
    stub = "#!/bin/sh\ncase $1 in -s) echo Linux ;; *) echo aarch64 ;; esac\n"
    host.run("sh", "-c", f"printf '{stub}' >/usr/local/bin/uname && chmod +x /usr/local/bin/uname".replace("\n", "\\n"))
    try:
        said = refusal(ssh(known_hosts=known))
    finally:
        host.run("rm", "/usr/local/bin/uname")
    assert said.startswith("2 of 3 hosts cannot be used. Nothing was changed on them.\n")
    assert f"{stand.host(2).login}  ssh           Its host key is not known here." in said
    assert f"{host.login}  architecture  It is Linux aarch64, and the image is for linux/amd64." in said
    assert refusal(ssh(), architecture="arm64").count("the image is for linux/arm64") == 3


def test_a_host_whose_disk_is_full_is_named(ssh: Make, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is sent; and where the estimate was too good, the engine's own words are the error."""
    host = stand.host(2)
    faults.fill_disk(host, 60)
    try:
        said = refusal(ssh())
        assert f"{host.login} cannot be used: Too little disk space" in said
        assert re.search(r"6\d(\.\d)? MB are free", said)
        monkeypatch.setattr("skyward.ssh.preflight._UNPACKED", 0)
        monkeypatch.setattr("skyward.ssh.preflight._SPARE_BYTES", 0)
        with pytest.raises(EngineError, match=rf"{host.login}.*no space left on device") as caught:
            sky.ComputePool(ssh(), nodes=3, image=IMAGE).__enter__()
        assert "Free some space" in str(caught.value)
    finally:
        faults.free_disk(host)


def test_a_host_that_is_not_there_is_named_in_time(ssh: Make, stand: Stand) -> None:
    """One whose cable is pulled, and a name that means nothing, in one table in under ten seconds."""
    facts = json.loads(stand.hosts_file.read_text())
    host = stand.host(2)
    provider = sky.SSH(host.login, "no-such-host.invalid", key=facts["key"], known_hosts=facts["known_hosts"])
    faults.link_down(host)
    began = time.monotonic()
    try:
        said = refusal(provider)
    finally:
        faults.link_up(host)
    assert time.monotonic() - began < 30
    assert "2 of 2 hosts" in said
    assert "cannot be resolved" in said


def test_wrong_values_are_refused_before_anything(tmp_path: Path) -> None:
    """No host, a host twice, a key that is not there, a way to build that does not exist."""
    wrong: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        ((), {}),
        (("gpu1", "gpu1"), {}),
        (("gpu1",), {"key": tmp_path / "none"}),
        (("gpu1",), {"build": "elsewhere"}),
        (("-oProxyCommand=x",), {}),
        (("me:secret@gpu1",), {}),
        (("gpu1",), {"registry": "Not A Name"}),
    ]
    for hosts, settings in wrong:
        with pytest.raises(ConfigError):
            sky.SSH(*hosts, **settings)


# the command line ----------------------------------------------------------------------------------------------------


def test_ps_and_down_find_pools_by_label_alone(ssh: Make, stand: Stand) -> None:
    """From another process, knowing the hosts and nothing else: listed, ended, gone; an unknown pool is said to be."""
    files = f"key={stand.key}&known_hosts={stand.known_hosts}"
    options = [f"--at=ssh://{host.login}?{files}" for host in stand.hosts[:2]]

    def skyward(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "skyward", *words, *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    with sky.ComputePool(ssh(1, 2), nodes=2, image=IMAGE, display="quiet") as pool:
        rows = [line.split() for line in skyward("ps").stdout.splitlines() if pool.id in line]
        assert [(row[1], row[2], row[3]) for row in rows] == [
            ("0", stand.host(1).login, "running"),
            ("1", stand.host(2).login, "running"),
        ]
        done = skyward("down", pool.id)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("1 node ended at") == 2
        assert pool.id not in skyward("ps").stdout
        wait_until(lambda: pool.current_nodes() == 0, 60)
    absent = skyward("down", "deadbeef")
    assert absent.returncode == 1
    assert "There is no pool or run named" in absent.stderr
