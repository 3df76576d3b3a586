import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from skyward.errors import ProviderError
from skyward.nodes import local_host as ports

_CLAIM = """
import sys
from skyward.nodes import local_host as ports
ports._candidates = lambda: [int(sys.argv[1])]
ports.claim_port()
"""


def _other_process_gets(port: int) -> bool:
    return subprocess.run([sys.executable, "-c", _CLAIM, str(port)], check=False, capture_output=True).returncode == 0


def test_claims_differ_and_lie_outside_the_kernels_range() -> None:
    """Every claim is a port of its own which the kernel does not hand out by itself."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    claims = [ports.claim_port() for _ in range(50)]
    numbers = {claim.port for claim in claims}
    for claim in claims:
        claim.release()
    assert len(numbers) == 50
    assert not any(low <= number <= high for number in numbers)


def test_a_claimed_port_can_be_used_by_its_pool() -> None:
    """The claim does not stand in the way of the TCP server it is for."""
    claim = ports.claim_port()
    with socket.create_server(("127.0.0.1", claim.port)):
        pass
    claim.release()


def test_no_other_process_gets_a_claimed_port_until_it_is_released() -> None:
    """A claim holds against other processes, and only as long as it is held."""
    claim = ports.claim_port()
    assert not _other_process_gets(claim.port)
    claim.release()
    claim.release()
    assert _other_process_gets(claim.port)


def test_ports_in_use_are_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port some server listens on is passed over; with no other left, the error says so."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(ports, "_candidates", lambda: [server.getsockname()[1]])
        with pytest.raises(ProviderError, match="No free port"):
            ports.claim_port()


def test_seeds_of_the_user_neither_choose_ports_nor_are_used_up() -> None:
    """Two programs with the same seed, and their random numbers after a claim."""
    taken = []
    for _ in range(2):
        random.seed(7)
        claim = ports.claim_port()
        taken.append((claim.port, random.random()))
        claim.release()
    assert taken[0][0] != taken[1][0]
    assert taken[0][1] == taken[1][1] == random.Random(7).random()


def test_one_port_is_found_among_many_that_others_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are tried before it is said that none is free."""
    free = ports.claim_port()
    free.release()
    held = [port for port in range(1_000) if port != free.port]
    hold = ports._hold
    monkeypatch.setattr(ports, "_candidates", lambda: [*held, free.port])
    monkeypatch.setattr(ports, "_hold", lambda port: None if port in held else hold(port))
    claim = ports.claim_port()
    claim.release()
    assert claim.port == free.port


def test_a_machine_that_gives_the_kernel_every_port_still_has_candidates(tmp_path: Path) -> None:
    """Where nothing lies outside the kernel's range, any port may be tried."""
    setting = tmp_path / "range"
    setting.write_text("1024\t65535\n")
    assert ports._candidates(setting)
    setting.write_text("32768\t60999\n")
    assert set(ports._candidates(setting)) == {*range(10_000, 32_768), *range(61_000, 65_536)}
