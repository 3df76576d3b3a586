"""Who we are to a registry: what `docker login` and the credential programs of `config.json` know.

Values are in memory only. No message, log line or repr shows one.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from skyward.build.cache import home
from skyward.build.registry.reference import DOCKER_HUB
from skyward.errors import RegistryError

HUB_KEY = "https://index.docker.io/v1/"  # under which Docker keeps the credentials of its hub
_HUB_HOSTS = ("index.docker.io", "registry-1.docker.io")
_VARIABLE = "DOCKER_AUTH_CONFIG"
_HELPER_LIMIT_S = 30  # a key store may ask its owner first
_NOT_FOUND = "credentials not found"
_TOKEN_USER = "<token>"  # noqa: S105 - a program's word for: the secret is an identity token


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A user's name and secret, or a token.

    Attributes:
        username: name of the user; "" beside a token.
        password: the user's password.
        identity_token: what a token service takes instead of a password.
        registry_token: what the registry itself takes, as it is.
        configured: whether the docker command finds them by itself, in its configuration.
    """

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    registry_token: str = field(default="", repr=False)
    configured: bool = field(default=False, compare=False)

    def for_engine(self, registry: str) -> dict[str, str]:
        """In the form in which an engine takes them with a push or a pull."""
        known = {
            "username": self.username,
            "password": self.password,
            "identitytoken": self.identity_token,
            "registrytoken": self.registry_token,
        }
        return {name: value for name, value in known.items() if value} | {"serveraddress": _key(registry)}


def find_credentials(registry: str, environ: Mapping[str, str] = os.environ) -> Credentials | None:
    """What Docker's configuration knows of a registry; None where it knows nothing, which means: anonymous.

    The variable DOCKER_AUTH_CONFIG, which holds the text of a configuration, comes before the file, as for the docker
    command from 28.3 on and for GitLab. In each, a program named for the registry in `credHelpers` comes before the one
    of `credsStore`, and that before `auths`.

    Raises:
        RegistryError: the configuration cannot be read, or a credential program is missing or fails.
    """
    if given := _find(_given_config(environ), registry, _VARIABLE, environ):
        return given
    path = config_folder(environ) / "config.json"
    found = _find(read_config(path), registry, str(path), environ)
    return replace(found, configured=True) if found else None


def _given_config(environ: Mapping[str, str]) -> dict[str, Any]:
    if not environ.get(_VARIABLE):
        return {}
    try:
        return _object(json.loads(environ[_VARIABLE]))
    except ValueError:
        raise RegistryError(
            f"{_VARIABLE}, which holds credentials for registries, is not JSON.",
            'Give it the form of Docker\'s config.json, {"auths": {...}}, or unset it.',
        ) from None


def _find(config: dict[str, Any], registry: str, origin: str, environ: Mapping[str, str]) -> Credentials | None:
    helper = _named_helper(config, registry) or config.get("credsStore")
    if helper:
        found = _ask_helper(str(helper), registry, origin, environ)
        if found:
            return found
    return _from_auths(_object(config.get("auths")), registry, origin)


