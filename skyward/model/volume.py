"""`Volume`: a bucket of S3 as a directory of every node."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from skyward.errors import ConfigError
from skyward.model.parameters import suggesting

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_KEPT = ("/", "/bin", "/dev", "/etc", "/lib", "/opt", "/proc", "/run", "/sbin", "/sys", "/tmp", "/usr", "/var")


@suggesting("sky.Volume")
@dataclass(frozen=True, slots=True)
class Volume:
    """A bucket of S3, or what is below a prefix of it, as a directory on every node: `sky.Volume("data", "/data")`.

    Attributes:
        bucket: its name.
        mount: the directory, as an absolute path; made if it is not there.
        prefix: what the names of its objects start with, such as "runs/7"; "" for all of the bucket.
        read_only: whether nodes may only read. A file that is written from its start to its end, as models are saved,
            is in the bucket when it is closed; two nodes that write one file overwrite each other's.

    Raises:
        ConfigError: a value is wrong.
    """

    bucket: str
    mount: str
    prefix: str = ""
    read_only: bool = True

    def __post_init__(self) -> None:
        bucket: object = self.bucket
        if not isinstance(bucket, str) or not _BUCKET.fullmatch(bucket):
            raise ConfigError(
                f"sky.Volume: {bucket!r} is not a name of a bucket: 3 to 63 small letters, digits, - and dots."
            )
        mount: object = self.mount
        if not isinstance(mount, str) or not PurePosixPath(mount).is_absolute() or ".." in PurePosixPath(mount).parts:
            raise ConfigError(f"sky.Volume: mount is an absolute path on the nodes, such as '/data'; found {mount!r}.")
        if str(PurePosixPath(mount)) in _KEPT:
            raise ConfigError(
                f"sky.Volume: {mount} holds the node's own files, which a mount would hide; choose another."
            )
        others: tuple[object, object] = (self.prefix, self.read_only)
        if not isinstance(others[0], str) or not isinstance(others[1], bool):
            raise ConfigError(f"sky.Volume: prefix is a string and read_only True or False; found {self!r}.")

    @property
    def source(self) -> str:
        """Bucket and prefix as one path."""
        return f"{self.bucket}/{self.prefix.strip('/')}".rstrip("/")


def volumes_of(value: object) -> tuple[Volume, ...]:
    """The volumes that a caller means: a `Volume`, a list of them, or a mapping such as `{"/data": "s3://bucket/x"}`.

    Raises:
        ConfigError: it is none of these, or two volumes have one directory or one inside the other's.
    """
    if value is None or isinstance(value, Volume):
        volumes: tuple[object, ...] = () if value is None else (value,)
    elif isinstance(value, Mapping):
        volumes = tuple(_volume_at(mount, url) for mount, url in value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        volumes = tuple(value)
    else:
        raise ConfigError(
            f"volumes= takes a list of sky.Volume(...), or a mapping from paths to URLs; found {value!r}."
        )
    found = []
    for each in volumes:
        if not isinstance(each, Volume):
            raise ConfigError(f"volumes= takes sky.Volume(bucket, mount); found {each!r} in the list.")
        found.append(each)
    for position, volume in enumerate(found):
        for other in found[:position]:
            one, two = PurePosixPath(volume.mount), PurePosixPath(other.mount)
            if one.is_relative_to(two) or two.is_relative_to(one):
                raise ConfigError(
                    f"volumes=: {other.mount} and {volume.mount} hide each other; choose other directories."
                )
    return tuple(found)


def _volume_at(mount: object, url: object) -> Volume:
    if not isinstance(url, str) or not url.startswith("s3://"):
        raise ConfigError(
            f"volumes=: the volume at {mount!r} is named by a URL such as 's3://bucket/prefix'; found {url!r}."
        )
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return Volume(bucket, str(mount), prefix)
