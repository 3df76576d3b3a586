"""Redirects of registries, followed without credentials at other origins and never from TLS to plain http.

An origin is scheme, host and port. Registries send clients to the object store that has a blob, or to another host for
an upload: the address says all that is needed there, so the registry's credentials stay with the registry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from skyward.errors import RegistryError

if TYPE_CHECKING:
    from requests import PreparedRequest, Response, Session

_MOST = 5  # registries need one, some object stores two
_PORTS = {"http": 80, "https": 443}
_OF_READS = (301, 302, 303, 307, 308)
_OF_ALL = (307, 308)  # the others turn a request that sends something into a GET


def follow(
    session: Session,
    method: str,
    url: str,
    *,
    auth: Callable[[PreparedRequest], PreparedRequest],
    params: Any = None,
    **more: Any,
) -> Response:
    """Send a request, and again to where it is redirected.

    Args:
        session: sends it.
        method: of HTTP.
        url: where to.
        auth: puts credentials on each request, or not, by its URL.
        params: the query of the first request; a redirect has its own.
        more: for `requests`, the same with each request.

    Raises:
        RegistryError: it leads from TLS to plain http, to an address that is none, or in circles.
        requests.RequestException: the host cannot be reached.
    """
    for _ in range(_MOST + 1):
        answer = session.request(method, url, auth=auth, params=params, allow_redirects=False, **more)
        target = answer.headers.get("Location", "")
        if not target or answer.status_code not in (_OF_READS if method in ("GET", "HEAD") else _OF_ALL):
            return answer
        target = urljoin(answer.url, target)
        stay_protected(answer.url, target)
        url, params = target, None
    raise RegistryError(
        f"{host_of(url)} redirected a request of a registry more than {_MOST} times.",
        "Check the name of the image, and whether a proxy or a login page answers in the registry's place.",
    )


def stay_protected(url: str, target: str) -> None:
    """See that a URL does not lead from TLS to something else.

    Raises:
        RegistryError: it does.
    """
    scheme = origin_of(target)[0]
    if scheme not in _PORTS or (origin_of(url)[0] == "https" and scheme != "https"):
        raise RegistryError(
            f"{host_of(url)} leads from {origin_of(url)[0]} to {scheme}://{host_of(target)}, which is not protected by "
            "TLS; nothing was sent there.",
            "Ask who runs the registry to set its external address to https:// (behind a proxy: X-Forwarded-Proto).",
        )


def origin_of(url: str) -> tuple[str, str, int]:
    r"""Scheme, host and port of a URL, as the library that connects to it reads it.

    `urllib.parse` reads some URLs differently: of `https://a\@b/` it takes b for the host, and requests connects to a.

    Raises:
        RegistryError: it is no absolute URL.
    """
    from urllib3.exceptions import LocationParseError
    from urllib3.util import parse_url

    try:
        parts = parse_url(url)
    except LocationParseError:
        parts = None
    if parts is None or not parts.scheme or not parts.host:
        raise RegistryError("A registry led to an address that is no URL.", "Ask who runs the registry.")
    scheme = parts.scheme.lower()
    return scheme, parts.host.lower(), parts.port or _PORTS.get(scheme, 0)


def shown_url(url: str) -> str:
    """A URL for messages: its query, which at other origins may be a signature, is left out."""
    return f"{origin_of(url)[0]}://{host_of(url)}{urlsplit(url).path}"


def host_of(url: str) -> str:
    """Host and port of a URL, for messages: nothing that may be a password."""
    scheme, host, port = origin_of(url)
    return host if port == _PORTS.get(scheme) else f"{host}:{port}"
