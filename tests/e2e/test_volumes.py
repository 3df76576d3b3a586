"""Buckets as directories of nodes: S3 is moto's server on loopback, everything between is real."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

import skyward as sky
from skyward.errors import PluginError
from tests.e2e.checkpoint_functions import count
from tests.e2e.volume_functions import names, read, variables, write, write_and_read

SECRET = "the-secret-of-a-test"


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """S3 with a bucket in it; the environment leads there."""
    if not Path("/dev/fuse").exists():
        pytest.skip("this machine's kernel has no FUSE")
    for name in ("boto3", "botocore", "urllib3", "werkzeug", "moto"):
        logging.getLogger(name).setLevel(logging.WARNING)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_REGION", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_ENDPOINT_URL_S3", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "an-id")
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        client = boto3.client("s3")
        client.create_bucket(Bucket="digits")
        client.put_object(Bucket="digits", Key="train/one.txt", Body=b"1")
        client.put_object(Bucket="digits", Key="elsewhere.txt", Body=b"2")
        yield client
        client.close()
    server.stop()


def test_buckets_are_directories(s3: Any, engine: Any, containers: Callable[[str], list[Any]]) -> None:
    """One to read from, one to write to; the login is nobody's but rclone's."""
    volumes = [
        sky.Volume("digits", "/data", prefix="train"),
        sky.Volume("digits", "/results", prefix="runs/7", read_only=False),
    ]
    with sky.ComputePool(sky.Docker(), nodes=2, volumes=volumes, display="quiet") as pool:
        assert names("/data") @ pool == [["one.txt"]] * 2
        assert read("/data/one.txt") @ pool == ["1", "1"]
        with pytest.raises(OSError, match="Read-only"):
            write("/data/two.txt", "2") >> pool
        write("/results/score.txt", "0.97") >> pool
        assert s3.get_object(Bucket="digits", Key="runs/7/score.txt")["Body"].read() == b"0.97"
        seen = [engine.api.inspect_container(each.id) for each in containers(pool.id)]
        assert len(seen) == 2
        assert SECRET not in repr(seen)
        assert not [name for name in variables() >> pool if name.startswith(("AWS_", "RCLONE_"))]
        assert write_and_read("/results/table", "rows") >> pool == "rows"
    assert s3.get_object(Bucket="digits", Key="runs/7/table")["Body"].read() == b"rows"


def test_checkpoints_are_kept_in_a_bucket(s3: Any) -> None:
    """A call goes on after the loss of its worker and of its node; so does a call of a later pool."""
    s3.create_bucket(Bucket="states")  # with versions: moto calls those of other buckets null, which it does not know
    s3.put_bucket_versioning(Bucket="states", VersioningConfiguration={"Status": "Enabled"})
    volume = sky.Volume("states", "/kept", prefix="runs", read_only=False)
    with sky.ComputePool(sky.Docker(), volumes=[volume], display="quiet") as pool:
        number, begun = count("/kept/train", 6, (3, -5), 200_000) >> pool
    assert number == 6
    assert begun[0] == 0
    assert begun[1] in (2, 3)
    assert begun[2:] == [5]
    with sky.ComputePool(sky.Docker(), volumes=[volume], display="quiet") as pool:
        assert (count("/kept/train", 7, ()) >> pool) == (7, [*begun, 6])
    keys = [each["Key"] for each in s3.list_objects_v2(Bucket="states", Prefix="runs/train/")["Contents"]]
    assert len([key for key in keys if key.endswith(".done")]) == 2  # the last two commits alone
    numbers = (s3.get_object(Bucket="states", Key=key)["Body"].read() for key in keys if key.endswith("/n"))
    assert set(numbers) == {b"6", b"7"}


def test_a_bucket_that_cannot_be_read_is_named(s3: Any, containers: Callable[[str], list[Any]]) -> None:
    """Before any call runs; nothing is left."""
    pool = sky.ComputePool(sky.Docker(), volumes={"/data": "s3://nobodys-bucket"}, display="quiet")
    with pytest.raises(PluginError, match=r"s3://nobodys-bucket, the volume at /data, cannot be read"), pool:
        raise AssertionError("the pool opened")
    assert containers(pool.id) == []
