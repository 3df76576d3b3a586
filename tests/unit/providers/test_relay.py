"""Which machines may take an image from another one."""

from __future__ import annotations

import pytest

from skyward.delivery.stream import can_receive


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        pytest.param("10.77.3.11", True, id="a private network"),
        pytest.param("192.168.1.4", True, id="a home network"),
        pytest.param("fd00::7", True, id="a private network, IPv6"),
        pytest.param("127.0.0.1", True, id="itself"),
        pytest.param("8.8.4.4", False, id="public"),
        pytest.param("2001:4860:4860::8888", False, id="public, IPv6"),
    ],
)
def test_no_machine_listens_at_a_public_address(address: str, allowed: bool) -> None:
    """It gets the image from the client instead."""
    assert can_receive(address) is allowed
