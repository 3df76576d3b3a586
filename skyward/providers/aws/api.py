"""Calls of the AWS API, with lazily created clients and readable errors.

No other module imports boto3. It finds credentials itself: environment, AWS_PROFILE, role of the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final

from skyward.errors import ProviderError
from skyward.providers.cloud.base import RefusedError, named
from skyward.system import threading

TAG: Final = "skyward."  # prefix of the tags of a pool's resources: pool, owner, user, hourly
POOL: Final = f"{TAG}pool"
_PRICE_REGION = "us-east-1"  # the price list has endpoints in a few regions only, each with the prices of all
_lock = threading.Lock()  # a boto3 session must not create two clients at once


class Api:
    """The services of AWS in one region.

    Args:
        region: such as "us-east-1"; None for the one in AWS's configuration.
    """

    def __init__(self, region: str | None) -> None:
        self._configured = region
        self._clients: dict[str, Any] = {}

    @cached_property
    def region(self) -> str:
        """The region.

        Raises:
            ConfigError: no region is configured.
        """
        found = self._configured or self._session.region_name
        return named(found, "region of AWS", "sky.AWS(region='us-east-1')", "AWS_REGION")

    @cached_property
    def _session(self) -> Any:
        import boto3

        return boto3.Session()

    def _client(self, service: str) -> Any:
        from botocore.config import Config

        with _lock:
            if service not in self._clients:
                retries = {"mode": "standard", "total_max_attempts": 3}
                limits = Config(connect_timeout=5, read_timeout=30, retries=retries)
                region = _PRICE_REGION if service == "pricing" else self.region
                self._clients[service] = self._session.client(service, region_name=region, config=limits)
            return self._clients[service]

    def call(self, service: str, action: str, **arguments: Any) -> Mapping[str, Any]:
        """Make one call, such as ("ec2", "describe_images").

        Raises:
            RefusedError: AWS refuses.
            ProviderError: AWS does not answer.
            ConfigError: no region is configured.
        """
        client = self._client(service)
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        try:
            answer: Mapping[str, Any] = getattr(client, action)(**arguments)
        except ClientError as error:
            raise _refused(service, action, error.response.get("Error", {})) from None
        except (BotoCoreError, ResponseParserError) as error:
            raise ProviderError(
                f"AWS was asked to {action.replace('_', ' ')}; that failed: {str(error).rstrip('.')}. Check the "
                "credentials (`aws configure`, AWS_PROFILE, or the role of the machine) and the network."
            ) from None
        return answer

    def all(self, service: str, action: str, key: str, **arguments: Any) -> Iterator[Any]:
        """Yield the items under a key in all pages of an answer."""
        while True:
            page = self.call(service, action, **arguments)
            yield from page.get(key, ())
            if not page.get("NextToken"):
                return
            arguments["NextToken"] = page["NextToken"]


def _refused(service: str, action: str, error: Mapping[str, Any]) -> RefusedError:
    code, said = str(error.get("Code", "")), str(error.get("Message", "")).rstrip(".")
    text = f"AWS was asked to {action.replace('_', ' ')} and refused: {code}: {said}."
    if code in ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException"):
        name = "".join(word.capitalize() for word in action.split("_"))
        text += f" The identity needs the permission {service}:{name}; `aws sts get-caller-identity` says which it is."
    return RefusedError(text, code)
