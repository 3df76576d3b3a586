import socket

import pytest

from skyward.errors import ProviderError
from skyward.nodes import local_host as ports


def test_ports_are_chosen_at_random_and_those_in_use_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port on which a server listens is skipped; if no other is left, the error says so."""
    assert len({ports.claim_port() for _ in range(5)}) > 1
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(ports, "_PORTS", [server.getsockname()[1]])
        with pytest.raises(ProviderError, match="No free port"):
            ports.claim_port()
