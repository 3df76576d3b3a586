from pathlib import Path

import pytest

from skyward.engine.container import UNLIMITED, shm_bytes, wanted_limits

_ALL_CAPABILITIES, _NO_SYS_RESOURCE = "000001ffffffffff", "000001fffeffffff"


def _process(proc: Path, *, capabilities: str, locked: str, files: str) -> Path:
    (proc / "7").mkdir()
    (proc / "7" / "status").write_text(f"Name:\tdockerd\nCapEff:\t{capabilities}\n")
    (proc / "7" / "limits").write_text(
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        f"Max open files            1024                 {files:<20} files     \n"
        f"Max locked memory         8388608              {locked:<20} bytes     \n"
        "Max processes             32768                32768                processes \n"
    )
    return proc


def test_an_engine_with_the_capability_is_asked_for_everything(tmp_path: Path) -> None:
    """Locked memory without limit, a large stack, and the engine's own number of files."""
    proc = _process(tmp_path, capabilities=_ALL_CAPABILITIES, locked="8388608", files="524288")
    assert wanted_limits(7, proc) == {"memlock": UNLIMITED, "stack": 67108864, "nofile": 524288}


def test_an_engine_without_the_capability_is_not_asked_to_lift_locked_memory(tmp_path: Path) -> None:
    """What the engine's process visibly cannot grant is not tried; nor left to Podman, which would ask for more."""
    proc = _process(tmp_path, capabilities=_NO_SYS_RESOURCE, locked="8388608", files="20000")
    assert wanted_limits(7, proc) == {"stack": 67108864, "nofile": 20000, "nproc": 32768}


def test_an_engine_without_limits_of_its_own_needs_no_capability(tmp_path: Path) -> None:
    """Passing on what one has is always allowed; the number of files stays within what systems give."""
    proc = _process(tmp_path, capabilities=_NO_SYS_RESOURCE, locked="unlimited", files="1073741816")
    assert wanted_limits(7, proc) == {
        "memlock": UNLIMITED,
        "stack": 67108864,
        "nofile": 1048576,
        "nproc": 32768,
    }


@pytest.mark.parametrize("pid", [None, 8])
def test_an_engine_that_cannot_be_seen_is_asked(pid: int | None, tmp_path: Path) -> None:
    """Without sight of the engine's process its refusal tells."""
    assert wanted_limits(pid, tmp_path) == {"memlock": UNLIMITED, "stack": 67108864}


def test_shared_memory_is_half_of_what_the_node_may_use() -> None:
    """A node with a limit gets half of it, one without half of the machine's memory, none more than 64 GiB."""
    assert shm_bytes(4 * 1024**3) == 2 * 1024**3
    assert shm_bytes(1024**4) == 64 * 1024**3
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    assert shm_bytes(None) == pytest.approx(min(memory_kb * 512, 64 * 1024**3), rel=0.01)
