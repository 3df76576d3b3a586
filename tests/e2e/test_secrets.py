"""Values that nobody may find: every way a secret can enter an image or a pool, and every place it could be left in.

Each has a canary of its own. The indexes are real ones that want a login; the keyring is a command that knows one.
"""

from __future__ import annotations

import base64
import logging
import os
import secrets
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import skyward as sky
from skyward.builder.site.indexes import host_indexes
from tests.e2e.building import Built, search
from tests.e2e.functions import lengths
from tests.unit.builder.wheels import make_wheel

WAYS = ("url", "netrc", "variable", "keyring", "build", "file", "hub", "runtime", "client", "password")
CANARIES = {way: f"canary-{way}-{secrets.token_hex(8)}" for way in WAYS}
INDEXES = WAYS[:4]
WORD = secrets.token_hex(4)
READ = (
    "cat /run/secrets/BUILD_TOKEN /run/secrets/file.token /run/secrets/HF_TOKEN | tee /dev/stderr"
    f" | wc -c > /{WORD}; echo >&2"
)

# the certificate of nobody: its text is looked for where no secret may be
CANARY_CA = """-----BEGIN CERTIFICATE-----
MIIBiTCCAS+gAwIBAgIUbhy2WQo3kP7DHW5VgT1Fbl47DIYwCgYIKoZIzj0EAwIw
GTEXMBUGA1UEAwwOc2t5d2FyZCBjYW5hcnkwIBcNMjYxMTIxMDQ1MTI4WhgPMjEy
NjEwMjgwNDUxMjhaMBkxFzAVBgNVBAMMDnNreXdhcmQgY2FuYXJ5MFkwEwYHKoZI
zj0CAQYIKoZIzj0DAQcDQgAEBQknpkg5Ilw60OtubiOJeEWbCXeEsYk2W5WVYBJw
ElCgyR/hqzhPI85nyQ3QXMI7W6hZ956DGLoYjKLRpKOYeaNTMFEwHQYDVR0OBBYE
FFVqYyBpvxAAVja8oxHdkdXxK9CvMB8GA1UdIwQYMBaAFFVqYyBpvxAAVja8oxHd
kdXxK9CvMA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIhAPj0HYTS
qjQGYDbzB9NHt39MN2OT2m+j1s2AnhjOz9nEAiAbUNHfMUFjn3kwlZk68PIfN89G
v54DzZd5d1zCG9Fn3g==
-----END CERTIFICATE-----
"""


def forms(way: str) -> list[bytes]:
    """A canary as it is, in an address, in a header."""
    login = base64.b64encode(f"{way}:{CANARIES[way]}".encode())
    return list(dict.fromkeys([CANARIES[way].encode(), quote(CANARIES[way]).encode(), login[:-4]]))


NEEDLES = [*(form for way in WAYS for form in forms(way)), CANARY_CA.splitlines()[5].encode()]


