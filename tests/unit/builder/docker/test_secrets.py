from pathlib import Path

from skyward.builder.docker.build import handed_over


def test_a_command_in_a_user_namespace_gets_files(tmp_path: Path) -> None:
    """Rootless Podman may not open what this process has open; the files are for this user alone."""
    with handed_over({"TOKEN": b"word"}, tmp_path, is_rootless_podman=True) as words:
        assert words == ["--secret", "id=TOKEN,type=file,src=secrets/TOKEN"]
        assert (tmp_path / "secrets/TOKEN").read_bytes() == b"word"
        assert (tmp_path / "secrets/TOKEN").stat().st_mode & 0o777 == 0o600
