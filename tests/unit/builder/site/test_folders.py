"""Folders of wheels as indexes, over real HTTP on the loopback interface."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen
from zipfile import ZipFile

import pytest

from skyward.builder.site.index_server import FolderServer


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The token lies in the user's cache; tests have one of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def server() -> Iterator[FolderServer]:
    with FolderServer() as server:
        yield server


def _wheel(path: Path) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    name, version = path.name.split("-")[:2]
    with ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-{version}.dist-info/METADATA", f"Name: {name}\nVersion: {version}\n")
    return path.read_bytes()


def _get(url: str, method: str = "GET") -> bytes:
    with urlopen(Request(url, method=method), timeout=5) as answer:
        body: bytes = answer.read()
        return body


def _status(url: str) -> int:
    with pytest.raises(HTTPError) as caught:
        _get(url)
    caught.value.close()
    return caught.value.code


def test_a_flat_folder(server: FolderServer, tmp_path: Path) -> None:
    """Loose wheels are listed together, and per package under any spelling of its name; files come back whole."""
    wheels = tmp_path / "my wheels"
    content = _wheel(wheels / "Big_Thing-2.0+cpu-py3-none-any.whl")
    _wheel(wheels / "other-1.0-py3-none-any.whl")
    url = server.url(wheels)
    page = _get(f"{url}/").decode()
    assert "Big_Thing-2.0%2Bcpu-py3-none-any.whl" in page
    assert "other-1.0" in page
    page = _get(f"{url}/big-thing/").decode()
    assert "other-1.0" not in page
    link, _, hashed = page.split('href="')[1].split('"')[0].partition("#")
    assert hashed == f"sha256={sha256(content).hexdigest()}"  # so that nothing is downloaded for a lock
    origin = url.split("/", 3)[:3]
    assert _get("/".join(origin) + link) == content
    assert _get("/".join(origin) + link, "HEAD") == b""
    assert _get("/".join(origin) + link + ".metadata") == b"Name: Big_Thing\nVersion: 2.0+cpu\n"


def test_an_index_tells_sizes(server: FolderServer, tmp_path: Path) -> None:
    """Whoever asks for JSON, as uv does, gets hash and size of each file of a package."""
    content = _wheel(tmp_path / "w" / "big_thing-2.0-py3-none-any.whl")
    request = Request(
        f"{server.url(tmp_path / 'w')}/big-thing/", headers={"Accept": "application/vnd.pypi.simple.v1+json, text/html"}
    )
    with urlopen(request, timeout=5) as answer:
        assert answer.headers["Content-Type"] == "application/vnd.pypi.simple.v1+json"
        project = json.load(answer)
    (file,) = project["files"]
    assert (project["name"], file["filename"], file["size"]) == (
        "big-thing",
        "big_thing-2.0-py3-none-any.whl",
        len(content),
    )
    assert file["hashes"] == {"sha256": sha256(content).hexdigest()}
    assert _get(f"http://127.0.0.1:{urlsplit(request.full_url).port}{file['url']}") == content


def test_an_index_on_disk(server: FolderServer, tmp_path: Path) -> None:
    """A PEP 503 tree is served as one, wherever its pages' links lead on this machine."""
    content = _wheel(tmp_path / "files/pack_age-1.0-py3-none-any.whl")
    page = tmp_path / "simple/pack-age/index.html"
    page.parent.mkdir(parents=True)
    page.write_text(
        '<a href="../../files/pack_age-1.0-py3-none-any.whl#sha256=0">x</a><a href="https://a.example/y.whl">y</a>'
        '<a href="../../secret">z</a>'
    )
    (tmp_path / "secret").write_text("canary")
    url = server.url(tmp_path / "simple")
    assert ">y.whl" not in _get(f"{url}/Pack.Age/").decode()
    assert _get(f"{url}/pack-age/pack_age-1.0-py3-none-any.whl") == content
    assert _status(f"{url}/unknown/") == 404


def test_only_package_files_below_the_token(server: FolderServer, tmp_path: Path) -> None:
    """Neither a wrong token nor another path or kind of file is answered."""
    _wheel(tmp_path / "wheels/a-1.0-py3-none-any.whl")
    (tmp_path / "wheels/secret.txt").write_text("canary")
    (tmp_path / "outside.whl").write_text("canary")
    url = server.url(tmp_path / "wheels")
    start, token = url.split("/")[2], url.split("/")[3]
    assert _status(f"http://{start}/{'0' * 32}{tmp_path}/wheels/") == 404
    assert _status(f"http://{start}/") == 404
    assert _status(f"http://{start}/{token}{tmp_path}/") == 404
    assert _status(f"{url}/secret.txt") == 404
    assert _status(f"{url}/../outside.whl") == 404
    assert _status(f"{url}/%2e%2e/outside.whl") == 404


@pytest.mark.alone  # another process may get the port
def test_the_address_stays(tmp_path: Path, own_cache: Path) -> None:
    """uv's cache goes by the address, so the next build finds the same; a parallel one gets another port."""
    with FolderServer() as one, FolderServer() as parallel:
        first = one.url(tmp_path)
        assert parallel.url(tmp_path) != first
    with FolderServer() as later:
        assert later.url(tmp_path) == first
    token = own_cache / "skyward/loopback-token"
    assert token.read_text() in first
    assert token.stat().st_mode & 0o777 == 0o600


def test_a_missing_folder_is_empty(server: FolderServer, tmp_path: Path) -> None:
    """pip only warns of a folder that is not there; builds go on as well."""
    assert b"href" not in _get(server.url(tmp_path / "nowhere"))
