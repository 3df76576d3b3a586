"""What functions may do in containers: whom they run as, what they can write to, and what they cannot become."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

import skyward as sky
from tests.e2e.rights_functions import rights, writable, written_by_root


@pytest.fixture(scope="module")
def own_base() -> Iterator[str]:
    """A base image with a user, a working directory and an entry point of its own."""
    client = docker.from_env()
    made = client.api.create_container(
        os.environ["SKYWARD_BASE"],
        ["sh", "-c", "echo app:x:4711:4711::/home/app:/bin/sh >>/etc/passwd; mkdir /home/app /srv/app; exit 0"],
        host_config=client.api.create_host_config(network_mode="host"),
    )["Id"]
    client.api.start(made)
    client.api.wait(made)
    entry = 'ENTRYPOINT ["/usr/bin/env", "BY_ENTRYPOINT=yes"]'
    client.api.commit(made, "skyward-test/own", "latest", changes=f"USER app\nWORKDIR /srv/app\n{entry}")
    client.api.remove_container(made)
    yield "skyward-test/own:latest"
    client.api.remove_image("skyward-test/own:latest", force=True)
    client.close()


def test_functions_run_as_nobody_in_particular(containers: Any) -> None:
    """No root, no capability, none to be gained; with a name, a home, and everything writable that programs expect."""
    with sky.ComputePool(sky.Docker(), image=sky.Image()) as pool:
        found = rights() >> pool
        assert writable() >> pool == []
        about = [container.attrs for container in containers(pool.id)]
    expected = 10001 if os.geteuid() == 0 else os.geteuid()
    assert (found["uid"], found["name"], found["user"], found["home"]) == (
        expected,
        "skyward",
        "skyward",
        "/home/skyward",
    )
    assert found["groups"] == [found["gid"]]
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(found[name], 16) == 0
    assert found["NoNewPrivs"] == "1"
    assert found["cwd"] == "/work"
    for each in about:
        config = each["HostConfig"]
        assert config["CapDrop"] == ["ALL"]
        assert not config["CapAdd"]
        assert config["SecurityOpt"] == ["no-new-privileges"]
        assert config["Init"] is True


def test_root_and_what_it_may_do_can_be_asked_for() -> None:
    """Root alone can write to its own files only; with the engine's own privileges it can do what it is used to."""
    with sky.ComputePool(sky.Docker(user="root"), image=sky.Image()) as pool:
        found = rights() >> pool
        assert (found["uid"], int(found["CapEff"], 16), found["NoNewPrivs"]) == (0, 0, "1")
        with pytest.raises(PermissionError):
            written_by_root() >> pool
    with sky.ComputePool(sky.Docker(user="root", privileges="default"), image=sky.Image()) as pool:
        assert written_by_root() >> pool == 12345
        assert int((rights() >> pool)["CapEff"], 16) != 0
    with sky.ComputePool(sky.Docker(user="2001:2002", privileges=["SYS_PTRACE"]), image=sky.Image()) as pool:
        found = rights() >> pool
        assert (found["uid"], found["gid"], found["name"]) == (2001, 2002, "skyward")
        assert (int(found["CapEff"], 16), int(found["CapBnd"], 16)) == (0, 1 << 19)
        assert writable() >> pool == []


def test_an_image_s_own_user_is_respected(own_base: str) -> None:
    """So are its working directory, which it can write to, and its entry point; packages are installed all the same."""
    with sky.ComputePool(sky.Docker(), image=sky.Image(base=own_base, pip=["six"])) as pool:
        found = rights() >> pool
        assert (found["uid"], found["name"], found["cwd"], found["by_entrypoint"]) == (4711, "app", "/srv/app", "yes")
        assert int(found["CapBnd"], 16) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_client_that_is_not_root_lends_its_own_user(tmp_path: Path) -> None:
    """What functions leave in the shared directory is the client's, which can remove it; libraries find its name."""
    program = """
        import skyward as sky
        from skyward.nodes.run_directory import runtime_base
        from tests.e2e.rights_functions import rights

        with sky.ComputePool(sky.Docker(), image=sky.Image()) as pool:
            print(rights() >> pool)
            directory = runtime_base() / f"skyward-{pool.id}"
            print({path.stat().st_uid for path in directory.rglob("*")}, oct(directory.stat().st_mode))
        print(directory.exists())
    """
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program))
    (tmp_path / "home").mkdir()
    os.chown(tmp_path / "home", 1234, 1235)
    become = ("setpriv", "--reuid=1234", "--regid=1235", "--clear-groups")
    # the one right of root's that it keeps here lets it reach the engine's socket, and this clone
    keep = ("--inh-caps=+dac_override", "--ambient-caps=+dac_override")
    own = {name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"}
    env = {**own, "HOME": str(tmp_path / "home"), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [*become, *keep, sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found, owners, gone = done.stdout.strip().splitlines()
    assert "'uid': 1234, 'gid': 1235, 'name': 'skyward', 'user': 'skyward', 'home': '/home/skyward'" in found
    assert owners == "{1234} 0o40700"
    assert gone == "False"