@contextmanager
def private_indexes(folder: Path) -> Iterator[tuple[int, list[str]]]:
    """An index per way to log in, each with one package, that answers its own user only; gives port and log-ins."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            way, _, rest = self.path.strip("/").partition("/")
            login = base64.b64encode(f"{way}:{CANARIES.get(way)}".encode()).decode()
            name = rest.rpartition("/")[2]
            if self.headers.get("Authorization") != f"Basic {login}":
                self.send_response(401)
                self.send_header("WWW-Authenticate", f'Basic realm="{way}"')
                body = b""
            elif name.endswith(".whl") and (folder / way / name).is_file():
                self.send_response(200)
                seen.append(way)
                body = (folder / way / name).read_bytes()
            elif name == f"{way}{WORD}":
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                body = "".join(f'<a href="{p.name}">{p.name}</a>' for p in (folder / way).iterdir()).encode()
            else:
                self.send_response(404)
                body = b""
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - fixed by the base class
            """Nothing."""

        do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1], seen
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """An environment into which every canary has come; gives the log-ins that the indexes see."""
    for way in INDEXES:
        make_wheel(tmp_path / "wheels" / way, f"{way}{WORD}", "1.0")
    with private_indexes(tmp_path / "wheels") as (port, seen):
        (tmp_path / "netrc").write_text(f"machine localhost login netrc password {CANARIES['netrc']}\n")
        (tmp_path / "token").write_text(CANARIES["file"])
        bundle = Path(os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile or "")
        (tmp_path / "ca.pem").write_text(CANARY_CA + (bundle.read_text() if bundle.is_file() else ""))
        keyring = tmp_path / "bin/keyring"
        keyring.parent.mkdir()
        keyring.write_text(f'#!/bin/sh\n[ "$3" = keyring ] && cat {tmp_path}/held\n')
        keyring.chmod(0o755)
        (tmp_path / "held").write_text(CANARIES["keyring"])
        here = f"127.0.0.1:{port}"
        urls = [f"http://url:{CANARIES['url']}@{here}/url/simple", f"http://localhost:{port}/netrc/simple"]
        urls += [f"named=http://{here}/variable/simple", f"http://keyring@{here}/keyring/simple"]
        default = host_indexes(os.environ, Path.home()).default
        for name, value in {
            "UV_INDEX": " ".join(urls),
            "UV_DEFAULT_INDEX": default or "",
            "UV_INDEX_NAMED_USERNAME": "variable",
            "UV_INDEX_NAMED_PASSWORD": CANARIES["variable"],
            "UV_KEYRING_PROVIDER": "subprocess",
            "UV_CACHE_DIR": str(tmp_path / "uv"),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "NETRC": str(tmp_path / "netrc"),
            "SSL_CERT_FILE": str(tmp_path / "ca.pem"),
            "PATH": f"{keyring.parent}:{os.environ['PATH']}",
            "BUILD_TOKEN": CANARIES["build"],
            "SKYWARD_SECRET_FILE_TOKEN_FILE": str(tmp_path / "token"),
            "HF_TOKEN": CANARIES["hub"],
            "WANDB_API_KEY": CANARIES["runtime"],
            "OF_THE_CLIENT": CANARIES["client"],
        }.items():
            monkeypatch.setenv(name, value)
        yield seen


def test_no_canary_is_found(
    engine: Any,
    entered: list[str],
    containers: Callable[[str], list[Any]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Builds and functions have the values; layers, configuration, history, labels, logs, memos, containers do not."""
    caplog.set_level(logging.DEBUG)
    built = Built(sky.Docker().images, engine)
    image = sky.Image(
        pip=[f"{way}{WORD}" for way in INDEXES],
        run=[READ, f'grep -q {CANARY_CA.splitlines()[3]} "$SSL_CERT_FILE"'],
        secrets=["BUILD_TOKEN", "file.token", "HF_TOKEN"],
        env={"PLAIN": "1"},
    )
    try:
        plan = built(image)
        assert set(entered) >= set(INDEXES), "an index was used without its login"
        size = sum(len(CANARIES[way]) for way in ("build", "file", "hub"))
        assert built.run(plan, f"print(open('/{WORD}').read().strip())") == f"{size}\n"
        assert "***" * 3 in built.reports, f"the output was to be shown, without what it holds: {built.reports}"
        places = {"reports": "\n".join(built.reports), "plan": repr(plan) + plan.dockerfile + repr(plan.inputs)}

        given = {"WANDB_API_KEY": CANARIES["runtime"], "HF_TOKEN": CANARIES["hub"], "DB": CANARIES["password"]}
        with sky.ComputePool(sky.Docker(), image=image, secrets=given) as pool:
            (found,) = lengths([*given, "OF_THE_CLIENT"]) @ pool
            (container,) = containers(pool.id)
            places["container"] = str(container.attrs) + container.logs().decode()
            places["processes"] = str(container.top(ps_args="-eo pid,args"))
            places["pool"] = repr(pool) + str(pool)
        assert found == {**{name: len(value) for name, value in given.items()}, "OF_THE_CLIENT": 0}

        made = engine.images.get(plan.tag)
        places["image"] = str(made.attrs) + str(made.history())
        places["printed"] = "".join(capfd.readouterr())
        places["logged"] = caplog.text
        assert search(made, NEEDLES) == []
    finally:
        built.remove()
    assert [(place, needle) for place, text in places.items() for needle in NEEDLES if needle.decode() in text] == []
    kept = [path for folder in ("cache", "uv") for path in (tmp_path / folder).rglob("*") if path.is_file()]
    assert [path for path in kept if path.parent.name == "locks"]
    assert [(path, needle) for path in kept for needle in NEEDLES if needle in path.read_bytes()] == []


def test_the_search_finds_what_is_there(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A canary that a command puts into a layer, and one in the environment, are found: the search can fail."""
    monkeypatch.setenv("BUILD_TOKEN", CANARIES["build"])
    built = Built(sky.Docker().images, engine)
    image = sky.Image(
        run=[f"cp /run/secrets/BUILD_TOKEN /leaked-{WORD}"], secrets=["BUILD_TOKEN"], env={"SHOWN": CANARIES["client"]}
    )
    try:
        plan = built(image)
        found = search(engine.images.get(plan.tag), NEEDLES)
    finally:
        built.remove()
    assert {needle for _, needle in found} == {CANARIES["build"].encode(), CANARIES["client"].encode()}
