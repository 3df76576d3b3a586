"""The docker command's own way to a registry, where its configuration does not hold our credentials."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

from skyward.build.registry.client import registry_credentials
from skyward.build.registry.credentials import HUB_KEY, config_folder, read_config
from skyward.build.registry.reference import DOCKER_HUB
from skyward.build.scratch import scratch_folder


@contextmanager
def login(registry: str) -> Iterator[dict[str, str]]:
    """Variables with which the docker command finds our credentials for a registry, for the time of a `with` block.

    No variable where its own configuration leads to them. Else, as for a cloud's token, a configuration in a folder
    that only this user can enter: the user's own with that one login added.

    Raises:
        RegistryError: credentials cannot be had.
    """
    known = registry_credentials(registry)
    if known is None or known.configured:
        yield {}
        return
    own = config_folder(os.environ)
    key = HUB_KEY if registry == DOCKER_HUB else registry
    entry = {
        "username": known.username,
        "password": known.password,
        "identitytoken": known.identity_token,
        "registrytoken": known.registry_token,
    }
    with scratch_folder("login") as folder:
        for path in own.iterdir() if own.is_dir() else ():
            if path.name != "config.json":
                (folder / path.name).symlink_to(path)  # contexts, plugins
        config = read_config(own / "config.json")
        auths = {**(config.get("auths") or {}), key: {part: value for part, value in entry.items() if value}}
        # a program without a name: this registry's entry is read from the file, whatever is asked for the others
        helpers = {**(config.get("credHelpers") or {}), key: ""}
        (folder / "config.json").touch(mode=0o600)
        (folder / "config.json").write_text(json.dumps({**config, "auths": auths, "credHelpers": helpers}))
        yield {"DOCKER_CONFIG": str(folder)}
