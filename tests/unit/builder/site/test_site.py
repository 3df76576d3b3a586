"""The site script, and what a shell makes of it; files of folders, which a build context gets."""

from __future__ import annotations

import hashlib
import subprocess
import tomllib
from configparser import RawConfigParser
from pathlib import Path

import pytest

from skyward.builder.site.indexes import Indexes
from skyward.builder.site.settings import Site, place_files, read_site, site_script, uv_settings
from skyward.errors import ConfigError
from skyward.image.lock import index_id
from skyward.model.image import Image, PipIndex
from tests.unit.builder.wheels import make_index, make_sdist, make_wheel
from tests.unit.image.images import compiled

CPU = "https://download.pytorch.org/whl/cpu"
TORCH = compiled(Image(pip=["torch"], pip_indexes=[PipIndex(CPU, ["torch"])]))
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nabc=\n-----END CERTIFICATE-----\n"


def _run(script: str, place: Path) -> dict[str, str]:
    """Source the script as a build step does, below another folder; gives the environment."""
    place.mkdir()
    code = f"set -eu\n{script.replace('/run/skyward', str(place))}\nenv"
    done = subprocess.run(["sh", "-c", code], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"})
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def test_what_a_step_gets(tmp_path: Path) -> None:
    """CA bundle, uv's and pip's configuration, mirrors and limits, each where its tool looks; no folder of here."""
    site = Site(
        ca=CERTIFICATE,
        indexes=Indexes(
            default="https://u:$p`@a.example/simple",
            extra=("file:///opt/tree/simple", "https://räder.example/\U0001f600/simple"),
            find_links=(str(tmp_path), "https://a.example/files"),
            insecure_hosts=("a.example",),
            strategy="unsafe-best-match",
        ),
        mirrors=((CPU, str(tmp_path)),),
        variables={"UV_HTTP_TIMEOUT": "90"},
    )
    place = tmp_path / "run"
    env = _run(site_script(site, TORCH), place)
    assert Path(env["SSL_CERT_FILE"]).read_text() == CERTIFICATE
    assert env["PIP_CERT"] == env["REQUESTS_CA_BUNDLE"] == env["SSL_CERT_FILE"]
    assert str(place / "ca.pem") in Path(env["APT_CONFIG"]).read_text()
    assert tomllib.loads(Path(env["UV_CONFIG_FILE"]).read_text()) == {
        "find-links": ["https://a.example/files"],
        "allow-insecure-host": ["a.example"],
        "index-strategy": "unsafe-best-match",
        "index": [
            {"url": "https://räder.example/\U0001f600/simple"},
            {"url": "https://u:$p`@a.example/simple", "default": True},
        ],
    }
    pip = RawConfigParser()
    pip.read(env["PIP_CONFIG_FILE"])
    assert pip["global"]["index-url"] == "https://u:$p`@a.example/simple"
    assert pip["global"]["find-links"] == "https://a.example/files"
    assert env[f"SKYWARD_INDEX_{index_id(CPU)}"] == "none"
    assert env["UV_HTTP_TIMEOUT"] == "90"


def test_a_site_whose_only_index_is_a_folder(tmp_path: Path) -> None:
    """uv reads it here; a build has its files, and asks no other index."""
    make_wheel(tmp_path / "flat", "leaf", "1.0")
    site = Site(indexes=Indexes(default=str(tmp_path / "flat")))
    here = tomllib.loads(uv_settings(site, TORCH.image).files["uv.toml"])
    assert here == {"index": [{"url": f"file://{tmp_path}/flat", "format": "flat", "default": True}]}
    assert tomllib.loads(uv_settings(site, TORCH.image, folders=False).files["uv.toml"]) == {"no-index": True}


def test_files_of_folders(tmp_path: Path) -> None:
    """Those that requirement files name by version and hash, as links: loose ones, an index's, and source packages."""
    loose = make_wheel(tmp_path / "loose", "Big_Thing", "2.0+cpu")
    make_wheel(tmp_path / "loose", "other", "1.0")
    make_wheel(tmp_path / "loose", "Big_Thing", "1.0")
    source = make_sdist(tmp_path / "loose", "my-source", "1.0", {})
    make_wheel(tmp_path / "simple", "in_index", "1.0")
    make_index(tmp_path / "simple")
    (listed,) = (tmp_path / "simple/in-index").glob("*.whl")
    digests = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in (loose, source, listed)}
    folder = tmp_path / "requirements/light"
    folder.mkdir(parents=True)
    lines = [
        f"big-thing==2.0+cpu --hash=sha256:{digests[loose]}",
        f"my-source==1.0 \\\n    --hash=sha256:{'0' * 64} \\\n    --hash=sha256:{digests[source]}",
        f"in-index==1.0 --hash=sha256:{digests[listed]}",
        f"other==1.0 --hash=sha256:{'0' * 64}",
    ]
    (folder / "locked.txt").write_text("\n".join(lines))
    indexes = Indexes(extra=((tmp_path / "simple").as_uri(),), find_links=(str(tmp_path / "loose"), "/nowhere"))
    place_files(Site(indexes=indexes), TORCH, tmp_path / "requirements")
    assert sorted(path.name for path in folder.iterdir()) == sorted([*(path.name for path in digests), "locked.txt"])
    assert (folder / loose.name).samefile(loose)


