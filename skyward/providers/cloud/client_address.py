"""The address of this machine as machines of a cloud see it, from which alone they may be reached."""

from __future__ import annotations

from ipaddress import ip_address

from skyward.errors import ProviderError

_ADDRESS_SERVICE = "https://checkip.amazonaws.com"  # returns the public address of its caller, who need not use AWS
_TIMEOUT_S = 10.0


def client_cidr(provider: str) -> str:
    """The public address of this machine, as a network of one address.

    Args:
        provider: the provider's name for users, such as "sky.AWS".

    Raises:
        ProviderError: it cannot be found out.
    """
    import requests

    try:
        answer = requests.get(_ADDRESS_SERVICE, timeout=_TIMEOUT_S)
        answer.raise_for_status()
        address = ip_address(answer.text.strip())
    except (requests.RequestException, ValueError) as error:
        raise ProviderError(
            f"This machine's public address, from which alone the pool's machines may be reached, could not be had "
            f"from {_ADDRESS_SERVICE}: {error}. Inside the cloud's own network write {provider}(use_private_ip=True)."
        ) from error
    return f"{address}/{address.max_prefixlen}"
