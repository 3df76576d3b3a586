"""The dask plugin: what it refuses before anything exists, what it adds to an image, its secret, its scheduler."""

from __future__ import annotations

import json
import socket
from importlib.metadata import version

import pytest

import skyward as sky
from skyward.errors import PluginError
from skyward.model.image import Image
from skyward.model.image_fields import local_minor
from skyward.model.spec import Cluster, ClusterSpec
from skyward.plugins import transform_all
from skyward.plugins._dask import IDENTITY
from skyward.ssh.forward import Forward

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
