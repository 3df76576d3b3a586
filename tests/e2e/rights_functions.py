"""Functions that look at what they may do."""

from __future__ import annotations

from typing import Any

import skyward as sky


@sky.compute
def rights() -> dict[str, Any]:
    import getpass
    import os
    import pwd
    from pathlib import Path

    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    wanted = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs")
    return {
        "uid": os.getuid(),
        "gid": os.getgid(),
        "name": pwd.getpwuid(os.getuid()).pw_name,
        "user": getpass.getuser(),
        "home": str(Path.home()),
        "groups": os.getgroups() or [os.getgid()],
        "cwd": str(Path.cwd()),
        "by_entrypoint": os.environ.get("BY_ENTRYPOINT"),
        **{name: status[name].strip() for name in wanted},
    }


@sky.compute
def writable() -> list[str]:
    """The places that programs expect to write to, and cannot."""
    import socket
    import tempfile
    from pathlib import Path

    refused = []
    for place in (Path.cwd(), Path.home() / ".cache" / "pip", Path(tempfile.gettempdir()), Path("/dev/shm")):
        try:
            place.mkdir(parents=True, exist_ok=True)
            (place / "here").write_text("x")
        except OSError as error:
            refused.append(f"{place}: {error}")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
    return refused


@sky.compute
def written_by_root() -> int:
    """Do what takes root's privileges: give a file away."""
    import os
    from pathlib import Path

    path = Path("/tmp/given")
    path.touch()
    os.chown(path, 12345, 12345)
    return path.stat().st_uid
