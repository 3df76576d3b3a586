"""Trees as tar streams: what `cp -r` does at both ends, and what a stream from a node cannot do."""

from __future__ import annotations

import io
import os
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest

from skyward.runner.entry.copy import CopyError, Destination, name_of, pack, unpack

Notes = dict[str, str]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with all kinds of things."""
    folder = tmp_path / "data"
    (folder / "sub" / "empty").mkdir(parents=True)
    (folder / "run.sh").write_text("#!/bin/sh")
    (folder / "run.sh").chmod(0o755)
    (folder / "sub" / "secret").write_bytes(bytes(range(256)) * 5000)
    (folder / "sub" / "secret").chmod(0o600)
    os.link(folder / "run.sh", folder / "second name")
    (folder / "grün \n").write_text("odd")
    (folder / "link").symlink_to("sub/secret")
    (folder / "sub" / "empty").chmod(0o500)
    os.utime(folder / "run.sh", (1e9, 1e9))
    return folder


def copied(sources: list[str], into: str, *, trusted: bool = True) -> Notes:
    """Copy from here to here; what was not copied."""
    notes: Notes = {}
    stream = io.BytesIO()
    pack(sources, stream, notes.__setitem__)
    stream.seek(0)
    tops = None if trusted else {name_of(each) for each in sources}
    unpack(stream, Destination(into, several=len(sources) > 1), tops, notes.__setitem__)
    return notes


def contents(folder: Path) -> dict[str, tuple[int, object]]:
    """All that is in a folder: modes, and contents or targets."""
    found: dict[str, tuple[int, object]] = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = (0, str(path.readlink()))
        else:
            found[name] = (about.st_mode, path.read_bytes() if path.is_file() else None)
    return found


@pytest.mark.parametrize("trusted", [True, False])
def test_a_folder_is_copied_as_it_is(source: Path, tmp_path: Path, trusted: bool) -> None:
    """Contents, modes, times and links."""
    assert copied([str(source)], str(tmp_path / "copy"), trusted=trusted) == {}

    assert contents(tmp_path / "copy") == contents(source)
    assert (tmp_path / "copy" / "run.sh").stat().st_mtime == 1e9


@pytest.mark.parametrize(
    ("given", "into", "expected"),
    [
        ("data", "there", "there/data/run.sh"),
        ("data/", "there", "there/data/run.sh"),
        ("data", "there/", "there/data/run.sh"),
        ("data", "there/new", "there/new/run.sh"),
        ("data", "there/new/", "there/new/run.sh"),
        ("data/.", "there", "there/run.sh"),
        ("data/.", "there/new", "there/new/run.sh"),
        ("data/sub/..", "there", "there/run.sh"),
        ("data/run.sh", "there", "there/run.sh"),
        ("data/run.sh", "there/new", "there/new"),
        ("data/link", "there/new", "there/new"),
        ("data", "", "data/run.sh"),
    ],
)
def test_places_are_those_of_cp(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, into: str, expected: str
) -> None:
    """Into a folder that is there, else under the name that is given."""
    there = tmp_path / "work"
    (there / "there").mkdir(parents=True)
    monkeypatch.chdir(there)

    assert copied([f"{tmp_path}/{given}"], into) == {}

    assert (there / expected).is_file()
    assert not (there / expected).is_symlink()


def test_what_is_there_is_replaced_file_by_file(source: Path, tmp_path: Path) -> None:
    """Other files stay; what is in use keeps its old content. A pipe is left out."""
    os.mkfifo(source / "pipe")
    copy = tmp_path / "copy"
    copied([str(source)], str(copy))
    (copy / "own").write_text("mine")
    with (copy / "run.sh").open() as before:
        (source / "run.sh").write_text("new")
        assert copied([f"{source}/."], str(copy)) == {}
        assert before.read() == "#!/bin/sh"

    assert (copy / "run.sh").read_text() == "new"
    assert (copy / "own").read_text() == "mine"
    assert not (copy / "pipe").exists()


def test_files_that_cannot_be_read_are_left_out_and_named(tmp_path: Path) -> None:
    """Those that vanish or shrink while they are copied, too."""
    folder, notes = tmp_path / "data", dict[str, str]()
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / name).write_bytes(b"x" * 1_000_000)

    class Stream(io.BytesIO):
        def write(self, data: bytes, /) -> int:  # type: ignore[override]
            os.truncate(folder / "a", 1000)
            (folder / "b").unlink(missing_ok=True)
            return super().write(data)

    stream = Stream()
    pack([str(folder)], stream, notes.__setitem__)
    stream.seek(0)
    unpack(stream, Destination(str(tmp_path / "copy"), several=False))

    assert notes.keys() == {"data/a", "data/b"}
    assert (tmp_path / "copy" / "c").read_bytes() == b"x" * 1_000_000


def hostile(*members: tarfile.TarInfo | str) -> io.BytesIO:
    """A stream with these entries; a string is the name of a file with the content "evil"."""
    stream = io.BytesIO()
    with tarfile.open(mode="w|", fileobj=stream) as archive:
        for each in members:
            info = tarfile.TarInfo(each) if isinstance(each, str) else each
            info.size = 4 if info.isreg() else 0
            archive.addfile(info, io.BytesIO(b"evil") if info.isreg() else None)
    return io.BytesIO(stream.getvalue())


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "members",
    [
        ("../evil",),
        ("data/../../evil",),
        ("/tmp/skyward-evil",),
        ("other/evil",),
        ("evil",),
        (".bashrc",),
        (link("data/up", ".."), "data/up/evil"),
        (link("data/up", "/"), "data/up/tmp/skyward-evil"),
        (link("data/a", "b"), link("data/b", ".."), "data/a/evil"),
        (link("data", ".."), "data/evil"),
        (link("data/hard", "../kept", tarfile.LNKTYPE), "data/hard"),
        (link("data/hard", "data/../../kept", tarfile.LNKTYPE),),
        (link("data/dev", "", tarfile.CHRTYPE),),
        (link("data/kept", "../kept"),),
    ],
)
def test_a_stream_from_a_node_does_not_lead_elsewhere(
    tmp_path: Path, members: tuple[tarfile.TarInfo | str, ...]
) -> None:
    """Neither by names nor by links."""
    there = tmp_path / "there"
    there.mkdir()
    (tmp_path / "kept").write_text("kept")
    notes: Notes = {}

    with suppress(CopyError):
        unpack(hostile(*members, "data/fine"), Destination(str(there), several=False), {"data"}, notes.__setitem__)

    assert notes
    assert {path.name for path in tmp_path.iterdir()} == {"there", "kept"}
    assert (tmp_path / "kept").read_text() == "kept"
    assert {path.name for path in there.iterdir()} <= {"data"}
    assert not Path("/tmp/skyward-evil").exists()
    for path in there.rglob("*"):
        assert tmp_path / "there" in path.resolve().parents


def test_links_that_were_there_are_not_followed(tmp_path: Path) -> None:
    """A folder of the copy that is a link here is refused, as `cp -r` does."""
    there, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    (there / "data").mkdir(parents=True)
    elsewhere.mkdir()
    (there / "data" / "sub").symlink_to(elsewhere)
    folder = tarfile.TarInfo("data/sub")
    folder.type = tarfile.DIRTYPE
    notes: Notes = {}

    unpack(hostile(folder, "data/sub/x", "data/y"), Destination(str(there), several=False), {"data"}, notes.__setitem__)

    assert set(notes) == {"data/sub", "data/sub/x"}
    assert (there / "data" / "y").exists()
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("cut", [700, 1024, 100_000])
def test_a_stream_that_breaks_off_is_an_error(source: Path, tmp_path: Path, cut: int) -> None:
    stream = io.BytesIO()
    pack([str(source / "sub" / "secret")], stream, lambda *_: None)

    with pytest.raises(CopyError, match="The copy failed"):
        unpack(io.BytesIO(stream.getvalue()[:cut]), Destination(str(tmp_path), several=False))
