"""The volumes of a pool: rclone in the image, and a mount of each bucket on every node before its first call.

The credentials are sent over the pool's own connections, and passed to rclone in its environment: they are in no image,
label, command line or container setting, and functions do not see them.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from skyward.errors import PluginError
from skyward.model.instance import InstanceInfo
from skyward.model.spec import Volume
from skyward.plugins.base import Plugin

PACKAGES = ("ca-certificates", "fuse3", "rclone")
_ASK_S, _MOUNT_S = 60, 60
_LAST_S = 8.0  # of the time that a worker has to end
_CACHE = Path("/var/tmp/skyward-volumes")
# A file that is only written is uploaded while it is written, and its close returns once it is in the bucket: a call
# that saves its model returns after that. A file that is also read while it is written is cached, and uploaded after
# its close.
_SYNCHRONOUS = ("--vfs-cache-mode", "minimal", "--vfs-write-back", "0")
_NOTHING_THERE = 3  # rclone's exit status if neither an object nor a prefix of that name exists


def mounting(volumes: tuple[Volume, ...]) -> Plugin:
    """Return the plugin that mounts these volumes."""
    return (
        Plugin.create("volumes")
        .with_image_transform(lambda image, _: image.apt_install(*(each for each in PACKAGES if each not in image.apt)))
        .with_bootstrap(lambda _: [partial(mount, volume, login(os.environ)) for volume in volumes])
        .with_around_app(_around_app)
    )


@contextmanager
def _around_app(_info: InstanceInfo) -> Iterator[None]:
    """At the node's end, wait until every file that was written is in its bucket."""
    yield
    deadline = time.monotonic() + _LAST_S
    while left := unsent(_CACHE):
        if time.monotonic() > deadline:
            raise PluginError(f"Files were not in their bucket {_LAST_S:g} s after the end: {', '.join(left)}.")
        time.sleep(0.05)


def unsent(cache: Path) -> list[str]:
    """Return the files that rclone has cached and not yet uploaded, according to its metadata."""
    found = []
    for note in (cache / "vfsMeta").rglob("*"):
        try:
            if note.is_file() and json.loads(note.read_text()).get("Dirty"):
                found.append(note.name)
        except (OSError, ValueError):  # being written or removed at this moment: it is read again
            found.append(note.name)
    return found


def login(environment: Mapping[str, str]) -> dict[str, str]:
    """Return rclone's settings for S3: this client's credentials, else those of the machine that a node runs on.

    They are looked up by boto3 if that is installed (environment, AWS_PROFILE, role), else in the environment.
    """
    key, secret, token = (
        environment.get(f"AWS_{name}") for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN")
    )
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if not (key and secret):
        key, secret, token, region = _of_boto3() or (None, None, None, region)
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    settings = {
        "PROVIDER": "Other" if endpoint else "AWS",
        "ENDPOINT": endpoint,
        "REGION": region or "us-east-1",
        "ACCESS_KEY_ID": key,
        "SECRET_ACCESS_KEY": secret,
        "SESSION_TOKEN": token,
        "ENV_AUTH": None if key and secret else "true",
    }
    return {f"RCLONE_S3_{name}": value for name, value in settings.items() if value}


def _of_boto3() -> tuple[str, str, str | None, str | None] | None:
    try:
        import boto3
    except ImportError:
        return None
    session = boto3.Session()
    found = session.get_credentials()
    if found is None:
        return None
    frozen = found.get_frozen_credentials()
    return frozen.access_key, frozen.secret_key, frozen.token, session.region_name


def mount(volume: Volume, settings: Mapping[str, str]) -> None:
    """Mount a volume (on a node); return when it can be used.

    Raises:
        PluginError: the bucket cannot be read, or the container may not mount.
    """
    env = {**os.environ, **settings, "RCLONE_CONFIG": ""}
    where = f"s3://{volume.source}"
    asked = _rclone(env, _ASK_S, "lsf", "--max-depth", "1", f":s3:{volume.source}")
    new = asked.returncode == _NOTHING_THERE and volume.prefix and not volume.read_only  # created by writing
    if asked.returncode and not new:
        raise PluginError(f"{where}, the volume at {volume.mount}, cannot be read: {_last(asked)}")
    Path(volume.mount).mkdir(parents=True, exist_ok=True)
    access = ["--read-only"] if volume.read_only else [*_SYNCHRONOUS, "--cache-dir", str(_CACHE)]
    words = ["mount", f":s3:{volume.source}", volume.mount, *access, "--use-server-modtime", "--daemon"]
    mounted = _rclone(env, _MOUNT_S, *words)
    if mounted.returncode or not os.path.ismount(volume.mount):
        raise PluginError(f"{where} cannot be mounted at {volume.mount}: {_last(mounted)}")


def _rclone(env: Mapping[str, str], limit_s: float, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["rclone", *words, "--contimeout", "10s", "--timeout", "30s", "--low-level-retries", "2", "--retries", "1"],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
            start_new_session=True,  # a dying worker's group is killed, but its successors use the mount
        )
    except OSError as error:
        raise PluginError(f"rclone could not be started ({error}). Install it in the node's image.") from error
    except subprocess.TimeoutExpired:
        raise PluginError(f"rclone did not end within {limit_s:g} s when asked to {words[0]}.") from None


def _last(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stdout.strip().splitlines() or [f"rclone ended with exit status {done.returncode}"])[-1]
