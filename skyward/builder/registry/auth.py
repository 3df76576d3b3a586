"""Registry authentication: finding this user's credentials for a registry, and passing them to the docker command.

Sources, in this order: the credential programs and logins of Docker's configuration (the variable DOCKER_AUTH_CONFIG,
then `config.json`), and the programs of Google's and Azure's clouds for their own registries. For Amazon's, boto3
supplies tokens, which are renewed before they expire, and missing repositories are created; it finds its own
credentials (environment, profile, role of the machine). Credentials are kept only in memory, and never appear in
messages, logs or reprs.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from skyward.builder.folders import home, scratch_folder
from skyward.builder.registry.reference import DOCKER_HUB, Reference
from skyward.errors import RegistryError

_HUB_KEY = "https://index.docker.io/v1/"  # Docker's key for the credentials of its hub
_HUB_HOSTS = ("index.docker.io", "registry-1.docker.io")
_VARIABLE = "DOCKER_AUTH_CONFIG"
_PROGRAM_LIMIT_S = 30  # a key store may ask its owner first
_CLOUD_LIMIT_S = 60  # both command lines are Python programs that query a service
_NOT_FOUND = "credentials not found"
_TOKEN_USER = "<token>"  # noqa: S105 - credential programs use this name for identity tokens
_ECR = re.compile(r"\d{12}\.dkr[.-]ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|on\.aws)")
_EARLY = timedelta(hours=1)  # a token of 12 hours is replaced after 11, as a push that starts with it must also end
_tokens: dict[str, tuple[Credentials, datetime]] = {}  # of Amazon's registries
_tokens_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A user name with a secret, or a token.

    Attributes:
        username: name of the user; "" with a token.
        password: the user's password.
        identity_token: replaces the password at a token service.
        registry_token: sent to the registry itself, unchanged.
        configured: whether the docker command finds them in its own configuration.
    """

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    registry_token: str = field(default="", repr=False)
    configured: bool = field(default=False, compare=False)

    def for_engine(self, registry: str) -> dict[str, str]:
        """Return the credentials in the format of an engine's push or pull."""
        known = {
            "username": self.username,
            "password": self.password,
            "identitytoken": self.identity_token,
            "registrytoken": self.registry_token,
        }
        return {name: value for name, value in known.items() if value} | {"serveraddress": _key(registry)}

    def for_config(self) -> dict[str, str]:
        """Return the credentials as an entry of `auths` in Docker's configuration."""
        login = base64.b64encode(f"{self.username}:{self.password}".encode()).decode() if self.username else ""
        entry = {"auth": login, "identitytoken": self.identity_token, "registrytoken": self.registry_token}
        return {name: value for name, value in entry.items() if value}


Logins = Mapping[str, Credentials]


def registry_credentials(registry: str) -> Credentials | None:
    """Return the user's credentials for a registry; None means anonymous access.

    For Amazon's registries, a credential program configured for exactly this registry takes precedence. Without boto3,
    the result of `docker login` is used.

    Raises:
        RegistryError: a credential program or the registry's cloud fails.
    """
    if not is_ecr(registry):
        return find_credentials(registry) or cloud_credentials(registry)
    has_program = any(_named_program(config, registry) for config, _ in _configurations())
    if (has_program or not _has_boto3()) and (found := find_credentials(registry)):
        return found
    return _ecr_token(registry)


# Docker's configuration -----------------------------------------------------------------------------------------------


def find_credentials(registry: str) -> Credentials | None:
    """Return the credentials in Docker's configuration for a registry; None if there are none.

    The variable DOCKER_AUTH_CONFIG, which contains a configuration, precedes the file, as for the docker command from
    28.3 on and for GitLab. In each, a program named for the registry in `credHelpers` precedes the one of `credsStore`,
    and that precedes `auths`.

    Raises:
        RegistryError: the configuration cannot be read, or a credential program is missing or fails.
    """
    for config, origin in _configurations():
        program = _named_program(config, registry) or config.get("credsStore")
        found = _ask_configured(str(program), registry, origin) if program else None
        if found := found or _from_auths(_object(config.get("auths")), registry, origin):
            return replace(found, configured=origin != _VARIABLE)
    return None


def config_folder() -> Path:
    """Return the folder of Docker's configuration."""
    folder = os.environ.get("DOCKER_CONFIG")
    return Path(folder) if folder else home() / ".docker"


