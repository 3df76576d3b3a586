"""Watches for the notice that a cloud gives a machine before it takes it back.

A service of the machine (`metadata`) writes the notice into a file; a watch waits for that file over the pool's SSH
connection.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable

from skyward.model.ssh import SshHost
from skyward.providers.cloud import metadata
from skyward.providers.cloud.protocol import Notice
from skyward.system import threading

_log = logging.getLogger(__name__)
_WAIT_FOR_NOTICE = r"""
[ ! -e "$2" ] || { echo blind; exit 0; }
while sleep 1; do
    [ -s "$1" ] && exec cat "$1"
done
"""


class NoticeWatch:
    """Waits for the notice of one machine until its connection ends.

    Args:
        machine: the machine in sentences, such as "The machine i-0123 of pool 1a2b3c4d".
        cloud: the cloud in sentences.
        through: the machine, through a connection that is open.
        parse: reads the notice.
        tell: receives the notice, and words for it that complete a sentence about the machine; in its own thread.

    Attributes:
        notice: what the cloud is going to do with the machine; None while nothing is known.
    """

    def __init__(
        self,
        machine: str,
        cloud: str,
        through: SshHost,
        parse: Callable[[str], Notice],
        tell: Callable[[Notice, str], None],
    ) -> None:
        self._machine, self._cloud, self._parse, self._tell = machine, cloud, parse, tell
        self.notice: Notice | None = None
        self._waiting = subprocess.Popen(
            through.command("sh", "-c", _WAIT_FOR_NOTICE, "sh", metadata.NOTICE, metadata.NO_NOTICES),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is for the client alone
        )
        threading.Thread(target=self._wait, name="skyward-notice", daemon=True).start()

    def close(self) -> None:
        """Stop watching."""
        self._waiting.kill()

    def _wait(self) -> None:
        output = self._waiting.communicate()[0].strip()
        if not output:
            return
        if output == "blind":
            _log.warning(
                "%s cannot receive notices of %s before it is taken away: its firewall cannot match control groups "
                "(xt_cgroup), so its metadata service is closed to everybody.",
                self._machine,
                self._cloud,
            )
            return
        try:
            notice = self._parse(output)
        except (ValueError, KeyError, TypeError):
            _log.warning("%s got a notice from %s in an unknown form: %s", self._machine, self._cloud, output)
            return
        self.notice = notice
        text = f"will be taken away by {self._cloud} at {notice.at:%Y-%m-%dT%H:%M:%SZ} ({notice.action})"
        _log.warning("%s %s.", self._machine, text)
        self._tell(notice, text)
