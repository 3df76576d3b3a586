"""The program of a pod: reads its settings and its certificate, waits for its client, runs a node.

Its client comes through the API server's port forwarding, which leads to loopback; one that is in the cluster itself
comes to the pod's own address. What follows is as in a task of a swarm: see `swarm_task`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from skyward.model.protocol import EXIT_CONFIG
from skyward.model.rights import WORK_DIR
from skyward.runner.entry.launch import gain_no_privileges, kill_group
from skyward.runner.entry.swarm_task import End, SwarmTask, listen_at, ports
from skyward.wire.tls import Identity

POD_VAR, ADDRESS_VAR = "SKYWARD_POD", "SKYWARD_POD_ADDRESS"
SECRET_DIR, IDENTITY = Path("/run/skyward"), "identity"  # the file of the pod's Secret, and where it is mounted


def main() -> int:
    """Run the pod to its end; the exit status is that of the node, 0 where it has ended as it should."""
    if Path.cwd() == Path("/"):  # there every top-level directory would be importable as a package
        os.chdir(WORK_DIR)
    settings, address = json.loads(os.environ.pop(POD_VAR)), os.environ.pop(ADDRESS_VAR)
    if not settings["gains_privileges"]:
        gain_no_privileges()
    try:
        identity = Identity(**json.loads((SECRET_DIR / IDENTITY).read_text()))
        where = address if settings["inside"] else "127.0.0.1"
        listener = listen_at(where, ports(settings["pool"], settings["number"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        os.write(1, f"skyward: The pod cannot wait for its client: {error}\n".encode())
        return EXIT_CONFIG
    return PodTask(listener, identity, float(settings["lease_s"])).run()


class PodTask(SwarmTask):
    """A pod before it is a node, and while it is one."""

    def _on_signal(self, number: int) -> None:  # noqa: ARG002
        """A pod that is deleted or evicted ends whole and at once: the client asks the cluster for the reason.

        Workers that ended one by one would be reported first, as if they had ended by themselves.
        """
        with self._lock:
            runner = self._runner
        if runner is None:
            self._events.put(End(0))
        else:
            kill_group(runner)


if __name__ == "__main__":
    sys.exit(main())
