import hashlib
import json
from pathlib import Path

import pytest

from skyward.engine import find_engine
from skyward.errors import ConfigError


def _context(config: Path, name: str, host: str) -> None:
    meta = config / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
    meta.mkdir(parents=True)
    (meta / "meta.json").write_text(json.dumps({"Name": name, "Endpoints": {"docker": {"Host": host}}}))


def test_base_url_comes_before_everything(tmp_path: Path) -> None:
    """The caller's own address is used even when DOCKER_HOST says otherwise."""
    env = {"DOCKER_HOST": "unix:///b.sock", "DOCKER_CONFIG": str(tmp_path)}
    assert find_engine("unix:///a.sock", env).url == "unix:///a.sock"


def test_docker_host_comes_before_contexts(tmp_path: Path) -> None:
    """DOCKER_HOST overrides the context in use, as in the CLI."""
    _context(tmp_path, "other", "unix:///c.sock")
    (tmp_path / "config.json").write_text('{"currentContext": "other"}')
    env = {"DOCKER_HOST": "unix:///b.sock", "DOCKER_CONTEXT": "other", "DOCKER_CONFIG": str(tmp_path)}
    found = find_engine(env=env)
    assert (found.url, found.origin) == ("unix:///b.sock", "DOCKER_HOST")


def test_context_of_environment_comes_before_current_one(tmp_path: Path) -> None:
    """DOCKER_CONTEXT overrides the configuration's current context."""
    _context(tmp_path, "one", "unix:///one.sock")
    _context(tmp_path, "two", "unix:///two.sock")
    (tmp_path / "config.json").write_text('{"currentContext": "one"}')
    env = {"DOCKER_CONFIG": str(tmp_path)}
    assert find_engine(env=env).url == "unix:///one.sock"
    assert find_engine(env=env | {"DOCKER_CONTEXT": "two"}).url == "unix:///two.sock"
    assert find_engine(env=env | {"DOCKER_CONTEXT": "default"}).url == "unix:///var/run/docker.sock"


def test_home_holds_the_configuration(tmp_path: Path) -> None:
    """Without DOCKER_CONFIG the configuration is in ~/.docker."""
    _context(tmp_path / ".docker", "rootless", "unix:///run/user/7/docker.sock")
    (tmp_path / ".docker" / "config.json").write_text('{"currentContext": "rootless"}')
    found = find_engine(env={"HOME": str(tmp_path)})
    assert found.path == Path("/run/user/7/docker.sock")
    assert "rootless" in found.origin


def test_default_socket_without_any_configuration(tmp_path: Path) -> None:
    """A machine without configuration has the engine at the default socket."""
    assert find_engine(env={"HOME": str(tmp_path)}).url == "unix:///var/run/docker.sock"


def test_another_machine_by_ssh_is_one_for_another_provider(tmp_path: Path) -> None:
    """Which takes the same address."""
    with pytest.raises(ConfigError, match=r"use sky\.SSH\('me@host:22'\)"):
        find_engine(env={"DOCKER_HOST": "ssh://me@host:22/x", "HOME": str(tmp_path)})


def test_a_rootless_engine_is_found_where_no_other_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Podman's."""
    monkeypatch.setattr("skyward.engine.address.DEFAULT_URL", f"unix://{tmp_path}/none.sock")
    (tmp_path / "podman").mkdir()
    (tmp_path / "podman" / "podman.sock").touch()
    env = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    assert find_engine(env=env).origin == "Podman's default address"
    (tmp_path / "docker.sock").touch()
    assert find_engine(env=env).path == tmp_path / "docker.sock"


@pytest.mark.parametrize("url", ["tcp://10.0.0.1:2375", "ssh://me@host", "npipe:////./pipe/docker", "unix://", "x"])
def test_engines_elsewhere_are_refused(url: str, tmp_path: Path) -> None:
    """An address that is no socket of this machine is a mistake that names the address and who gave it."""
    with pytest.raises(ConfigError, match="not on this machine") as caught:
        find_engine(env={"DOCKER_HOST": url, "HOME": str(tmp_path)})
    assert url in str(caught.value)
    assert "DOCKER_HOST" in str(caught.value)


def test_context_that_does_not_exist(tmp_path: Path) -> None:
    """A context nobody defined is named, with the place that named it."""
    with pytest.raises(ConfigError, match="'nowhere', named by DOCKER_CONTEXT"):
        find_engine(env={"DOCKER_CONTEXT": "nowhere", "DOCKER_CONFIG": str(tmp_path)})


def test_broken_configuration_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    """A configuration file that is not JSON is not silently ignored."""
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        find_engine(env={"DOCKER_CONFIG": str(tmp_path)})


def test_podmans_socket_where_docker_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own; it is not looked at where Docker's default socket or a setting is."""
    monkeypatch.setattr("skyward.engine.address.DEFAULT_URL", f"unix://{tmp_path}/docker.sock")
    own = tmp_path / "podman" / "podman.sock"
    env = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    own.parent.mkdir()
    own.touch()
    assert find_engine(env=env).path == own
    assert find_engine(env={**env, "DOCKER_HOST": "unix:///x.sock"}).path == Path("/x.sock")
    (tmp_path / "docker.sock").touch()
    assert find_engine(env=env).path == tmp_path / "docker.sock"
