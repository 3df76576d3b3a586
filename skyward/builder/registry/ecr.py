"""Amazon's registry: tokens through boto3, renewed before they expire, and repositories created when missing.

boto3 finds its own credentials (environment, profile, role of the machine). A token stays in memory.
"""

from __future__ import annotations

import base64
import re
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

from skyward.builder.registry.reference import Reference
from skyward.errors import RegistryError

_HOST = re.compile(
    r"(?P<account>\d{12})\.dkr[.-]ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|on\.aws)"
)
_EARLY = timedelta(hours=1)  # a token of 12 hours is replaced after 11: a push that starts with it must also end
_tokens: dict[str, tuple[tuple[str, str], datetime]] = {}
_lock = threading.Lock()


def is_ecr(registry: str) -> bool:
    """Whether a registry is a private one of Amazon's."""
    return _HOST.fullmatch(registry) is not None


def token(registry: str) -> tuple[str, str]:
    """User name and password for a registry of Amazon's; a token that is valid for another hour is used again.

    Raises:
        RegistryError: AWS gives no token, or boto3 is not installed.
    """
    with _lock:
        known = _tokens.get(registry)
        if known and datetime.now(UTC) < known[1] - _EARLY:
            return known[0]
        answer = _call(registry, "get_authorization_token")["authorizationData"][0]
        username, _, password = base64.b64decode(answer["authorizationToken"]).decode().partition(":")
        _tokens[registry] = (username, password), answer["expiresAt"]
        return username, password


def ensure_repository(reference: Reference) -> None:
    """Create the repository if it does not exist: unlike other registries, ECR does not with the first push.

    Raises:
        RegistryError: AWS refuses.
    """
    account, name = _parts(reference.registry)[0], reference.repository
    if not has_boto3():
        return  # logged in by other means; the push then shows whether the repository exists
    if _call(reference.registry, "describe_repositories", registryId=account, repositoryNames=[name]) is None:
        _call(reference.registry, "create_repository", registryId=account, repositoryName=name)


def has_boto3() -> bool:
    """Whether boto3 is installed."""
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