def registry_helper(registry: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The credential program that Docker's configuration names for this very registry."""
    configs = (_given_config(environ), read_config(config_folder(environ) / "config.json"))
    return next((helper for config in configs if (helper := _named_helper(config, registry))), None)


def _named_helper(config: dict[str, Any], registry: str) -> str | None:
    helpers = _object(config.get("credHelpers"))
    return helpers.get(registry) or helpers.get(_key(registry)) or None


def config_folder(environ: Mapping[str, str]) -> Path:
    """Where Docker's configuration is."""
    folder = environ.get("DOCKER_CONFIG")
    return Path(folder) if folder else Path(environ.get("HOME") or home()) / ".docker"


def read_config(path: Path) -> dict[str, Any]:
    """Docker's configuration; empty where there is no such file.

    Raises:
        RegistryError: it cannot be read.
    """
    try:
        return _object(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        # what a JSON error quotes is a position, but its chain holds the document
        why = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise RegistryError(
            f"Docker's configuration {path}, which holds the credentials for registries, cannot be read: {why}.",
            "Repair it, or point DOCKER_CONFIG to another folder.",
        ) from None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _key(registry: str) -> str:
    return HUB_KEY if registry == DOCKER_HUB else registry


def _from_auths(auths: dict[str, Any], registry: str, path: str) -> Credentials | None:
    """The entry of `auths`: under the registry's own name, else under a URL of that host."""
    wanted = _key(registry)
    keys = [wanted, *(key for key in auths if _host(key) == _host(wanted))]
    entry = next((_object(auths[key]) for key in keys if auths.get(key)), None)
    if not entry:
        return None
    username, password = str(entry.get("username") or ""), str(entry.get("password") or "")
    if entry.get("auth"):
        try:
            decoded = base64.b64decode(str(entry["auth"]), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            decoded = ""
        username, colon, password = decoded.rstrip("\0").partition(":")
        if not colon:
            raise RegistryError(
                f"The entry of {registry} in {path} is no user name and password.",
                f"Write it anew with `docker logout {registry}` and `docker login {registry}`.",
            )
    found = Credentials(
        username=username,
        password=password,
        identity_token=str(entry.get("identitytoken") or ""),
        registry_token=str(entry.get("registrytoken") or ""),
    )
    return None if found == Credentials() else found


def _host(key: str) -> str:
    """The host of a key of `auths`, which may be a URL of the registry's API; one for all names of Docker's hub."""
    host = urlsplit(key if "://" in key else f"//{key}").netloc
    return DOCKER_HUB if host in _HUB_HOSTS else host


def _ask_helper(helper: str, registry: str, origin: str, environ: Mapping[str, str]) -> Credentials | None:
    """What a credential program that a configuration names says; None if it knows nothing of the registry."""
    program = f"docker-credential-{helper}"
    if shutil.which(program, path=environ.get("PATH")) is None:
        raise RegistryError(
            f"Docker's configuration {origin} names the credential program {program} for {registry}, "
            "which is not on PATH.",
            f"Install {program}, or remove its name ({helper!r}) from that configuration and run "
            f"`docker login {registry}`.",
        )
    return ask_program(program, registry, environ)


def ask_program(program: str, registry: str, environ: Mapping[str, str] = os.environ) -> Credentials | None:
    """What a credential program says; None if it knows nothing of the registry.

    Raises:
        RegistryError: it fails.
    """
    try:
        done = subprocess.run(
            [program, "get"],
            input=_key(registry),
            capture_output=True,
            text=True,
            timeout=_HELPER_LIMIT_S,
            check=False,
            env=dict(environ),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"did not answer in {_HELPER_LIMIT_S} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        raise _helper_failed(program, registry, why) from None
    if done.returncode:
        said = (done.stdout.strip() or done.stderr.strip()).lower()
        if _NOT_FOUND in said:
            return None
        raise _helper_failed(program, registry, f"ended with status {done.returncode}")
    return _helper_answer(done.stdout, program, registry)


def _helper_answer(answer: str, program: str, registry: str) -> Credentials | None:
    try:
        found = json.loads(answer)
        username, secret = str(found["Username"]), str(found["Secret"])
    except (ValueError, KeyError, TypeError):
        raise _helper_failed(program, registry, "answered what is no credential") from None
    if username == _TOKEN_USER:
        return Credentials(identity_token=secret)
    return Credentials(username=username, password=secret) if username or secret else None


def _helper_failed(program: str, registry: str, why: str) -> RegistryError:
    # its own words are not shown: they may hold what it was asked for
    shown = re.sub(r"[^\w.:-]", "", registry)
    return RegistryError(
        f"The credential program {program}, asked for {registry}, {why}.",
        f"See what it says: echo {shown} | {program} get",
    )
