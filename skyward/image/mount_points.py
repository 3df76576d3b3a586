"""An archive of empty files where builders mount theirs.

Where a base has none, builders before Docker 23 make them for each step and remove them again, which gives /etc another
time in every layer, so that no two builds are the same: https://github.com/moby/buildkit/issues/3148
"""

from __future__ import annotations

import io
import tarfile

MOUNT_POINTS_FILE = "mount-points.tar"
_MEMBERS = (
    ("etc", tarfile.DIRTYPE, 0o755),
    ("etc/hosts", tarfile.REGTYPE, 0o644),
    ("etc/resolv.conf", tarfile.REGTYPE, 0o644),
)


def mount_points_archive(time: int) -> bytes:
    """The archive, with one time (seconds since 1970) for all that is in it."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, kind, mode in _MEMBERS:
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.mtime = kind, mode, time
            archive.addfile(member)
    return made.getvalue()
