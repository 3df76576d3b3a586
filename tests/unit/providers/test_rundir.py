import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from skyward.errors import ProviderError
from skyward.nodes import run_directory as rundir
from skyward.nodes.process_id import ProcessId
from skyward.nodes.run_directory import PoolDirectory, note_process, pool_directories, share, sweep_orphans


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(rundir, "runtime_base", lambda: tmp_path)
    monkeypatch.setattr(rundir, "temporary_base", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def gone() -> ProcessId:
    """A process that has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        owner = ProcessId.of(process.pid)
        assert not owner.is_gone()
    return owner


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_owner_can_open_anything(base: Path) -> None:
    """Directories are 0700, the key's file 0600 whatever the umask is."""
    before = os.umask(0)
    try:
        directory = PoolDirectory.create("p", base)
        node = directory.add(0, b"secret")
    finally:
        os.umask(before)
    assert [_mode(directory.path), _mode(node), _mode(node / "key")] == [0o700, 0o700, 0o600]
    assert (node / "key").read_bytes() == b"secret"


def test_a_pool_directory_is_made_once(base: Path) -> None:
    """A directory that exists is never taken over, since somebody else may have made it."""
    PoolDirectory.create("p", base)
    with pytest.raises(ProviderError, match="skyward-p of pool p cannot be created"):
        PoolDirectory.create("p", base)


def test_what_ended_clients_left_is_swept(base: Path, gone: ProcessId) -> None:
    """The directory of an ended client goes, that of a living one stays."""
    alive, dead = PoolDirectory.create("alive", base), PoolDirectory.create("dead", base)
    dead.add(0, b"k")
    (dead.path / "owner").write_text(gone.text)
    sweep_orphans()
    assert alive.path.exists()
    assert not dead.path.exists()


def test_nodes_that_outlive_their_client_keep_their_directory(base: Path, gone: ProcessId) -> None:
    """Until its lease ends, a process whose client is gone can still be found."""
    directory = PoolDirectory.create("p", base)
    (directory.path / "owner").write_text(gone.text)
    note_process(directory.add(0, b"k"), os.getpid(), node=0, name="skyward-p-0")
    sweep_orphans()
    (left,) = pool_directories()
    (about,) = (about for about, _ in left.processes())
    assert (about["node"], about["name"], about["directory"].parent) == (0, "skyward-p-0", directory.path)


def test_owners_in_other_namespaces_are_never_called_gone() -> None:
    """A process number means nothing in another process namespace."""
    assert not ProcessId(2**22, "1", "pid:[1]").is_gone()


def test_a_reused_process_number_is_another_process() -> None:
    """The start time tells a process from a later one with the same number."""
    me = ProcessId.of(os.getpid())
    assert not me.is_gone()
    assert ProcessId(me.pid, "1", me.namespace).is_gone()
    assert ProcessId.parse(me.text) == me
    assert ProcessId.parse("nonsense") is None


@pytest.mark.parametrize(
    ("owner", "mode", "key_mode"), [(os.geteuid(), 0o700, 0o600), (None, 0o777, 0o644), (10001, 0o700, 0o600)]
)
def test_a_directory_is_shared_with_the_user_of_a_container(
    tmp_path: Path, owner: int | None, mode: int, key_mode: int
) -> None:
    """It opens for that user only; where nobody can tell who that is, the pool's directory keeps the others out."""
    if owner not in (None, os.geteuid()) and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    directory = PoolDirectory.create("feed0001", tmp_path)
    node = directory.add(0, b"k")
    share(node, owner)
    assert (node.stat().st_mode & 0o777, (node / "key").stat().st_mode & 0o777) == (mode, key_mode)
    for path in (node, node / "key"):
        assert path.stat().st_uid == (os.geteuid() if owner is None else owner)
    assert directory.path.stat().st_mode & 0o777 == 0o700


def test_a_directory_with_anything_in_it_that_names_no_client_is_never_swept(base: Path) -> None:
    """People call their own directories so, and files in them "owner"."""
    for folder in (base / "skyward-results", base / "skyward-run7"):
        folder.mkdir()
        (folder / "weights").write_text("months of work")
        os.utime(folder, (0, 0))
    (base / "skyward-run7" / "owner").write_text("Ada")
    os.utime(base / "skyward-run7", (0, 0))
    sweep_orphans()
    assert (base / "skyward-results" / "weights").exists()
    assert (base / "skyward-run7" / "weights").exists()


def test_links_that_others_plant_are_no_directories_of_pools(
    base: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In a directory that all can write to, one that leads to files of this user is not followed; nor a pipe opened."""
    mine = tmp_path_factory.mktemp("mine")
    (mine / "0").mkdir()
    (mine / "0" / "process").write_text('{"process": "1,1,", "node": 0}')
    (base / "skyward-11111111").symlink_to(mine)
    os.mkfifo(base / "skyward-22222222")
    assert list(pool_directories()) == []
    sweep_orphans()
    assert (mine / "0" / "process").exists()


@pytest.mark.parametrize("planted", ["link", "open", "another user's"])
def test_a_directory_that_others_plant_is_no_kept_pool_s(
    base: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    """Others can know the name of a pool that was kept, and make its directory once it is gone, as after a reboot."""
    path = base / "skyward-p"
    if planted == "link":
        path.symlink_to(tmp_path_factory.mktemp("theirs"))
    else:
        path.mkdir(mode=0o700)
        path.chmod(0o777 if planted == "open" else 0o700)
    if planted == "another user's":
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ProviderError, match="skyward-p of pool p is another user's, or opens for others"):
        PoolDirectory.create("p", base, "warm")
    assert list(path.iterdir()) == []


def test_what_a_killed_process_left_in_a_private_directory_is_swept(base: Path) -> None:
    """The next client of this user removes keys and sockets; while the process lives, nobody does."""
    program = (
        "import os, sys; from pathlib import Path; from skyward.nodes import run_directory as rundir;"
        "rundir.runtime_base = lambda: Path(sys.argv[1]);"
        "held = rundir.private_directory(); folder = held.__enter__();"
        "(folder / 'key').write_text('k'); print(folder, flush=True);"
        "input()"
    )
    words = [sys.executable, "-c", program, str(base)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        folder = Path(process.stdout.readline().strip())
        assert _mode(folder) == 0o700
        sweep_orphans()
        assert (folder / "key").exists()
        process.kill()
    sweep_orphans()
    assert not folder.exists()
