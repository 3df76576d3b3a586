"""The program of a Slurm job: `python -m ...slurm_job FOLDER` says where it listens, waits for its client, runs a node.

The folder lies on the cluster's shared disk and opens for the job's user only. It holds the job's settings and its
certificate, which is removed there at once. What follows is as in a task of a swarm: see `swarm_task`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from skyward.model.protocol import EXIT_CONFIG, WORK_FOLDER
from skyward.runner.entry.swarm_task import SwarmTask, listen_at, local_address
from skyward.system import socket
from skyward.wire.tls import Identity

SETTINGS, IDENTITY, ADDRESS = "settings.json", "identity.json", "address.json"  # files of the folder


def main(folder: Path) -> int:
    """Run the job to its end; the exit status is that of the node, 0 where it has ended as it should."""
    try:
        settings = json.loads((folder / SETTINGS).read_text())
        identity = Identity(**json.loads((folder / IDENTITY).read_text()))
        (folder / IDENTITY).unlink()
        listener = listen_at(local_address(settings["controllers"]), (0,))
        _announce(folder, listener)
    except (OSError, ValueError, KeyError, TypeError) as error:
        os.write(1, f"skyward: The job cannot wait for its client: {error}\n".encode())
        return EXIT_CONFIG
    os.environ.update(settings["env"])
    with tempfile.TemporaryDirectory(prefix="skyward-") as private:
        work = Path(private) / WORK_FOLDER
        work.mkdir()
        os.chdir(work)
        return SwarmTask(listener, identity, float(settings["lease_s"])).run()


def _announce(folder: Path, listener: socket.socket) -> None:
    """Write where the job listens; whoever reads the file finds nothing or all of it."""
    address, port = listener.getsockname()[:2]
    draft = folder / f"{ADDRESS}.draft"
    draft.write_text(json.dumps({"address": address, "port": port, "machine": socket.gethostname()}))
    draft.replace(folder / ADDRESS)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
