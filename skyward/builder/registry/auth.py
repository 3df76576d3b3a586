"""Logins for registries: this user's, found as the docker command finds them, for engines and for that command.

Sources, in this order: the variable DOCKER_AUTH_CONFIG, which holds the text of a `config.json`; that file, with the
credential programs it names; and for Amazon's registries a token, which boto3 requests with its own credentials.
Logins are kept only in memory, and never appear in messages, logs or reprs.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skyward.builder.folders import home, scratch_folder
from skyward.builder.registry.reference import DOCKER_HUB, Reference
from skyward.errors import RegistryError

_HUB_KEY = "https://index.docker.io/v1/"  # Docker's key for the login of its hub
_VARIABLE = "DOCKER_AUTH_CONFIG"
_ECR = re.compile(r"\d{12}\.dkr[.-]ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|on\.aws)")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A login for one registry.

    Attributes:
        auth: the login in the format of engines: user name and password, or a token.
        is_configured: whether the docker command finds it in its own configuration.
    """

    auth: Mapping[str, str] = field(repr=False)
    is_configured: bool = field(default=False, compare=False)

    def for_config(self) -> dict[str, str]:
        """Return the login as an entry of `auths` in Docker's configuration."""
        if "identitytoken" in self.auth:
            return {"identitytoken": self.auth["identitytoken"]}
        return {"auth": base64.b64encode(f"{self.auth['username']}:{self.auth['password']}".encode()).decode()}


Logins = Mapping[str, Credentials]


def registry_credentials(registry: str) -> Credentials | None:
    """Return the user's login for a registry; None means anonymous access.

    Raises:
        RegistryError: the configuration is damaged, or a credential program or AWS gives no login.
    """
    for origin, text in _configurations():
        if auth := _login_in(origin, text, registry):
            return Credentials(auth, is_configured=origin != _VARIABLE)
    return Credentials(_ecr_login(registry)) if is_ecr(registry) else None


def registry_login(registry: str) -> Mapping[str, str]:
    """Return the same in the format of engines; {} for anonymous access."""
    credentials = registry_credentials(registry)
    return credentials.auth if credentials else {}


def _configurations() -> Iterator[tuple[str, str]]:
    """Yield the configurations by precedence, each with its origin."""
    if text := os.environ.get(_VARIABLE):
        yield _VARIABLE, text
    path = config_folder() / "config.json"
    try:
        yield str(path), path.read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise RegistryError(
            f"{path}, which holds logins for registries, cannot be read: {error.strerror}.",
            "Repair it, or set DOCKER_CONFIG.",
        ) from None


def _login_in(origin: str, text: str, registry: str) -> dict[str, str]:
    """Return a registry's login from a configuration; empty if it has none. Errors quote nothing: it holds secrets."""
    from docker.auth import load_config
    from docker.errors import DockerException

    try:
        config: Any = load_config(config_dict=json.loads(text) or {"auths": {}})
    except (DockerException, ValueError, AttributeError, TypeError):
        raise RegistryError(
            f"{origin}, which holds logins for registries, is not a valid Docker configuration.",
            "Log in again with `docker login`.",
        ) from None
    program = f"docker-credential-{config.get_credential_store(registry)}"
    try:
        found = config.resolve_authconfig(registry) or {}
    except (DockerException, ValueError, KeyError, TypeError):
        raise RegistryError(
            f"The credential program {program}, which {origin} names for {registry}, failed or is not on PATH.",
            f"See what it says: echo {registry} | {program} get; or log in with `docker login {registry}`.",
        ) from None
    auth = {key.lower(): str(value) for key, value in found.items() if value}
    if not {"username", "identitytoken"} & auth.keys():
        return {}
    return {"password": "", **auth, "serveraddress": _key(registry)}


def config_folder() -> Path:
    """Return the folder of Docker's configuration."""
    folder = os.environ.get("DOCKER_CONFIG")
    return Path(folder) if folder else home() / ".docker"


