import hashlib
import json
from pathlib import Path

import pytest

from skyward.engine import find_engine
from skyward.errors import ConfigError


def _context(config: Path, name: str) -> None:
    meta = config / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
    meta.mkdir(parents=True)
    host = f"unix:///{name}.sock"
    (meta / "meta.json").write_text(json.dumps({"Name": name, "Endpoints": {"docker": {"Host": host}}}))


@pytest.mark.parametrize(
    ("base_url", "env", "url"),
    [
        ("unix:///a.sock", {"DOCKER_HOST": "unix:///b.sock"}, "unix:///a.sock"),
        (None, {"DOCKER_HOST": "unix:///b.sock", "DOCKER_CONTEXT": "two"}, "unix:///b.sock"),
        (None, {"DOCKER_CONTEXT": "two"}, "unix:///two.sock"),
        (None, {"DOCKER_CONTEXT": "default"}, "unix:///var/run/docker.sock"),
        (None, {}, "unix:///one.sock"),
    ],
)
def test_the_order_of_the_docker_command(tmp_path: Path, base_url: str | None, env: dict[str, str], url: str) -> None:
    """The caller's address, DOCKER_HOST, the context of the environment, the configuration's."""
    config = tmp_path / ".docker"  # where it is without DOCKER_CONFIG
    _context(config, "one")
    _context(config, "two")
    (config / "config.json").write_text('{"currentContext": "one"}')
    assert find_engine(base_url, {**env, "DOCKER_CONFIG": str(config)}).url == url
    assert find_engine(base_url, {**env, "HOME": str(tmp_path)}).url == url


def test_engines_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Podman's socket, before it rootless Docker's, before both the default and a setting."""
    monkeypatch.setattr("skyward.engine.address.DEFAULT_URL", f"unix://{tmp_path}/default.sock")
    env = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    (tmp_path / "podman").mkdir()
    for name in ("podman/podman.sock", "docker.sock", "default.sock"):
        (tmp_path / name).touch()
        assert find_engine(env=env).path == tmp_path / name
    assert find_engine(env={**env, "DOCKER_HOST": "unix:///x.sock"}).path == Path("/x.sock")


@pytest.mark.parametrize("url", ["tcp://10.0.0.1:2375", "ssh://me@host", "npipe:////./pipe/docker", "unix://", "x"])
def test_engines_elsewhere_are_refused(url: str, tmp_path: Path) -> None:
    """The error names the address, its origin, and the provider for another machine."""
    with pytest.raises(ConfigError, match="not on this machine") as caught:
        find_engine(env={"DOCKER_HOST": url, "HOME": str(tmp_path)})
    assert url in str(caught.value)
    assert "DOCKER_HOST" in str(caught.value)
    assert url != "ssh://me@host" or "sky.SSH('me@host')" in str(caught.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [("{}", "'nowhere', named by DOCKER_CONTEXT"), ('{"currentContext": 7', r"config\.json cannot be read")],
)
def test_a_wrong_configuration(tmp_path: Path, config: str, words: str) -> None:
    """A context that does not exist, and a file that is not JSON, are named."""
    (tmp_path / "config.json").write_text(config)
    env = {"DOCKER_CONTEXT": "nowhere"} if config == "{}" else {}
    with pytest.raises(ConfigError, match=words):
        find_engine(env={**env, "DOCKER_CONFIG": str(tmp_path)})
