"""The site script: what it holds, and what a shell makes of it."""

from __future__ import annotations

import subprocess
import tomllib
from configparser import RawConfigParser
from dataclasses import replace
from pathlib import Path

import pytest

from skyward.builder.site.indexes import Indexes
from skyward.builder.site.settings import Site, read_site, site_script, without_folders
from skyward.errors import ConfigError
from skyward.image.lock import index_id
from skyward.model.image import Image, PipIndex
from tests.unit.image.images import compiled

CPU = "https://download.pytorch.org/whl/cpu"
TORCH = compiled(Image(pip=["torch"], pip_indexes=[PipIndex(CPU, ["torch"])]))
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nabc=\n-----END CERTIFICATE-----\n"


def _served(folder: Path) -> str:
    return f"http://127.0.0.1:1/t{folder}"


def _run(script: str, place: Path) -> dict[str, str]:
    """Source the script as a build step does, below another folder; gives the environment."""
    place.mkdir()
    code = f"set -eu\n{script.replace('/run/skyward', str(place))}\nenv"
    done = subprocess.run(["sh", "-c", code], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"})
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def test_what_a_step_gets(tmp_path: Path) -> None:
    """CA bundle, uv's and pip's configuration, mirrors and limits, each where its tool looks."""
    (tmp_path / "wheels").mkdir()
    site = Site(
        ca=CERTIFICATE,
        indexes=Indexes(
            default="https://u:$p`@a.example/simple",
            extra=("file:///opt/tree/simple",),
            find_links=(str(tmp_path / "wheels"),),
            insecure_hosts=("a.example",),
            strategy="unsafe-best-match",
        ),
        mirrors=((CPU, str(tmp_path / "wheels")),),
        timeout_s=90,
    )
    place = tmp_path / "run"
    env = _run(site_script(site, TORCH, _served), place)
    assert Path(env["SSL_CERT_FILE"]).read_text() == CERTIFICATE
    assert env["PIP_CERT"] == env["REQUESTS_CA_BUNDLE"] == env["SSL_CERT_FILE"]
    assert str(place / "ca.pem") in Path(env["APT_CONFIG"]).read_text()
    uv = tomllib.loads(Path(env["UV_CONFIG_FILE"]).read_text())
    assert uv == {
        "find-links": [_served(tmp_path / "wheels")],
        "allow-insecure-host": ["a.example"],
        "index-strategy": "unsafe-best-match",
        "index": [
            {"url": _served(Path("/opt/tree/simple"))},
            {"url": "https://u:$p`@a.example/simple", "default": True},
        ],
    }
    pip = RawConfigParser()
    pip.read(env["PIP_CONFIG_FILE"])
    assert pip["global"]["index-url"] == "https://u:$p`@a.example/simple"
    assert pip["global"]["find-links"] == _served(tmp_path / "wheels")
    assert env[f"SKYWARD_INDEX_{index_id(CPU)}"] == _served(tmp_path / "wheels")
    assert (env["UV_HTTP_TIMEOUT"], env["NO_PROXY"]) == ("90", "127.0.0.1,localhost")


def test_names_beyond_ascii(tmp_path: Path) -> None:
    """Whatever a source is called, uv reads the name it has; JSON's escapes would not do, as TOML has fewer."""
    source = 'https://räder.example/\U0001f600/\x7f/"\\/\u2028'
    script = site_script(Site(indexes=Indexes(default=source, extra=(f"{source}/more",))), TORCH, _served)
    env = _run(script, tmp_path / "run")
    uv = tomllib.loads(Path(env["UV_CONFIG_FILE"]).read_text(encoding="utf-8"))
    assert uv == {"index": [{"url": f"{source}/more"}, {"url": source, "default": True}]}


def test_a_plain_site(tmp_path: Path) -> None:
    """Nothing set: the base's own certificates, PyPI, the indexes the image names."""
    env = _run(site_script(Site(), TORCH, _served), tmp_path / "run")
    assert "SSL_CERT_FILE" not in env
    assert not [name for name in env if name.startswith("SKYWARD_INDEX_")]
    uv = tomllib.loads(Path(env["UV_CONFIG_FILE"]).read_text())
    assert uv == {}


def test_the_default_index_can_be_mapped(tmp_path: Path) -> None:
    """`default` in the map stands for the index that is used where none is named; a named one wins."""
    environ = {"SKYWARD_INDEXES": '{"default": "https://m.example/simple"}'}
    site = replace(read_site(environ, home=tmp_path, folder=tmp_path), ca="")
    env = _run(site_script(site, TORCH, _served), tmp_path / "run")
    assert "https://m.example/simple" in Path(env["UV_CONFIG_FILE"]).read_text()

    named = read_site(environ | {"PIP_INDEX_URL": "https://own.example/simple"}, home=tmp_path, folder=tmp_path)
    assert named.indexes.default == "https://own.example/simple"


def test_a_mapped_folder_must_exist() -> None:
    """A map to a folder that is not there is an error that names both."""
    with pytest.raises(ConfigError, match=rf"{CPU} by the folder /nowhere, which does not exist"):
        site_script(Site(mirrors=((CPU, "/nowhere"),)), TORCH, _served)


def test_another_machine_sees_no_folders() -> None:
    """For a build elsewhere only what the network offers remains."""
    indexes = Indexes(default="/d", extra=("file:///e", "https://e.example"), find_links=("/f", "https://f.example"))
    site = without_folders(Site(indexes=indexes, mirrors=((CPU, "/m"), ("https://a.example", "https://b.example"))))
    assert site.indexes == Indexes(extra=("https://e.example",), find_links=("https://f.example",))
    assert site.mirrors == (("https://a.example", "https://b.example"),)


def test_which_bundle(tmp_path: Path) -> None:
    """SSL_CERT_FILE before the others; comments are left out; a wrong path is named; a huge one is refused."""
    bundle = tmp_path / "ca.pem"
    bundle.write_text(f"# a comment\n{CERTIFICATE}\nmore text\n{CERTIFICATE}")
    other = tmp_path / "other.pem"
    other.write_text("no certificate")
    site = read_site({"SSL_CERT_FILE": str(bundle), "PIP_CERT": str(other), "PIP_TIMEOUT": "77"}, tmp_path, tmp_path)
    assert site.ca == CERTIFICATE * 2
    assert site.timeout_s == 77
    with pytest.raises(ConfigError, match=r"REQUESTS_CA_BUNDLE names /nowhere\.pem"):
        read_site({"REQUESTS_CA_BUNDLE": "/nowhere.pem"}, tmp_path, tmp_path)
    with pytest.raises(ConfigError, match=r"other\.pem holds no certificate"):
        read_site({"PIP_CERT": str(other)}, tmp_path, tmp_path)
    with pytest.raises(ConfigError, match="at most 500 KB"):
        site_script(replace(site, ca="x" * 600_000), TORCH, _served)


def test_only_logins_of_package_sources(tmp_path: Path) -> None:
    """Of a netrc file, what belongs to other hosts stays where it is."""
    logins = tmp_path / "netrc"
    logins.write_text("machine other.example login o password canary\nmachine a.example login u password p\n")
    site = Site(netrc=logins, indexes=Indexes(extra=("https://a.example/simple",)))
    script = site_script(site, TORCH, _served)
    env = _run(script, tmp_path / "run")
    assert Path(env["NETRC"]).read_text() == "machine a.example login u password p\n"
    assert "canary" not in script


def test_where_python_itself_comes_from(tmp_path: Path) -> None:
    """uv's variables before its file; a folder is served like one of packages, but not to an engine elsewhere."""
    (tmp_path / "config/uv").mkdir(parents=True)
    text = 'python-install-mirror = "https://file.example/python"\npython-downloads = "manual"\n'
    (tmp_path / "config/uv/uv.toml").write_text(text)
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "UV_PYTHON_INSTALL_MIRROR": f"file://{tmp_path}"}
    site = replace(read_site(environ, home=tmp_path, folder=tmp_path), ca="")
    env = _run(site_script(site, TORCH, _served), tmp_path / "run")
    assert env["UV_PYTHON_INSTALL_MIRROR"] == _served(tmp_path)
    assert env["UV_PYTHON_DOWNLOADS"] == "manual"
    assert without_folders(site).python == {"UV_PYTHON_DOWNLOADS": "manual"}
    del environ["UV_PYTHON_INSTALL_MIRROR"]
    elsewhere = read_site(environ, home=tmp_path, folder=tmp_path)
    assert without_folders(elsewhere).python["UV_PYTHON_INSTALL_MIRROR"] == "https://file.example/python"
