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


PLACES = ("/work", "/home/skyward", "/tmp", "/var/tmp", "/dev/shm")


@sky.compute
def leave() -> None:
    """Leave files that nobody can open, shared memory, a socket, and a program in a session of its own."""
    import ctypes
    import socket
    import subprocess
    from pathlib import Path

    for place in PLACES:
        folder = Path(place, "left", "deep")
        folder.mkdir(parents=True)
        (folder / "file").write_text("mine")
        Path(place, "link").symlink_to("/etc")
        folder.chmod(0)
        folder.parent.chmod(0)
    libc = ctypes.CDLL(None)
    assert min(libc.shmget(7, 4096, 0o1600), libc.semget(7, 1, 0o1600), libc.msgget(7, 0o1600)) >= 0
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("/tmp/left.sock")
    subprocess.Popen(["sh", "-c", "setsid sleep 987 &"], start_new_session=True).wait()


@sky.compute
def left() -> list[str]:
    """What there is of what another client may have left."""
    from pathlib import Path

    own = ("skyward-", ".skyward-", ".cache", "__pycache__")
    found = [str(path) for place in PLACES for path in Path(place).iterdir() if not path.name.startswith(own)]
    for kind in ("shm", "sem", "msg"):
        found += [f"{kind} {line}" for line in Path("/proc/sysvipc", kind).read_text().splitlines()[1:]]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        if b"sleep" in path.read_bytes():
            found.append(str(path))
    return found


@sky.compute
def written_by_root() -> int:
    """Do what takes root's privileges: give a file away."""
    import os
    from pathlib import Path

    path = Path("/tmp/given")
    path.touch()
    os.chown(path, 12345, 12345)
    return path.stat().st_uid
