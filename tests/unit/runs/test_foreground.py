"""`skyward run` in the foreground: as `python` would run the program, with its output kept."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skyward.nodes.process_id import ProcessId
from tests import journals
from tests.waiting import wait_until

SKYWARD = [sys.executable, "-m", "skyward", "run"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the records of this test's runs are; what it runs is started beside them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "state" / "skyward" / "runs"


def program(text: str, name: str = "program.py") -> str:
    """A program in the working directory."""
    Path(name).write_text(text)
    return name


def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `skyward run`."""
    return subprocess.run([*SKYWARD, *words], capture_output=True, text=True, check=False, timeout=60, **options)


def kept(folder: Path) -> dict[str, str]:
    """What a run's record has of each stream."""
    found = {"out": "", "err": ""}
    for entry in journals.read(folder / "output"):
        found[entry.fields["stream"]] += entry.fields["text"]
    return found


def only(home: Path) -> Path:
    """The directory of the only run."""
    (folder,) = home.iterdir()
    return folder


def test_a_program_finds_what_python_would_give_it(home: Path) -> None:
    """Its arguments, `__main__`, sys.path, standard input, both streams and its exit status."""
    program("word = 'beside'", "beside.py")
    name = program(
        "import sys, beside\n"
        "print(sys.argv, __name__, beside.word, sys.stdin.read(), flush=True)\n"
        "print('é', file=sys.stderr)\n"
        "sys.exit(7)\n"
    )

    done = run(name, "--debug", "-m", "--", "--name=x", input="typed")

    assert done.stdout == f"['{name}', '--debug', '-m', '--', '--name=x'] __main__ beside typed\n"
    assert (done.stderr, done.returncode) == ("é\n", 7)
    folder = only(home)
    assert kept(folder) == {"out": done.stdout, "err": done.stderr}
    assert journals.end(folder) == (7, None)
    record = journals.facts(folder).record
    assert (record.program, record.arguments) == (name, ["--debug", "-m", "--", "--name=x"])
    assert folder.stat().st_mode & 0o077 == 0


def test_a_module_runs_as_with_python(home: Path) -> None:
    """`-m` names a module, which may be a part of a package; options after it are its own, which is told of ours."""
    Path("package").mkdir()
    program("", "package/__init__.py")
    program("import sys; print(sys.argv[1:], __package__)", "package/part.py")

    done = run("-m", "package.part", "-m", "--detach")

    assert (done.stdout, done.returncode) == ("['-m', '--detach'] package\n", 0)
    assert "`skyward run --detach PROGRAM` detaches" in done.stderr
    assert only(home).name.startswith("part-")


@pytest.mark.parametrize(
    "words", [["none.py"], ["--json", "-m", "this"], ["--detach", "--env", "NOT_SET_7", "-m", "this"]]
)
def test_what_cannot_run_leaves_no_record(home: Path, words: list[str]) -> None:
    """It is an error of the command line, before anything is made."""
    assert run(*words).returncode == 2
    assert not home.exists()


