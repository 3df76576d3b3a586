"""`Volume` and the ways to name volumes: what is refused before anything exists."""

from __future__ import annotations

from typing import Any

import pytest

import skyward as sky
from skyward.errors import ConfigError
from skyward.model.spec import Volume, volumes_of


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bucket": "No Bucket"}, "not a name of a bucket"),
        ({"bucket": "s3://data"}, "not a name of a bucket"),
        ({"mount": "data"}, "mount is an absolute path"),
        ({"mount": "/data/../etc"}, "mount is an absolute path"),
        ({"mount": "/usr"}, "holds the node's own files"),
        ({"mount": "/"}, "holds the node's own files"),
        ({"prefix": None}, "prefix is a string"),
        ({"read_only": "yes"}, "read_only True or False"),
    ],
)
def test_wrong_values_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        sky.Volume(**{"bucket": "data", "mount": "/data", **settings})


@pytest.mark.parametrize(
    ("value", "volumes"),
    [
        ([], ()),
        ((), ()),
        (None, ()),
        (Volume("data", "/data"), (Volume("data", "/data"),)),
        ([Volume("data", "/data", "x", False)], (Volume("data", "/data", "x", False),)),
        ({"/data": "s3://data/train/7"}, (Volume("data", "/data", "train/7"),)),
        ({"/data": "s3://data"}, (Volume("data", "/data"),)),
    ],
)
def test_volumes_are_named_in_several_ways(value: object, volumes: tuple[Volume, ...]) -> None:
    assert volumes_of(value) == volumes


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("s3://data", "takes a list of sky.Volume"),
        (["s3://data"], "takes sky.Volume"),
        ({"/data": "gs://data"}, "s3://bucket/prefix"),
        ([Volume("a-b", "/data"), Volume("c-d", "/data/x")], "hide each other"),
    ],
)
def test_what_names_no_volumes_is_refused(value: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        volumes_of(value)


def test_a_source_is_bucket_and_prefix() -> None:
    assert Volume("data", "/data").source == "data"
    assert Volume("data", "/data", "/train/").source == "data/train"


def test_providers_whose_nodes_may_not_mount_refuse_volumes() -> None:
    """When the pool is made; no volumes are refused by none."""
    sky.ComputePool(sky.Local(), volumes=[])
    with pytest.raises(ConfigError, match=r"nodes that may mount, which those of local may not"):
        sky.ComputePool(sky.Local(), volumes=[sky.Volume("data", "/data")])
    with pytest.raises(ConfigError, match=r"which those of docker or local may not"):
        sky.ComputePool([sky.Docker(), sky.Local()], volumes=[sky.Volume("data", "/data")])


def test_two_spellings_are_one_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    volume = sky.Volume("data", "/data")
    assert sky.ComputePool(volume=volume)._settings.volumes == (volume,)
    with pytest.raises(ConfigError, match="mean the same"):
        sky.ComputePool(volume=volume, volumes=[volume])
