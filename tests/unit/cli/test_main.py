"""The command line's own part: its commands, its exit statuses, what it prints of an error."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import click
import pytest

from skyward import errors
from skyward._version import __version__
from skyward.cli import commands
from skyward.cli.commands import COMMANDS, status_of
from skyward.cli.main import main

STATUSES = {
    "ConfigError": 2,
    "UnknownNameError": 2,
    "PluginError": 3,
    "BuildError": 4,
    "RegistryError": 4,
    "EngineMissingError": 5,
    "NodeStartError": 6,
    "NoActivePoolError": 7,
    "WorkerLostError": 8,
    "VersionError": 9,
    "SkywardError": 1,
}


@pytest.mark.parametrize(("name", "status"), STATUSES.items())
def test_every_kind_of_error_has_a_status(name: str, status: int) -> None:
    """The branch of the error tree decides."""
    kind = getattr(errors, name)

    assert status_of(kind.__new__(kind)) == status


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each entry of the table is a command that explains itself."""
    assert main([name, "--help"]) == 0
    assert f"Usage: skyward {name}" in capsys.readouterr().out


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == main(["--version"]) == 0
    assert capsys.readouterr().out.endswith(f"skyward {__version__}\n")


@pytest.mark.parametrize("words", [["nothing"], ["build"], ["build", "--what"], ["image", "prune", "--keep", "x"]])
def test_a_wrong_command_line_is_status_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong is said on standard error."""
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Usage: skyward" in err


def test_an_error_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback, on standard error."""

    @click.command()
    def command() -> None:
        raise errors.PluginError("It broke.")

    monkeypatch.setitem(COMMANDS, "fail", "the test's")
    monkeypatch.setattr(commands, "import_module", lambda _: SimpleNamespace(command=command))
    assert main(["fail"]) == 3
    assert capsys.readouterr() == ("", "skyward: It broke.\n")


@pytest.mark.parametrize("module", ["click", "skyward.runs.find"])
def test_an_interrupt_while_a_command_is_loaded_has_no_traceback(module: str) -> None:
    """Whatever is imported at that moment."""
    code = (
        "import os, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "from skyward.cli.main import main\n"
        "sys.exit(main(['attach', 'train']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nskyward: Interrupted.\n")


def test_the_overview_loads_no_command_that_is_not_asked_for() -> None:
    """The table's modules are loaded on demand, and rich only for a live list."""
    code = (
        "import sys\nfrom skyward.cli.main import main\nmain(['image', 'rm', '--help'])\n"
        "print(*(name for name in sys.modules if name.split('.')[0] in ('rich', 'docker', 'skyward')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())

    assert "skyward.cli.image" in loaded
    assert not {"skyward.cli.build", "rich", "docker"} & loaded
