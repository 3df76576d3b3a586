from pathlib import Path

import pytest

from skyward.engine.container import gives_gpus, visible_gpus


def _engine_with_path(proc: Path, path: str) -> Path:
    (proc / "7").mkdir(parents=True)
    (proc / "7" / "environ").write_bytes(b"A=1\0PATH=" + path.encode() + b"\0HOME=/\0")
    return proc


def test_gpus_are_counted_by_what_the_driver_shows(tmp_path: Path) -> None:
    """One directory per GPU; a machine without the driver knows nothing."""
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "gpus" / bus).mkdir(parents=True)
    assert visible_gpus(tmp_path / "gpus") == 2
    assert visible_gpus(tmp_path / "none") is None


@pytest.mark.parametrize("info", [{"Runtimes": {"nvidia": {}}}, {"DiscoveredDevices": [{"ID": "nvidia.com/gpu=0"}]}])
def test_a_registered_runtime_or_device_is_enough(info: dict[str, object], tmp_path: Path) -> None:
    """An engine that lists the runtime or the devices gives GPUs."""
    assert gives_gpus(info, None, tmp_path) is True


def test_the_hook_counts_where_the_engine_looks_for_it(tmp_path: Path) -> None:
    """Without a runtime, an engine gives GPUs when the hook is on its own PATH."""
    tools = tmp_path / "tools"
    tools.mkdir()
    proc = _engine_with_path(tmp_path / "proc", f"/dev/null/none:{tools}")
    assert gives_gpus({"Runtimes": {"runc": {}}}, 7, proc) is False
    hook = tools / "nvidia-container-runtime-hook"
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    assert gives_gpus({"Runtimes": {"runc": {}}}, 7, proc) is True


def test_an_engine_that_cannot_be_seen_has_to_be_tried(tmp_path: Path) -> None:
    """Neither yes nor no is said about a process that cannot be looked into."""
    assert gives_gpus({}, 8, tmp_path) is None
    assert gives_gpus({}, None, tmp_path) is None
