import socket
import subprocess
import sys

import pytest

from skyward.errors import ProviderError
from skyward.nodes import local_host as ports

_CLAIM = """
import sys
from skyward.nodes import local_host as ports
ports._PORTS = [int(sys.argv[1])]
ports.claim_port()
"""


def _other_process_gets(port: int) -> bool:
    return subprocess.run([sys.executable, "-c", _CLAIM, str(port)], check=False, capture_output=True).returncode == 0


def test_claims_differ_and_are_held_until_they_are_released() -> None:
    """Against other processes; the TCP server that a claim is for can use its port."""
    claims = [ports.claim_port() for _ in range(50)]
    assert len({claim.port for claim in claims}) == 50
    with socket.create_server(("127.0.0.1", claims[0].port)):
        pass
    assert not _other_process_gets(claims[0].port)
    for claim in claims:
        claim.release()
        claim.release()
    assert _other_process_gets(claims[0].port)


def test_ports_in_use_are_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port on which a server listens is skipped; if no other is left, the error says so."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(ports, "_PORTS", [server.getsockname()[1]])
        with pytest.raises(ProviderError, match="No free port"):
            ports.claim_port()
