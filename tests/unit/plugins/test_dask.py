"""The dask plugin: what it refuses before anything exists, what it adds to an image, its secret, its scheduler."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
from importlib.metadata import version

import pytest

import skyward as sky
from skyward.errors import PluginError, PoolError
from skyward.model.image import Image
from skyward.model.image_fields import local_minor
from skyward.model.spec import Cluster, ClusterSpec
from skyward.plugins import transform_all
from skyward.plugins._dask import IDENTITY
from skyward.wire.forward import Forward

pytest.importorskip("distributed", reason="Dask is not installed here; `pip install -e .[dev]` brings it")


def image(python: str) -> Image:
    return transform_all(Image(), [sky.plugins.dask()], Cluster(spec=ClusterSpec(nodes=2, python=python)))


def test_nodes_get_the_version_that_is_here() -> None:
    """Dask's protocol knows no other versions than its own."""
    assert f"distributed=={version('distributed')}" in image(local_minor()).pip


def test_another_python_is_refused() -> None:
    """Functions travel as code of the interpreter."""
    with pytest.raises(PluginError, match=rf"nodes would have 3\.99, this program runs on {local_minor()}"):
        image("3.99")


@pytest.mark.parametrize("missing", ["distributed", "cryptography"])
def test_without_a_library_the_extra_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is created."""
    monkeypatch.setattr("skyward.plugins._dask.find_spec", lambda name: None if name == missing else object())
    with pytest.raises(PluginError, match=rf"needs {missing} on this machine: pip install 'skyward\[dask\]'"):
        sky.plugins.dask()


def secrets_of(pool: sky.ComputePool) -> dict[str, str]:
    return dict(pool._settings.secrets)


def test_each_pool_has_a_certificate_of_its_own() -> None:
    """Also two pools with one plugin; the plugin's own representation and the pool's show nothing of it."""
    plugin = sky.plugins.dask()
    first, second = (sky.ComputePool(sky.Local(), plugins=[plugin]) for _ in range(2))

    assert secrets_of(first).keys() == secrets_of(second).keys() == {IDENTITY}
    assert secrets_of(first) != secrets_of(second)
    key = json.loads(secrets_of(first)[IDENTITY])["key"]
    for text in (repr(plugin), repr(first), repr(first._settings)):
        assert key not in text
        assert "PRIVATE" not in text


def test_no_certificate_is_made_on_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that makes a pool when it is imported is imported there, too."""
    monkeypatch.setenv("COMPUTE_POOL", "{}")
    assert secrets_of(sky.ComputePool(sky.Local(), plugins=[sky.plugins.dask()])) == {}


def test_a_pool_without_the_plugin_has_no_client() -> None:
    """The error says what to list."""
    with pytest.raises(PoolError, match=r"plugins=\[sky\.plugins\.dask\(\)\]"):
        _ = sky.ComputePool(sky.Local()).dask


# the scheduler's process ---------------------------------------------------------------------------------------------


def start_scheduler(port: int) -> tuple[subprocess.Popen[str], dict[str, str]]:
    identity = secrets_of(sky.ComputePool(sky.Local(), plugins=[sky.plugins.dask()]))[IDENTITY]
    process = subprocess.Popen(
        [sys.executable, "-m", "skyward.plugins._dask"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    assert process.stdin
    process.stdin.write(json.dumps({"host": "127.0.0.1", "port": port, "identity": identity}) + "\n")
    process.stdin.flush()
    return process, json.loads(identity)


def test_the_scheduler_answers_nobody_without_the_certificate_and_ends_with_its_parent() -> None:
    """Neither without TLS nor with another pool's; nothing of the key is on its command line or in its environment."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process, identity = start_scheduler(port)
    assert process.stdin and process.stdout
    try:
        assert process.stdout.readline() == "ready\n"
        for name in ("cmdline", "environ"):
            with open(f"/proc/{process.pid}/{name}", "rb") as file:
                assert identity["key"].splitlines()[1].encode() not in file.read()
        with socket.create_connection(("127.0.0.1", port)) as plain:
            plain.sendall(b"x" * 64)
            plain.settimeout(10)
            assert read_to_end(plain) == b""
        context = ssl.create_default_context(cadata=identity["certificate"])
        context.check_hostname = False
        with (
            socket.create_connection(("127.0.0.1", port), 10) as sock,
            pytest.raises(OSError, match=r"certificate required|CERTIFICATE_REQUIRED|reset"),
            context.wrap_socket(sock) as stranger,
        ):
            stranger.recv(1)
        process.stdin.close()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def read_to_end(sock: socket.socket) -> bytes:
    """What came until the end; a TLS alert is no answer."""
    data = b""
    try:
        while part := sock.recv(1 << 16):
            data += part
    except ConnectionResetError:
        pass
    return b"" if data[:1] in (b"", b"\x15") else data


# the way there -------------------------------------------------------------------------------------------------------


def test_a_forward_leads_on_in_both_directions_and_ends() -> None:
    """What one side has said is delivered when it ends its direction; closing the forward closes its port."""
    with socket.create_server(("127.0.0.1", 0)) as there:
        forward = Forward.on_loopback(lambda: socket.create_connection(there.getsockname()))
        with socket.create_connection(("127.0.0.1", forward.port), 10) as near:
            near.sendall(b"a" * 1_000_000)
            near.shutdown(socket.SHUT_WR)
            far, _ = there.accept()
            with far:
                assert len(read_to_end(far)) == 1_000_000
                far.sendall(b"b" * 1_000_000)
                far.shutdown(socket.SHUT_WR)
                assert read_to_end(near) == b"b" * 1_000_000
        with socket.create_connection(("127.0.0.1", forward.port), 10) as left:
            far, _ = there.accept()
            with far:
                left.sendall(b"x")
                assert far.recv(1) == b"x"
                forward.close()
                assert left.recv(1) == b""
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", forward.port), 60)
