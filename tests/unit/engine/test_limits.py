from pathlib import Path

import pytest

from skyward.engine.container import UNLIMITED, limits_by, shm_bytes, wanted_limits

_ALL_CAPABILITIES, _NO_SYS_RESOURCE = "000001ffffffffff", "000001fffeffffff"


@pytest.mark.parametrize(
    ("capabilities", "locked", "files", "expected"),
    [
        (_ALL_CAPABILITIES, "8388608", "524288", {"memlock": UNLIMITED, "nofile": 524288}),
        (_NO_SYS_RESOURCE, "8388608", "20000", {"nofile": 20000, "nproc": 32768}),
        (_NO_SYS_RESOURCE, "unlimited", "1073741816", {"memlock": UNLIMITED, "nofile": 1048576, "nproc": 32768}),
    ],
)
def test_limits_that_an_engine_can_set(capabilities: str, locked: str, files: str, expected: dict[str, int]) -> None:
    """What its process visibly cannot grant is not requested, nor left to Podman, which would request more."""
    status = f"Name:\tdockerd\nCapEff:\t{capabilities}\n"
    table = (
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        f"Max open files            1024                 {files:<20} files     \n"
        f"Max locked memory         8388608              {locked:<20} bytes     \n"
        "Max processes             32768                32768                processes \n"
    )
    assert limits_by(status, table) == {"stack": 67108864, **expected}


@pytest.mark.parametrize("pid", [None, 8])
def test_an_engine_that_is_not_visible(pid: int | None, tmp_path: Path) -> None:
    """Its refusals show what it cannot set."""
    assert wanted_limits(pid, tmp_path) == {"memlock": UNLIMITED, "stack": 67108864}


def test_shared_memory() -> None:
    """Half of a node's limit, else half of the machine's memory, at most 64 GiB."""
    assert shm_bytes(4 * 1024**3) == 2 * 1024**3
    assert shm_bytes(1024**4) == 64 * 1024**3
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    assert shm_bytes(None) == pytest.approx(min(memory_kb * 512, 64 * 1024**3), rel=0.01)
