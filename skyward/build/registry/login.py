"""The docker command's own way to registries, where its configuration does not hold our credentials."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from skyward.build.registry.client import registry_credentials
from skyward.build.registry.credentials import HUB_KEY, Credentials, config_folder, read_config
from skyward.build.registry.reference import DOCKER_HUB
from skyward.build.scratch import scratch_folder
from skyward.errors import RegistryError

Logins = Mapping[str, Credentials]


def logins_for(needed: Iterable[str] = (), perhaps: Iterable[str] = ()) -> Logins:
    """Our credentials for registries, by their names.

    Args:
        needed: registries that a command is certain to use.
        perhaps: those that it may use, such as a base's, which the engine mostly has.

    Raises:
        RegistryError: credentials for a registry that is needed cannot be had.
    """
    found = {name: credentials for name in set(needed) if (credentials := registry_credentials(name))}
    for name in set(perhaps) - set(found):
        try:
            credentials = registry_credentials(name)
        except RegistryError:
            continue  # should the registry want to know who we are, the docker command fails in the same way
        if credentials:
            found[name] = credentials
    return found


@contextmanager
def login(logins: Logins) -> Iterator[dict[str, str]]:
    """Variables with which the docker command here finds these credentials, for the time of a `with` block.

    No variable where its own configuration leads to them. Else, as for a cloud's token, a configuration in a folder
    that only this user can enter: the user's own with these logins added.

    Raises:
        RegistryError: the user's own configuration cannot be read.
    """
    lacking = {name: credentials for name, credentials in logins.items() if not credentials.configured}
    if not lacking:
        yield {}
        return
    own = config_folder(os.environ)
    with scratch_folder("login") as folder:
        for path in own.iterdir() if own.is_dir() else ():
            if path.name != "config.json":
                (folder / path.name).symlink_to(path.absolute())  # contexts, plugins
        config = with_logins(read_config(own / "config.json"), lacking)
        (folder / "config.json").touch(mode=0o600)
        (folder / "config.json").write_text(json.dumps(config))
        yield {"DOCKER_CONFIG": str(folder), "REGISTRY_AUTH_FILE": str(folder / "config.json")}  # of docker, of podman


def with_logins(config: Mapping[str, Any], logins: Logins) -> dict[str, Any]:
    """A configuration of the docker command with logins added to what it has."""
    auths, helpers = dict(config.get("auths") or {}), dict(config.get("credHelpers") or {})
    for registry, known in logins.items():
        key = HUB_KEY if registry == DOCKER_HUB else registry
        login = b64encode(f"{known.username}:{known.password}".encode()).decode() if known.username else ""
        entry = {"auth": login, "identitytoken": known.identity_token, "registrytoken": known.registry_token}
        auths[key] = {part: value for part, value in entry.items() if value}
        if helpers or config.get("credsStore"):
            helpers[key] = ""  # a program without a name: the entry is read from the file, whatever is asked for others
    return {**config, "auths": auths, **({"credHelpers": helpers} if helpers else {})}