def test_a_name_is_used_once(home: Path) -> None:
    """`--name` names the run; a second run of that name is refused, and so is what is no name."""
    name = program("print('once')")
    assert [run("--name", each, name).returncode for each in ("mine", "mine", "../up")] == [0, 2, 2]
    assert kept(home / "mine")["out"] == "once\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_reach_the_program(home: Path, number: signal.Signals) -> None:
    """A signal sent to the command goes to the program; the exit status is what it makes of it."""
    name = program(
        "import signal, sys, time\n"
        "got = []\n"
        f"signal.signal({int(number)}, lambda n, _: got.append(n))\n"
        "print('ready', flush=True)\n"
        "while not got: time.sleep(0.1)\n"  # not one long sleep: no handler runs for a signal just before it
        "print('got', int(got[0]), flush=True); sys.exit(5)\n"
    )
    process = subprocess.Popen([*SKYWARD, name], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"

    process.send_signal(number)

    assert process.communicate(timeout=60)[0] == f"got {int(number)}\n"
    assert process.returncode == 5


SHELL = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = subprocess.Popen(sys.argv[1:], process_group=0)
os.tcsetpgrp(0, job.pid)
def hang_up(*_):  # as killpg, but the program is told first, and has heard it before the others are
    program = int(open('program').read())
    os.kill(program, signal.SIGHUP)
    while not os.path.exists('heard'):
        time.sleep(0.01)
    if job.pid != program:
        os.kill(job.pid, signal.SIGHUP)
    os.kill(job.pid, signal.SIGUSR1)
signal.signal(signal.SIGHUP, hang_up)
sys.exit(job.wait())
"""


@pytest.mark.parametrize("has_shell", [True, False])
def test_a_program_hears_once_that_its_terminal_is_closed(home: Path, has_shell: bool) -> None:
    """As `python` does: from the shell, which tells each process of a job, or from the command if there is no shell."""
    name = program(
        "import os, signal, time\n"
        "heard = []\n"
        "def hear(number, _):\n"
        "    heard.append(int(number))\n"
        "    open('heard', 'w').write(f'{heard}')\n"
        f"    if number == signal.SIGUSR1 or not {has_shell}: os._exit(5)\n"
        "signal.signal(signal.SIGHUP, hear)\n"
        "signal.signal(signal.SIGUSR1, hear)\n"
        "open('program', 'w').write(f'{os.getpid()}')\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.1)\n"  # not one long sleep, as above
    )
    shell = [sys.executable, "-c", SHELL] if has_shell else []
    for words in ([sys.executable, name], [*SKYWARD, name]):
        pid, terminal = pty.fork()
        if not pid:
            os.execv(sys.executable, [*shell, *words])
        _until(terminal, b"ready\r\n")
        os.close(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
        assert Path("heard").read_text() == ("[1, 10]" if has_shell else "[1]")
        Path("heard").unlink()


def test_a_program_that_is_killed_is_reported_as_shells_do(home: Path) -> None:
    """128 and the signal's number, and the record names the signal; what it printed before is there."""
    done = run(program("import os; print('so far', flush=True); os.kill(os.getpid(), 9)"))
    assert (done.stdout, done.returncode) == ("so far\n", 137)
    assert journals.end(only(home)) == (137, "ended by SIGKILL")


def test_the_program_ends_with_a_killed_command(home: Path) -> None:
    """`kill -9` of `skyward run` in the foreground leaves no program behind: it gets SIGTERM."""
    name = program("import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    process = subprocess.Popen([*SKYWARD, name], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    with process.stdout:
        child = ProcessId.of(int(process.stdout.readline()))
        process.kill()
        process.wait(60)

    wait_until(child.is_gone, 60)
    assert journals.facts(only(home)).end is None and not journals.facts(only(home)).is_alive


def test_who_reads_no_more_is_noticed_by_the_program(home: Path) -> None:
    """As in `python program.py | head -1`: a program that prints without end finds its output closed."""
    name = program("while True: print('y' * 1000)")
    process = subprocess.Popen([*SKYWARD, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stderr
    process.stdout.readline()
    process.stdout.close()

    with process.stderr:
        assert "BrokenPipeError" in process.stderr.read()
    assert process.wait(60) != 0


def test_a_terminal_stays_a_terminal(home: Path) -> None:
    """Standard input and outputs are terminals of the size of the real one; Ctrl-C arrives once; order is kept."""
    name = program(
        "import os, sys, time\n"
        "print([os.isatty(n) for n in (0, 1, 2)], os.get_terminal_size(), input(), flush=True)\n"
        "print('a\\rb', end='\\r\\n', flush=True)\n"
        "for n in range(50): print('err', n, file=sys.stderr); print('out', n)\n"
        "try:\n    print('sleeping', flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    try: time.sleep(1); print('once')\n"
        "    except KeyboardInterrupt: print('twice')\n"
    )
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, [*SKYWARD, name])
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 30, 71, 0, 0))
    os.write(terminal, b"typed\n")
    shown = _until(terminal, b"sleeping\r\n")
    os.write(terminal, b"\x03")
    shown += _until(terminal, None)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)

    text = shown.decode()
    assert "[True, True, True] os.terminal_size(columns=71, lines=30) typed\r\n" in text
    assert "a\rb\r\r\n" in text
    assert "".join(f"err {n}\r\nout {n}\r\n" for n in range(50)) in text
    assert "once\r\n" in text
    assert os.waitstatus_to_exitcode(status) == 0
    assert kept(only(home))["out"].endswith("err 49\nout 49\nsleeping\nonce\n")


def _until(terminal: int, wanted: bytes | None) -> bytes:
    """What a terminal shows, to some bytes or to its end."""
    shown = b""
    while wanted is None or wanted not in shown:
        try:
            data = os.read(terminal, 4096)
        except OSError:  # nobody has it open any more
            data = b""
        if not data:
            assert wanted is None, shown
            return shown
        shown += data
    return shown
