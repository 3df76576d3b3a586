"""Amazon's registry: tokens through boto3, new ones before they end, and repositories made when they are missing.

boto3 finds its own credentials (environment, profile, role of the machine). A token stays in memory.
"""

from __future__ import annotations

import base64
import re
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

from skyward.build.registry.credentials import Credentials, find_credentials, registry_helper
from skyward.build.registry.reference import Reference
from skyward.errors import RegistryError

_HOST = re.compile(
    r"(?P<account>\d{12})\.dkr[.-]ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|on\.aws)"
)
_EARLY = timedelta(hours=1)  # a token of 12 hours is replaced after 11: a push that starts with it must also end
_tokens: dict[str, tuple[Credentials, datetime]] = {}
_lock = threading.Lock()


def is_ecr(registry: str) -> bool:
    """Whether a registry is a private one of Amazon's."""
    return _HOST.fullmatch(registry) is not None


def ecr_credentials(registry: str) -> Credentials:
    """A token for a registry of Amazon's; one that is still good for an hour is used again.

    A credential program that Docker's configuration names for this very registry comes first. Without boto3 whatever
    `docker login` left is used.

    Raises:
        RegistryError: AWS gives no token, or boto3 is not installed and nobody logged in.
    """
    helped = find_credentials(registry) if registry_helper(registry) or not _has_boto3() else None
    if helped:
        return helped
    with _lock:
        known = _tokens.get(registry)
        if known and datetime.now(UTC) < known[1] - _EARLY:
            return known[0]
        answer = _call(registry, "get_authorization_token")["authorizationData"][0]
        username, _, password = base64.b64decode(answer["authorizationToken"]).decode().partition(":")
        credentials = Credentials(username=username, password=password)
        _tokens[registry] = credentials, answer["expiresAt"]
        return credentials


def ensure_repository(reference: Reference) -> None:
    """Make the repository if it is not there: ECR, unlike others, makes none with the first push.

    Raises:
        RegistryError: AWS refuses.
    """
    account, name = _parts(reference.registry)[0], reference.repository
    if not _has_boto3():
        return  # somebody logged in without us; whether the repository exists is then told by the push
    if _call(reference.registry, "describe_repositories", registryId=account, repositoryNames=[name]) is None:
        _call(reference.registry, "create_repository", registryId=account, repositoryName=name)


def _has_boto3() -> bool:
    from importlib.util import find_spec

    return find_spec("boto3") is not None


def _parts(registry: str) -> tuple[str, str]:
    found = _HOST.fullmatch(registry)
    assert found
    return found["account"], found["region"]


def _call(registry: str, action: str, **arguments: Any) -> Any:
    """One call of the ECR API; None where it says that the repository is missing, or there already when made."""
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
        client = boto3.client("ecr", region_name=_parts(registry)[1], config=limits)
        return getattr(client, action)(**arguments)
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in ("RepositoryNotFoundException", "RepositoryAlreadyExistsException"):
            return None
        raise RegistryError(
            f"{doing} and refused: {code}: {error.response.get('Error', {}).get('Message', '')}.",
            f"The identity needs the permission ecr:{_camel(action)}; `aws sts get-caller-identity` shows which it is.",
        ) from error
    except BotoCoreError as error:
        raise RegistryError(
            f"{doing}; that failed: {error}.",
            "Check the AWS credentials (`aws configure`, AWS_PROFILE, or the role of the machine) and the network.",
        ) from error


def _camel(action: str) -> str:
    return "".join(word.capitalize() for word in action.split("_"))
