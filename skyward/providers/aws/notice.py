"""Spot notices: AWS tells a machine two minutes before it takes it away, and the machine tells us.

A service of the machine asks the metadata service for `spot/instance-action`, which nobody else there can (see
metadata.py), and writes the answer into a file; this one waits for the file through the pool's SSH connection.
"""

from __future__ import annotations

import json
import logging
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from skyward.model.ssh import SshHost
from skyward.providers.aws import metadata
from skyward.system import threading

_log = logging.getLogger(__name__)
_SCRIPT = r"""
[ ! -e "$2" ] || { echo blind; exit 0; }
while sleep 1; do
    [ -s "$1" ] && exec cat "$1"
done
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What AWS is going to do with a machine.

    Attributes:
        action: "terminate", "stop" or "hibernate".
        time: when, in UTC as AWS writes it.
    """

    action: str
    time: str

    @property
    def left_s(self) -> float:
        """Seconds until then, by the clock of this machine.

        Raises:
            ValueError: AWS has written the time in another form.
        """
        return (datetime.fromisoformat(self.time) - datetime.now(UTC)).total_seconds()


class NoticeWatch:
    """Listens for the notice of one machine until its connection ends.

    Args:
        machine: its id.
        pool: whose it is.
        through: the machine, through a connection that is open.
        told: is called with the notice and the seconds that are left, in a thread of its own.

    Attributes:
        notice: what AWS is going to do; None while nothing is known.
    """

    def __init__(self, machine: str, pool: str, through: SshHost, told: Callable[[Notice, float], None]) -> None:
        self._told = told
        self.notice: Notice | None = None
        self._who = f"The machine {machine} of pool {pool}"
        self._asking = subprocess.Popen(
            through.command("sh", "-c", _SCRIPT, "sh", metadata.NOTICE, metadata.BLIND),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is the client's alone
        )
        threading.Thread(target=self._listen, name=f"notice-{machine}", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._asking.kill()

    def _listen(self) -> None:
        said, _ = self._asking.communicate()
        if not said.strip():
            return
        if said.strip() == "blind":
            _log.warning(
                "%s cannot tell when AWS takes it away: its firewall has no match for control groups (xt_cgroup), so "
                "that its metadata service is closed to everybody.",
                self._who,
            )
            return
        try:
            found = json.loads(said)
            notice = Notice(action=str(found["action"]), time=str(found["time"]))
            left_s = notice.left_s
        except (ValueError, KeyError, TypeError):
            _log.warning("%s got a notice from AWS in an unknown form: %s", self._who, said.strip())
            return
        self.notice = notice
        _log.warning("%s will be taken away by AWS at %s (%s).", self._who, notice.time, notice.action)
        self._told(notice, left_s)