def test_the_default_index_can_be_mapped(tmp_path: Path) -> None:
    """`default` in the map stands for the index that is used where none is named; a named one wins."""
    environ = {"SKYWARD_INDEXES": '{"default": "https://m.example/simple"}'}
    assert read_site(environ, home=tmp_path).indexes.default == "https://m.example/simple"
    named = read_site(environ | {"PIP_INDEX_URL": "https://own.example/simple"}, home=tmp_path)
    assert named.indexes.default == "https://own.example/simple"


def test_which_bundle(tmp_path: Path) -> None:
    """SSL_CERT_FILE before the others; comments are left out; a wrong path is named."""
    bundle = tmp_path / "ca.pem"
    bundle.write_text(f"# a comment\n{CERTIFICATE}\nmore text\n{CERTIFICATE.replace('abc', 'abd')}")
    other = tmp_path / "other.pem"
    other.write_text("no certificate")
    site = read_site({"SSL_CERT_FILE": str(bundle), "PIP_CERT": str(other)}, tmp_path)
    assert site.ca == CERTIFICATE + CERTIFICATE.replace("abc", "abd")
    with pytest.raises(ConfigError, match=r"REQUESTS_CA_BUNDLE names /nowhere\.pem"):
        read_site({"REQUESTS_CA_BUNDLE": "/nowhere.pem"}, tmp_path)
    with pytest.raises(ConfigError, match=r"other\.pem \(PIP_CERT\) has no certificate"):
        read_site({"PIP_CERT": str(other)}, tmp_path)


def test_only_logins_of_package_sources(tmp_path: Path) -> None:
    """Of a netrc file, what belongs to other hosts stays where it is."""
    logins = tmp_path / "netrc"
    logins.write_text("machine other.example login o password canary\nmachine a.example login u password p\n")
    script = site_script(Site(netrc=logins, indexes=Indexes(extra=("https://a.example/simple",))), TORCH)
    env = _run(script, tmp_path / "run")
    assert Path(env["NETRC"]).read_text() == "machine a.example login u password p\n"
    assert "canary" not in script


def test_variables_that_hold_in_builds(tmp_path: Path) -> None:
    """uv's variables before its file; folders of this machine are not passed on."""
    (tmp_path / "config/uv").mkdir(parents=True)
    text = 'python-install-mirror = "https://file.example/python"\npython-downloads = "manual"\n'
    (tmp_path / "config/uv/uv.toml").write_text(text)
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    found = {"UV_PYTHON_INSTALL_MIRROR": "https://file.example/python", "UV_PYTHON_DOWNLOADS": "manual"}
    assert read_site(environ, home=tmp_path).variables == found
    environ |= {"UV_PYTHON_INSTALL_MIRROR": f"file://{tmp_path}", "UV_HTTP_TIMEOUT": "77"}
    assert read_site(environ, home=tmp_path).variables == {"UV_PYTHON_DOWNLOADS": "manual", "UV_HTTP_TIMEOUT": "77"}
