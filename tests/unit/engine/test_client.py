import socket
from pathlib import Path

import pytest

from skyward.engine import Engine
from skyward.errors import EngineMissingError


def test_a_socket_that_is_not_there(tmp_path: Path) -> None:
    """The error names the address, who gave it, what was found and what to do."""
    with pytest.raises(EngineMissingError, match="there is no such socket") as caught:
        Engine.connect(f"unix://{tmp_path}/e.sock")
    for fact in (f"unix://{tmp_path}/e.sock", "base_url", "make engine", "sky.Local()"):
        assert fact in str(caught.value)


def test_a_socket_nobody_listens_at(tmp_path: Path) -> None:
    """What a killed engine leaves is told from a machine that never had one."""
    path = tmp_path / "e.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with pytest.raises(EngineMissingError, match="nobody listens"):
        Engine.connect(f"unix://{path}")
