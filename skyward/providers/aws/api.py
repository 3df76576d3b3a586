"""Calls of AWS: clients that are made when they are needed, and errors as sentences. The only room that knows boto3.

boto3 finds credentials by itself (environment, AWS_PROFILE, role of the machine).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from skyward.errors import ConfigError, ProviderError
from skyward.system import threading

_PRICES_IN = "us-east-1"  # the price list has an endpoint in a few regions only, each of which knows the prices of all
_lock = threading.Lock()  # boto3 makes clients in one thread at a time


class RefusedError(ProviderError):
    """AWS refused a call.

    Attributes:
        code: its own word for the reason, such as "InsufficientInstanceCapacity".
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class Api:
    """The services of AWS in one region.

    Args:
        region: such as "us-east-1"; None for the one that AWS' configuration names.
    """

    def __init__(self, region: str | None) -> None:
        self._asked = region
        self._clients: dict[str, Any] = {}

    @cached_property
    def region(self) -> str:
        """The region.

        Raises:
            ConfigError: boto3 is missing, or no region is named anywhere.
        """
        found = self._asked or self._session.region_name
        if not found:
            raise ConfigError("No region of AWS is named. Write sky.AWS(region='us-east-1'), or set AWS_REGION.")
        return str(found)

    @cached_property
    def _session(self) -> Any:
        try:
            import boto3
        except ImportError:
            raise ConfigError("sky.AWS() needs boto3. Install it with `pip install 'skyward[aws]'`.") from None
        return boto3.Session()

    def _client(self, service: str) -> Any:
        from botocore.config import Config

        with _lock:
            if service not in self._clients:
                limits = Config(
                    connect_timeout=5, read_timeout=30, retries={"mode": "standard", "total_max_attempts": 3}
                )
                region = _PRICES_IN if service == "pricing" else self.region
                self._clients[service] = self._session.client(service, region_name=region, config=limits)
            return self._clients[service]

    def call(self, service: str, action: str, **arguments: Any) -> Mapping[str, Any]:
        """Make one call, such as ("ec2", "describe_images").

        Raises:
            RefusedError: AWS says no.
            ProviderError: no answer came.
            ConfigError: boto3 or a region is missing.
        """
        client = self._client(service)
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        try:
            answer: Mapping[str, Any] = getattr(client, action)(**arguments)
        except ClientError as error:
            raise _refused(service, action, error.response.get("Error", {})) from error
        except (BotoCoreError, ResponseParserError) as error:
            raise ProviderError(
                f"AWS was asked to {action.replace('_', ' ')}; that failed: {str(error).rstrip('.')}. Check the "
                "credentials (`aws configure`, AWS_PROFILE, or the role of the machine) and the network."
            ) from error
        return answer

    def all(self, service: str, action: str, key: str, **arguments: Any) -> Iterator[Any]:
        """What stands under a key in all pages of an answer."""
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
