from pathlib import Path

import pytest

from skyward.builder.docker.build import handed_over


@pytest.mark.parametrize("is_rootless_podman", [True, False])
def test_without_files_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_rootless_podman: bool) -> None:
    """On macOS, and for a command in a user namespace, they are files of the build's folder, for this user alone."""
    if not is_rootless_podman:
        monkeypatch.delattr("os.memfd_create")
    with handed_over({"TOKEN": b"word"}, tmp_path, in_files=is_rootless_podman) as words:
        assert words == ["--secret", "id=TOKEN,type=file,src=secrets/TOKEN"]
        assert (tmp_path / "secrets/TOKEN").read_bytes() == b"word"
        assert (tmp_path / "secrets/TOKEN").stat().st_mode & 0o777 == 0o600
