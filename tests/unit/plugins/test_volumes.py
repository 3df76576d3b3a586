"""The plugin that mounts volumes, as far as it goes without a bucket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import skyward as sky
from skyward.plugins._volumes import login, mounting, unsent

KEYS = {"AWS_ACCESS_KEY_ID": "an-id", "AWS_SECRET_ACCESS_KEY": "a-secret"}


def test_a_login_of_the_environment() -> None:
    """With a token where it is of a session; at AWS itself unless an endpoint is named."""
    assert login({**KEYS, "AWS_SESSION_TOKEN": "t", "AWS_REGION": "eu-west-1"}) == {
        "RCLONE_S3_PROVIDER": "AWS",
        "RCLONE_S3_REGION": "eu-west-1",
        "RCLONE_S3_ACCESS_KEY_ID": "an-id",
        "RCLONE_S3_SECRET_ACCESS_KEY": "a-secret",
        "RCLONE_S3_SESSION_TOKEN": "t",
    }
    found = login({**KEYS, "AWS_ENDPOINT_URL": "http://x", "AWS_ENDPOINT_URL_S3": "http://y"})
    assert (found["RCLONE_S3_PROVIDER"], found["RCLONE_S3_ENDPOINT"]) == ("Other", "http://y")


def test_a_login_of_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As AWS' own tools find it."""
    for name in (*KEYS, "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "credentials").write_text("[lab]\naws_access_key_id = lab-id\naws_secret_access_key = lab-secret\n")
    (tmp_path / "config").write_text("[profile lab]\nregion = eu-north-1\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "lab")

    found = login({"AWS_PROFILE": "lab"})

    assert (found["RCLONE_S3_ACCESS_KEY_ID"], found["RCLONE_S3_REGION"]) == ("lab-id", "eu-north-1")


def test_the_image_gets_rclone_once_and_the_plugin_shows_no_login() -> None:
    plugin = mounting((sky.Volume("data", "/data"),))
    cluster = sky.ComputePool(sky.Local())._settings.cluster
    assert plugin.transform

    image = plugin.transform(sky.Image(apt=["rclone"]), cluster)

    assert sorted(image.apt) == ["ca-certificates", "fuse3", "rclone"]
    assert repr(plugin) == "<plugin volumes: transform, bootstrap, around_app>"


def test_what_has_still_to_be_sent_is_known(tmp_path: Path) -> None:
    """By the notes of rclone's cache; one that is just being written counts."""
    assert unsent(tmp_path) == []
    folder = tmp_path / "vfsMeta" / "bucket"
    folder.mkdir(parents=True)
    for name, text in (("sent", json.dumps({"Dirty": False})), ("open", json.dumps({"Dirty": True})), ("new", "{")):
        (folder / name).write_text(text)
    assert sorted(unsent(tmp_path)) == ["new", "open"]