def _key(registry: str) -> str:
    return _HUB_KEY if registry == DOCKER_HUB else registry


# Amazon ---------------------------------------------------------------------------------------------------------------


def is_ecr(registry: str) -> bool:
    """Return whether a registry is a private one of Amazon's."""
    return _ECR.fullmatch(registry) is not None


def _ecr_login(registry: str) -> dict[str, str]:
    answer = _ask_aws(registry, "get_authorization_token")["authorizationData"][0]
    username, _, password = base64.b64decode(answer["authorizationToken"]).decode().partition(":")
    return {"username": username, "password": password, "serveraddress": registry}


def ensure_repository(reference: Reference) -> None:
    """Create a repository of Amazon's, which others create with the first push; do nothing if it exists.

    Raises:
        RegistryError: AWS refuses.
    """
    with suppress(ImportError):  # without boto3 the push shows whether it exists
        import boto3  # noqa: F401

        account = reference.registry.partition(".")[0]
        _ask_aws(reference.registry, "create_repository", registryId=account, repositoryName=reference.repository)


def _ask_aws(registry: str, action: str, **arguments: Any) -> Any:
    """Call the ECR API; None if a repository exists already."""
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise RegistryError(
            f"{registry} is a registry of Amazon's, for which boto3 is not installed and no login is known.",
            "Install it with `pip install 'skyward[aws]'`, or log in with `docker login`.",
        ) from None
    limits = Config(connect_timeout=3, read_timeout=10, retries={"total_max_attempts": 2})
    try:
        client = boto3.client("ecr", region_name=_ECR.sub(r"\g<region>", registry), config=limits)
        return getattr(client, action)(**arguments)
    except (ClientError, BotoCoreError) as error:
        if "RepositoryAlreadyExistsException" in str(error):
            return None
        permission = "".join(map(str.capitalize, action.split("_")))
        raise RegistryError(
            f"AWS did not {action.replace('_', ' ')} for {registry}: {error}.",
            f"Check the AWS credentials (`aws sts get-caller-identity`); they need the permission ecr:{permission}.",
        ) from error


# the docker command ---------------------------------------------------------------------------------------------------


def logins_for(registries: Iterable[str]) -> Logins:
    """Return the user's logins by registry, without those that are unavailable: the docker command reports what fails.

    Args:
        registries: registries that a command may use.
    """
    found = {}
    for name in set(registries):
        with suppress(RegistryError):
            if credentials := registry_credentials(name):
                found[name] = credentials
    return found


@contextmanager
def login(logins: Logins) -> Iterator[dict[str, str]]:
    """Yield variables with which the docker command here finds these logins, during a `with` block.

    There are none if its own configuration leads to them. Otherwise they name a configuration in a folder that only
    this user can enter: the user's own with these logins added.
    """
    lacking = {name: credentials for name, credentials in logins.items() if not credentials.is_configured}
    if not lacking:
        yield {}
        return
    own = config_folder()
    with scratch_folder("login") as folder:
        for path in own.iterdir() if own.is_dir() else ():
            if path.name != "config.json":
                (folder / path.name).symlink_to(path.absolute())  # contexts, plugins
        config = {}
        with suppress(OSError, ValueError):
            config = json.loads((own / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").touch(mode=0o600)
        (folder / "config.json").write_text(json.dumps(with_logins(config, lacking)))
        # variables of docker and of podman
        yield {"DOCKER_CONFIG": str(folder), "REGISTRY_AUTH_FILE": str(folder / "config.json")}


def with_logins(config: Mapping[str, Any], logins: Logins) -> dict[str, Any]:
    """Return a configuration of the docker command with logins added."""
    auths, programs = dict(config.get("auths") or {}), dict(config.get("credHelpers") or {})
    for registry, credentials in logins.items():
        auths[_key(registry)] = credentials.for_config()
        if programs or config.get("credsStore"):
            programs[_key(registry)] = ""  # no program: the entry is read from the file, even if others use a store
    return {**config, "auths": auths, **({"credHelpers": programs} if programs else {})}
