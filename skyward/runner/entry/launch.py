"""Starts a node's runner in a container that was there before the node: what `claimed` and `standby` share."""

from __future__ import annotations

import ctypes
import os
import pwd
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skyward.model.instance import CHANNEL_VAR, ENV_VAR, KEY_FILE, RUN_DIR_VAR, SETTINGS_VAR
from skyward.model.rights import ACCOUNT, HOME
from skyward.runner.children import wait_unreaped
from skyward.system import socket

_PORTS = (10_000, 20_000)  # below those that the kernel gives to connections, and those where Swarm tasks listen
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38


def start_runner(
    order: Mapping[str, Any],
    run_dir: Path,
    environment: Mapping[str, str],
    channel: str = "",
    stdout: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start the runner of a node, in a session of its own.

    Args:
        order: what the node is to be, as `skyward.nodes.node.Launch.order` writes it.
        run_dir: the node's run directory.
        environment: the variables to which those of the order are added.
        channel: what names the encrypted channel that clients come through, hexadecimal; empty if there is none.
        stdout: where its output goes, as `subprocess.Popen` takes it.
    """
    with open(os.open(run_dir / KEY_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(bytes.fromhex(order["key"]))
    own = {ENV_VAR: order["compute_pool"], SETTINGS_VAR: order["runner"], RUN_DIR_VAR: str(run_dir)}
    if channel:
        own[CHANNEL_VAR] = channel
    return subprocess.Popen(
        [sys.executable, "-m", "skyward.runner"],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=None if stdout is None else subprocess.STDOUT,
        env={**environment, **_account_variables(), **order["env"], **own},
        start_new_session=True,
    )


def end_group_with(runner: subprocess.Popen[bytes]) -> None:
    """Wait until a runner has ended, and end what it has started."""
    wait_unreaped(runner.pid)
    kill_group(runner)


def kill_group(runner: subprocess.Popen[bytes]) -> None:
    """End a runner and what it has started; nothing happens if they have ended."""
    try:
        os.killpg(runner.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def exit_status(runner: subprocess.Popen[bytes]) -> int:
    """The exit status of a runner as shells give it: 128 and the number for signals. Waits for its end."""
    code = runner.wait()
    return 128 - code if code < 0 else code


def free_port() -> int:
    """A port on which nothing listens, for what frameworks agree on."""
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            try:
                sock.bind(("", random.randrange(*_PORTS)))  # noqa: S311 - guards nothing
            except OSError:
                continue
            return int(sock.getsockname()[1])


def gain_no_privileges() -> None:
    """Let neither this process nor any it starts gain privileges by the programs it runs: prctl(2), for good.

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(_PR_SET_NO_NEW_PRIVS, "PR_SET_NO_NEW_PRIVS")


def adopt_orphans() -> None:
    """Have processes that lose their parent become this process' children, whatever session they have gone to.

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, "PR_SET_CHILD_SUBREAPER")


def _prctl(option: int, name: str) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({name}) failed")


def _account_variables() -> dict[str, str]:
    """Name and home for a user that the image has only a number for, which many libraries look up; else nothing."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return {"HOME": HOME, "USER": ACCOUNT, "LOGNAME": ACCOUNT}
    return {}