def _configurations() -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the configurations by precedence, each with its origin."""
    if given := os.environ.get(_VARIABLE):
        try:
            yield _object(json.loads(given)), _VARIABLE
        except ValueError:
            raise RegistryError(
                f"{_VARIABLE}, which holds credentials for registries, is not JSON.",
                'Give it the form of Docker\'s config.json, {"auths": {...}}, or unset it.',
            ) from None
    path = config_folder() / "config.json"
    yield _read_config(path), str(path)


def _read_config(path: Path) -> dict[str, Any]:
    """Read Docker's configuration; empty if there is no such file."""
    try:
        return _object(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        # a JSON error quotes only a position, but its chain contains the document
        why = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise RegistryError(
            f"Docker's configuration {path}, which holds the credentials for registries, cannot be read: {why}.",
            "Repair it, or point DOCKER_CONFIG to another folder.",
        ) from None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _key(registry: str) -> str:
    return _HUB_KEY if registry == DOCKER_HUB else registry


def _named_program(config: dict[str, Any], registry: str) -> str | None:
    programs = _object(config.get("credHelpers"))
    return programs.get(registry) or programs.get(_key(registry)) or None


def _from_auths(auths: dict[str, Any], registry: str, origin: str) -> Credentials | None:
    """Return the entry of `auths` under the registry's own name, or else under a key with that host.

    A path in a key does not restrict it to the repositories below that path: for Docker it is the rest of an API's URL.
    https://github.com/docker/cli/blob/master/cli/config/credentials/file_store.go (ConvertToHostname)
    """
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
                f"The entry of {registry} in {origin} is not a user name and password.",
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
    """Return the host of a key of `auths`, which may be an API URL; Docker Hub's names all give the same one."""
    host = urlsplit(key if "://" in key else f"//{key}").netloc
    return DOCKER_HUB if host in _HUB_HOSTS else host


# credential programs --------------------------------------------------------------------------------------------------


def _ask_configured(name: str, registry: str, origin: str) -> Credentials | None:
    """Return the answer of a credential program that a configuration names."""
    program = f"docker-credential-{name}"
    if shutil.which(program) is None:
        raise RegistryError(
            f"Docker's configuration {origin} names the credential program {program} for {registry}, "
            "which is not on PATH.",
            f"Install {program}, or remove its name ({name!r}) from that configuration and run "
            f"`docker login {registry}`.",
        )
    return _ask_program(program, registry)


def _ask_program(program: str, registry: str) -> Credentials | None:
    """Return the answer of a credential program; None if it has no entry for the registry."""
    asked = f"The credential program {program}, asked for {registry},"
    # its output is not shown, as it may contain credentials
    shown = re.sub(r"[^\w.:-]", "", registry)
    remedy = f"See what it says: echo {shown} | {program} get"
    done = _run([program, "get"], asked, remedy, _PROGRAM_LIMIT_S, _key(registry))
    if done.returncode:
        if _NOT_FOUND in (done.stdout.strip() or done.stderr.strip()).lower():
            return None
        raise RegistryError(f"{asked} ended with status {done.returncode}.", remedy)
    try:
        found = json.loads(done.stdout)
        username, secret = str(found["Username"]), str(found["Secret"])
    except (ValueError, KeyError, TypeError):
        raise RegistryError(f"{asked} answered what is not a credential.", remedy) from None
    if username == _TOKEN_USER:
        return Credentials(identity_token=secret)
    return Credentials(username=username, password=secret) if username or secret else None


def _run(
    words: Sequence[str], asked: str, remedy: str, limit_s: int, told: str = ""
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, input=told, capture_output=True, text=True, timeout=limit_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"did not answer in {limit_s} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        raise RegistryError(f"{asked} {why}.", remedy) from None


# clouds ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cloud:
    """A cloud's registries: their hosts, its credential programs, its command line, and how to log in.

    The cloud documents both ways: a credential program to enter into `config.json`, and a command that prints a token.
    """

    hosts: re.Pattern[str]
    programs: tuple[str, ...]
    command: tuple[str, ...]
    user: str  # the user name for a token
    remedy: str


_CLOUDS = (
    _Cloud(
        hosts=re.compile(r"[a-z0-9-]+-docker\.pkg\.dev|(?:[a-z]+\.)?gcr\.io"),
        programs=("docker-credential-gcloud", "docker-credential-gcr"),
        command=("gcloud", "auth", "print-access-token"),
        user="oauth2accesstoken",
        remedy="Log in with `gcloud auth login`, then `gcloud auth configure-docker {registry}`.",
    ),
    _Cloud(
        hosts=re.compile(r"(?P<name>[a-zA-Z0-9]+)\.azurecr\.(?:io|cn|us)"),
        programs=("docker-credential-acr-env", "docker-credential-acr"),
        command=("az", "acr", "login", "--name", "{name}", "--expose-token", "--output", "json"),
        user="00000000-0000-0000-0000-000000000000",
        remedy="Log in with `az login`, then `az acr login --name {name}`.",
    ),
)


def cloud_credentials(registry: str) -> Credentials | None:
    """Return the credentials from Google's or Azure's own programs for their registries.

    None for other registries, and if none of the cloud's programs is installed.

    Raises:
        RegistryError: the cloud's program fails, usually because nobody is logged in.
    """
    for cloud in _CLOUDS:
        if found := cloud.hosts.fullmatch(registry):
            program = next((name for name in cloud.programs if shutil.which(name)), None)
            if program:
                return _ask_program(program, registry)
            if shutil.which(cloud.command[0]):
                return _token(cloud, registry, found.groupdict().get("name") or "")
    return None


def _token(cloud: _Cloud, registry: str, name: str) -> Credentials:
    """Return credentials from the cloud's command line."""
    words = [word.format(name=name) for word in cloud.command]
    remedy = cloud.remedy.format(registry=registry, name=name)
    asked = f"`{' '.join(words)}`, asked for a token for {registry},"
    done = _run(words, asked, remedy, _CLOUD_LIMIT_S)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise RegistryError(f"{asked} ended with status {done.returncode}: {last}.", remedy)
    token = done.stdout.strip()
    if words[0] == "az":
        try:
            token = str(json.loads(token)["accessToken"])
        except (ValueError, KeyError, TypeError):
            raise RegistryError(f"`{' '.join(words)}` gave no token for {registry}.", remedy) from None
    return Credentials(username=cloud.user, password=token)


# Amazon ---------------------------------------------------------------------------------------------------------------


def is_ecr(registry: str) -> bool:
    """Return whether a registry is a private one of Amazon's."""
    return _ECR.fullmatch(registry) is not None


def _ecr_token(registry: str) -> Credentials:
    """Return credentials for a registry of Amazon's, reusing a token that is valid for at least another hour.

    Raises:
        RegistryError: AWS returns no token, or boto3 is not installed.
    """
    with _tokens_lock:
        known = _tokens.get(registry)
        if known and datetime.now(UTC) < known[1] - _EARLY:
            return known[0]
        answer = _ask_aws(registry, "get_authorization_token")["authorizationData"][0]
        username, _, password = base64.b64decode(answer["authorizationToken"]).decode().partition(":")
        found = Credentials(username=username, password=password)
        _tokens[registry] = found, answer["expiresAt"]
        return found


def ensure_repository(reference: Reference) -> None:
    """Create the repository if it does not exist: ECR, unlike other registries, does not create it on the first push.

    Raises:
        RegistryError: AWS refuses.
    """
    if not _has_boto3():
        return  # logged in by other means; the push then shows whether the repository exists
    registry, name = reference.registry, reference.repository
    account = registry.partition(".")[0]
    if _ask_aws(registry, "describe_repositories", registryId=account, repositoryNames=[name]) is None:
        _ask_aws(registry, "create_repository", registryId=account, repositoryName=name)


def _has_boto3() -> bool:
    return find_spec("boto3") is not None


def _ask_aws(registry: str, action: str, **arguments: Any) -> Any:
    """Call the ECR API; None if a repository is missing, or exists already when it is to be created."""
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise RegistryError(
            f"{registry} is a registry of Amazon's, for which boto3 is not installed and no login is known.",
            "Install it with `pip install 'skyward[aws]'`.",
        ) from None
    doing = f"AWS was asked to {action.replace('_', ' ')} for {registry}"
    limits = Config(connect_timeout=3, read_timeout=10, retries={"total_max_attempts": 2})
    try:
        client = boto3.client("ecr", region_name=_ECR.sub(r"\g<region>", registry), config=limits)
        return getattr(client, action)(**arguments)
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in ("RepositoryNotFoundException", "RepositoryAlreadyExistsException"):
            return None
        permission = "".join(map(str.capitalize, action.split("_")))
        raise RegistryError(
            f"{doing} and refused: {code}: {error.response.get('Error', {}).get('Message', '')}.",
            f"The identity needs the permission ecr:{permission}; `aws sts get-caller-identity` shows which it is.",
        ) from error
    except BotoCoreError as error:
        raise RegistryError(
            f"{doing}; that failed: {error}.",
            "Check the AWS credentials (`aws configure`, AWS_PROFILE, or the role of the machine) and the network.",
        ) from error


# the docker command ---------------------------------------------------------------------------------------------------


def logins_for(needed: Iterable[str] = (), perhaps: Iterable[str] = ()) -> Logins:
    """Return the user's credentials for registries, by registry.

    Args:
        needed: registries that a command certainly uses.
        perhaps: registries that it may use, such as that of a base, which the engine usually has.

    Raises:
        RegistryError: credentials for a needed registry are unavailable.
    """
    found = {name: credentials for name in set(needed) if (credentials := registry_credentials(name))}
    for name in set(perhaps) - set(found):
        try:
            credentials = registry_credentials(name)
        except RegistryError:
            continue  # if the registry requires credentials, the docker command fails in the same way
        if credentials:
            found[name] = credentials
    return found


@contextmanager
def login(logins: Logins) -> Iterator[dict[str, str]]:
    """Yield variables with which the docker command here finds these credentials, during a `with` block.

    There are none if its own configuration leads to them. Otherwise, as for a cloud's token, they name a configuration
    in a folder that only this user can enter: the user's own with these logins added.

    Raises:
        RegistryError: the user's own configuration cannot be read.
    """
    lacking = {name: credentials for name, credentials in logins.items() if not credentials.configured}
    if not lacking:
        yield {}
        return
    own = config_folder()
    with scratch_folder("login") as folder:
        for path in own.iterdir() if own.is_dir() else ():
            if path.name != "config.json":
                (folder / path.name).symlink_to(path.absolute())  # contexts, plugins
        config = with_logins(_read_config(own / "config.json"), lacking)
        (folder / "config.json").touch(mode=0o600)
        (folder / "config.json").write_text(json.dumps(config))
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
