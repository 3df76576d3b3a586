"""Runs on a machine reached by SSH: their records, output and end, across cuts of the connection.

The machine is an sshd on loopback with a state directory of its own; a run on it is a program that journals.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from skyward.cli.main import main
from skyward.errors import ProviderError
from skyward.model.ssh import SshHost
from skyward.records.run import RunFacts, RunRecord
from skyward.runs.find import Run, find_run
from skyward.runs.follow import follow
from skyward.runs.there import RunsThere
from tests.e2e.sshd import Server, Site
from tests.e2e.sshd import site as site

PROGRAM = Path(__file__).parents[1] / "unit" / "runs" / "printing.py"
Start = Callable[..., "subprocess.Popen[str]"]
Find = Callable[[str], Run]


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of runs on the machine; that of this user is empty."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "here"))
    return tmp_path / "there" / "skyward" / "runs"


@pytest.fixture
def server(site: Site, there: Path) -> Server:
    """The machine."""
    return site.serve(f"SetEnv=XDG_STATE_HOME={there.parents[1]}")


@pytest.fixture
def find(site: Site, server: Server) -> Iterator[Find]:
    """Find a run on it."""
    with ExitStack() as held:
        yield lambda name: held.enter_context(closing(find_run(name, [site.host(server, site.known(server))])))


@pytest.fixture
def start(there: Path) -> Iterator[Start]:
    """Start a run on the machine."""
    running: list[subprocess.Popen[str]] = []

    def begin(
        name: str, lines: int = 3, pause_s: float = 0.0, end: str = "0", held: tuple[int, ...] = ()
    ) -> subprocess.Popen[str]:
        words = [sys.executable, str(PROGRAM), str(there / name), str(lines), str(pause_s), end, *map(str, held)]
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        running.append(process)
        assert process.stdout
        assert process.stdout.readline() == "started\n"
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def pointer_to(host: SshHost) -> RunRecord:
    """The record of run train-1 that the machine which has started it there keeps."""
    return RunRecord(
        id="train-1",
        program="train.py",
        started=time.time(),
        directory="/",
        user="me@here",
        place=host.name,
        key=host.key,
        known_hosts=host.known_hosts,
        detached=True,
    )


def test_runs_of_a_machine_are_listed_and_ended(
    site: Site, server: Server, start: Start, find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And read; a name that leads out of the directory here is refused."""
    there = RunsThere(site.host(server, site.known(server)))
    assert there.names() == []
    done, killed = start("done", 3), start("killed", 2, 0.0, "kill")
    running = start("running", 1000, 0.1)
    done.wait()
    killed.wait()

    assert [facts.record.id for facts in there.runs(ended=False)] == ["running"]
    phases = {facts.record.id: facts.phase for facts in there.runs(ended=True)}
    assert phases == {"done": "ended", "killed": "killed", "running": "running"}
    there.ask_down("running")
    assert running.wait(60) == -signal.SIGTERM
    run = find("done")
    assert run.there
    monkeypatch.setattr(run.there, "_files", lambda _: iter([("../../.bashrc", 5, 0)]))
    with pytest.raises(ProviderError, match="would lie outside of"):
        run.refresh("files")
    there.close()


def test_files_of_any_name_and_content_arrive_as_they_are(start: Start, there: Path, find: Find) -> None:
    """Blanks, quotes, newlines, bytes that are no text; no link is followed. What is replaced is fetched again."""
    start("train").wait()
    folder = there / "train" / "files"
    (folder / "of 'epoch' 1").mkdir(parents=True)
    contents = {"plain": b"", "of 'epoch' 1/$(id)\n\"x\"": bytes(range(256)) * 9000, "ümläut *": b"\n\n"}
    (folder / "link").symlink_to("/etc/passwd")
    run = find("train")

    for plain in (b"", b"later"):
        contents["plain"] = plain
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        run.refresh("files")
        arrived = [path for path in (run.folder / "files").rglob("*") if path.is_file()]
        assert {str(path.relative_to(run.folder / "files")): path.read_bytes() for path in arrived} == contents


def test_a_connection_that_is_cut_goes_on_where_it_was(start: Start, find: Find) -> None:
    """Each line once, in order, and it is said. The run prints no more until its connection has been cut."""
    process = start("train", 150, held=(20, 90))
    said: list[str] = []
    entries = []
    run = find("train")
    run.outlast(said.append)
    for entry in follow(run, "output"):
        entries.append(entry)
        if len(entries) in (20, 90):
            assert run.there and run.there._connection
            run.there._connection.kill()
            assert process.stdin
            process.stdin.write("go on\n")
            process.stdin.flush()

    assert [entry.fields["text"] for entry in entries] == [f"line {n}\n" for n in range(150)]
    assert (run.facts.phase, run.facts.status) == ("ended", 0)
    assert sum("answers again" in each for each in said) == 2


def test_a_pointer_leads_to_the_machine(
    site: Site, server: Server, there: Path, tmp_path: Path, start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    """A record here that says where the run is, with the key and the host keys to use."""
    start("train-1", 5).wait()
    host = site.host(server, site.known(server))
    pointer_to(host).write(tmp_path / "here" / "skyward" / "runs" / "train-1")

    assert main(["logs", "train"]) == 0
    assert capfd.readouterr().out == "line 0\nline 1\nline 2\nline 4\n"
    (there / "train-1" / "run.jsonl").rename(there / "run.jsonl")
    assert main(["down", "train-1"]) == 6
    assert f"{host.name} has no record of run train-1 any more: it was removed there." in capfd.readouterr().err
    server.process.terminate()
    server.process.wait()
    assert main(["attach", "train"]) == 6
    assert f"Run train-1 was started on {host.name}, which did not answer; it may still run there." in (
        capfd.readouterr().err
    )
    (tmp_path / "here" / "skyward" / "runs" / "train-1" / "there.jsonl").unlink()
    assert main(["ps"]) == 6
    listed = capfd.readouterr()
    assert f"skyward: runs on {host.name} cannot be read: " in listed.err
    (row,) = [line for line in listed.out.splitlines() if line.startswith("train-1")]
    assert "machine lost" in row


def test_results_are_fetched_before_the_machine_is_gone(
    site: Site, server: Server, there: Path, tmp_path: Path, start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    """By attach, once: output, values and files; the machine is told, and not asked again."""
    start("train-1", 5).wait()
    (there / "train-1" / "saved").mkdir()
    (there / "train-1" / "saved" / "loss.json").write_text("0.5\n")
    (there / "train-1" / "files" / "a").mkdir(parents=True)
    (there / "train-1" / "files" / "a" / "weights").write_bytes(os.urandom(3_000_000))
    host = site.host(server, site.known(server))
    pointer_to(host).write(tmp_path / "here" / "skyward" / "runs" / "train-1")

    assert main(["attach", "train"]) == 0
    assert RunFacts.of(there / "train-1").is_collected  # type: ignore[union-attr]
    server.process.terminate()
    server.process.wait()
    capfd.readouterr()

    assert main(["result", "train", "--json", "--into", str(tmp_path / "got")]) == 0
    told = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [each["value"] for each in told if each["event"] == "value"] == [0.5]
    weights = there / "train-1" / "files" / "a" / "weights"
    assert (tmp_path / "got" / "files" / "a" / "weights").read_bytes() == weights.read_bytes()
    assert main(["logs", "train"]) == 0
    assert capfd.readouterr().out == "line 0\nline 1\nline 2\nline 4\n"
