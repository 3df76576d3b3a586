"""HTTP with registries: certificates, retries, redirects without credentials, and patience with silent transfers.

Trusted certificates are those found by `skyward.builder.site.settings`, and for a registry by name those of Docker's
engine: `certs.d/HOST[:PORT]/*.crt` as CAs, a pair `NAME.cert` and `NAME.key` as the client's own certificate
(https://docs.docker.com/engine/security/certificates/).

An origin is scheme, host and port. Registries refer clients to the object store of a blob, or to another host for an
upload: the address contains everything needed there, so the registry's credentials are not sent. No redirect from TLS
to plain http is followed.

Registries take minutes to store a large layer, and send nothing meanwhile: distribution's upload of a layer ends with
one request that is answered once the object store has the whole (https://github.com/distribution/distribution,
docs/spec: Completed Upload). So silence itself is not a failure. It is one if the registry no longer answers other
requests, or answers them while the transfer makes no progress for half an hour.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from http.cookiejar import DefaultCookiePolicy
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from urllib3.exceptions import InvalidHeader, LocationParseError, MaxRetryError, ResponseError
from urllib3.util import Retry, parse_url
from urllib3.util.ssl_ import create_urllib3_context

from skyward.builder.events import Report, note
from skyward.builder.folders import home
from skyward.builder.registry.reference import Reference, is_loopback
from skyward.builder.site.settings import ca_bundle
from skyward.errors import RegistryError
from skyward.model.image_fields import without_logins

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

_TRIES = 5
_MOST_REDIRECTS = 5  # registries need one, some object stores two
_PORTS = {"http": 80, "https": 443}
_OF_READS = (301, 302, 303, 307, 308)
_OF_ALL = (307, 308)  # the others turn a request with a body into a GET
_LONGEST_WAIT_S = 30.0  # longest accepted Retry-After; hubs that limit the rate send hours
LONGEST_S = 1800.0  # of a transfer without progress
_ASK_AFTER_S = 15.0  # of silence, and between pings
_SAY_EVERY_S = 30.0
_GONE_S = 60.0  # without an answer; longer than a restart of a registry takes
_LOOK_S = 1.0
_PIECE = 2**16
_PING_LIMITS_S = (3.0, 10.0)
_log = logging.getLogger(__name__)

R = TypeVar("R")


def new_session(reference: Reference, *, tries: int = _TRIES) -> requests.Session:
    """Create a session for one registry, and for the hosts that it refers to.

    Raises:
        ConfigError: a variable names a CA bundle that cannot be used.
        RegistryError: a file of `certs.d` cannot be used.
    """
    session = requests.Session()
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))  # cookies ignore ports; Docker keeps none
    session.headers.clear()
    session.headers["User-Agent"] = "skyward"
    # as in Docker, this machine itself is reached without a proxy
    session.trust_env = not is_loopback(reference.registry)
    retries = _Retries(
        total=tries - 1,
        connect=min(1, tries - 1),
        read=min(1, tries - 1),
        other=0,  # an untrusted certificate does not become trusted by waiting
        allowed_methods=None,  # all methods, as the requests sent here are idempotent
        status_forcelist=(429, 500, 502, 503, 504),
        backoff_factor=0.3,
        raise_on_status=False,
    )
    given = None if reference.plain_http else engine_certificates(reference.registry)
    for prefix in ("http://", "https://"):
        session.mount(prefix, _Adapter(retries, given.context(with_client=False) if given else None))
    if given and given.client:  # only for the registry itself
        session.mount(f"{reference.url}/", _Adapter(retries, given.context(with_client=True)))
    return session


def trust(reference: Reference) -> bool | str:
    """Return the `verify` of a request; passed explicitly, as the variables of `requests` would take precedence."""
    bundle = None if reference.plain_http else ca_bundle()
    return str(bundle.path) if bundle else True


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCertificates:
    """The certificates in `certs.d` for a registry.

    Attributes:
        folders: the folders found.
        authorities: files of CA certificates.
        client: the client's certificate, and its key.
    """

    folders: tuple[Path, ...]
    authorities: tuple[Path, ...]
    client: tuple[Path, Path] | None

    def context(self, *, with_client: bool) -> ssl.SSLContext:
        """Create a context for connections that trust these certificates besides the usual ones.

        Raises:
            RegistryError: a file cannot be read, or is invalid.
        """
        context = create_urllib3_context()
        file = self.folders[0]
        try:
            for file in self.authorities:
                context.load_verify_locations(file)
            if with_client and self.client:
                file = self.client[1]
                context.load_cert_chain(*self.client)
        except OSError as error:  # ssl's errors are OSErrors
            raise RegistryError(
                f"{file}, which is for a registry's TLS, cannot be used: {error.strerror or error}.",
                "See that this user may read it and that it is in PEM form, or remove it.",
            ) from error
        return context


def engine_certificates(registry: str) -> EngineCertificates | None:
    """Return a registry's certificates in `certs.d`, also of a rootless engine; None if there are none.

    Raises:
        RegistryError: a client's certificate has no key.
    """
    settings = Path(os.environ.get("XDG_CONFIG_HOME") or home() / ".config")
    roots = (home() / ".docker", settings / "docker", Path("/etc/docker"))
    folders = tuple(folder for root in roots if (folder := root / "certs.d" / registry).is_dir())
    files = [path for folder in folders for path in sorted(folder.iterdir())]
    pairs = [(path, path.with_suffix(".key")) for path in files if path.suffix == ".cert"]
    for certificate, key in pairs:
        if not key.exists():
            raise RegistryError(
                f"The client certificate {certificate} for the registry {registry} has no key {key.name} beside it.",
                "Put the key there; files with certificates of CAs end in .crt.",
            )
    found = EngineCertificates(
        folders=folders,
        authorities=tuple(path for path in files if path.suffix == ".crt"),
        client=pairs[0] if pairs else None,
    )
    return found if found.authorities or found.client else None


def follow(
    session: requests.Session,
    method: str,
    url: str,
    *,
    auth: Callable[[PreparedRequest], PreparedRequest],
    params: Any = None,
    **more: Any,
) -> Response:
    """Send a request and follow its redirects.

    Args:
        session: the session.
        method: the HTTP method.
        url: the first URL.
        auth: adds credentials to each request depending on its URL.
        params: the query of the first request; a redirect has its own.
        more: arguments for `requests`, the same with each request.

    Raises:
        RegistryError: it leads from TLS to plain http, to an invalid address, or in circles.
        requests.RequestException: the host cannot be reached.
    """
    for _ in range(_MOST_REDIRECTS + 1):
        answer = session.request(method, url, auth=auth, params=params, allow_redirects=False, **more)
        target = answer.headers.get("Location", "")
        if not target or answer.status_code not in (_OF_READS if method in ("GET", "HEAD") else _OF_ALL):
            return answer
        target = urljoin(answer.url, target)
        stay_protected(answer.url, target)
        url, params = target, None
    raise RegistryError(
        f"{host_of(url)} redirected a request of a registry more than {_MOST_REDIRECTS} times.",
        "Check the name of the image, and whether a proxy or a login page answers in the registry's place.",
    )


def stay_protected(url: str, target: str) -> None:
    """Check that a URL does not lead from TLS to something else.

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
    r"""Return scheme, host and port of a URL, as the library that connects to it reads it.

    `urllib.parse` reads some URLs differently: in `https://a\@b/` it takes b for the host, and requests connects to a.

    Raises:
        RegistryError: it is not an absolute URL.
    """
    try:
        parts = parse_url(url)
    except LocationParseError:
        parts = None
    if parts is None or not parts.scheme or not parts.host:
        raise RegistryError("A registry led to an address that is not a URL.", "Ask who runs the registry.")
    scheme = parts.scheme.lower()
    return scheme, parts.host.lower(), parts.port or _PORTS.get(scheme, 0)


def shown_url(url: str) -> str:
    """Return a URL for messages, without its query, which at other origins may be a signature."""
    return f"{origin_of(url)[0]}://{host_of(url)}{urlsplit(url).path}"


def host_of(url: str) -> str:
    """Return host and port of a URL for messages, without a possible login."""
    scheme, host, port = origin_of(url)
    return host if port == _PORTS.get(scheme) else f"{host}:{port}"


def unreachable(reference: Reference, error: Exception) -> RegistryError:
    """Return the error for a connection that could not be established or was broken."""
    words = _innermost(error)
    reason = f"The registry {reference.registry} cannot be asked: {words}."
    if "WRONG_VERSION_NUMBER" in words or "record layer failure" in words:
        return RegistryError(reason, f"If it speaks plain http, write http://{reference.name}.")
    if "CERTIFICATE_VERIFY_FAILED" in words:
        return RegistryError(
            f"{reason} {_trusted(reference)}",
            f"Point SSL_CERT_FILE to a bundle with the CA that signed its certificate, or put that CA into "
            f"/etc/docker/certs.d/{reference.registry}/ca.crt.",
        )
    return RegistryError(
        reason, "Check the name, the network, and HTTPS_PROXY and NO_PROXY; or whether the registry runs at all."
    )


def status_of(answer: Response, said: str = "") -> str:
    """Describe an answer for messages: status, the host's text, number of attempts, and the requested wait."""
    words = f"status {answer.status_code} {answer.reason}".rstrip() + (f" ({said})" if said else "")
    retries = getattr(answer.raw, "retries", None)
    if retries is not None and retries.history:
        words += f", asked {len(retries.history) + 1} times"
    if wait := answer.headers.get("Retry-After"):
        words += f"; it wants to be asked again after {wait}{' s' if wait.strip().isdigit() else ''}"
    return words


def _trusted(reference: Reference) -> str:
    bundle, given = ca_bundle(), engine_certificates(reference.registry)
    found = [str(bundle) if bundle else "the ones that come with requests", *(given.authorities if given else ())]
    return f"The CA certificates of {', '.join(map(str, found))} are trusted."


class _Adapter(HTTPAdapter):
    """Requests with skyward's retries and an optional TLS context."""

    def __init__(self, retries: Retry, context: ssl.SSLContext | None) -> None:
        self._tls: dict[str, Any] = {"ssl_context": context} if context else {}
        super().__init__(max_retries=retries)

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **more: Any) -> None:
        super().init_poolmanager(connections, maxsize, block, **more, **self._tls)

    def proxy_manager_for(self, proxy: str, **more: Any) -> Any:
        return super().proxy_manager_for(proxy, **more, **self._tls)


class _Retries(Retry):
    """Waits as long as the host asks for; if that is too long, its answer is final."""

    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        try:
            return super().get_retry_after(response)
        except InvalidHeader:  # neither seconds nor a date: treated as missing
            return None

    def increment(self, *args: Any, **more: Any) -> Self:
        response = more.get("response")
        if response is not None and (self.get_retry_after(response) or 0) > _LONGEST_WAIT_S:
            raise MaxRetryError(more["_pool"], "", ResponseError("it wants to be left alone for too long"))
        return super().increment(*args, **more)

    def sleep_for_retry(self, response: BaseHTTPResponse) -> bool:
        wait_s = self.get_retry_after(response) or 0
        if wait_s > 1:
            _log.warning("A registry answered with status %s; asking again in %.0f s.", response.status, wait_s)
        return super().sleep_for_retry(response)


def _innermost(error: BaseException) -> str:
    """Return the system's own message, from under the layers of HTTP libraries."""
    while True:
        inner = error.__cause__ or error.__context__ or getattr(error, "reason", None)
        if not isinstance(inner, BaseException):
            return without_logins(str(error)).rstrip(".")
        error = inner


class Patience:
    """Called during a transfer's silence with its seconds; see `skyward.engine.Images.push`.

    Args:
        reference: the image and its registry.
        doing: the transfer, as the beginning of a sentence, such as "The engine's push of r.io/team/x:tag".
        report: receives messages about the wait.
    """

    def __init__(self, reference: Reference, doing: str, report: Report) -> None:
        self._reference, self._doing, self._report = reference, doing, report
        self._asked_s = self._said_s = monotonic()
        self._answered_s = monotonic()

    def __call__(self, silent_s: float) -> None:
        """Continue to wait, or raise RegistryError."""
        now = monotonic()
        if silent_s < _ASK_AFTER_S or now - self._asked_s < _ASK_AFTER_S:
            return
        self._answered_s = max(self._answered_s, now - silent_s)  # progress until then came from the registry
        failure = _failure_to_answer(self._reference)
        self._asked_s = monotonic()
        name = self._reference.registry
        if not failure:
            self._answered_s = self._asked_s
            if silent_s > LONGEST_S:
                raise RegistryError(
                    f"{self._doing} has made no progress for {silent_s:.0f} s, although the registry {name} answers "
                    "other requests.",
                    "See in the registry's log what it does with the layer; what has arrived stays. Then repeat it.",
                )
        elif self._asked_s - self._answered_s > _GONE_S:
            raise RegistryError(
                f"{self._doing} has ended: the registry {name} has not answered for "
                f"{self._asked_s - self._answered_s:.0f} s. {failure}",
                "See that the registry runs, and repeat it; layers that have arrived stay.",
            )
        if self._asked_s - self._said_s > _SAY_EVERY_S:
            self._said_s = self._asked_s
            state = f"does not answer: {failure}" if failure else "answers other requests"
            self._report(note(f"waiting for {name}, silent for {silent_s:.0f} s; it {state}"))


class Upload:
    """The body of a request. Each redirect and retry sends it again from its start."""

    def __init__(self, content: bytes) -> None:
        self._content, self._moved_s = content, 0.0

    def __len__(self) -> int:
        return len(self._content)

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._content), _PIECE):
            self._moved_s = monotonic()
            yield self._content[start : start + _PIECE]

    @property
    def silent_s(self) -> float:
        """Seconds since the last piece was sent."""
        return monotonic() - self._moved_s if self._moved_s else 0.0


def with_patience(send: Callable[[Upload], R], content: bytes, patience: Patience) -> R:
    """Send content to which the answer may be slow, for as long as `patience` waits."""
    body, done = Upload(content), Future[R]()

    def run() -> None:
        try:
            done.set_result(send(body))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="skyward-upload", daemon=True).start()
    while True:
        try:
            return done.result(_LOOK_S)
        except TimeoutError:
            if done.done():
                raise
            patience(body.silent_s)


def wait_for_registry(reference: Reference, pause_s: float) -> None:
    """Wait before asking a busy registry again: for `pause_s`, and for as long as the registry requests."""
    sleep(pause_s)
    with suppress(requests.RequestException), new_session(reference) as session:  # its retries respect Retry-After
        _ping(session, reference)


def _failure_to_answer(reference: Reference) -> str:
    """Return the reason why a registry does not answer, as a sentence; "" if it answers at all."""
    with new_session(reference, tries=1) as session:
        try:
            answer = _ping(session, reference)
        except requests.RequestException as error:
            return unreachable(reference, error).reason
    return f"Status {answer.status_code} {answer.reason}." if answer.status_code in (502, 503, 504) else ""


def _ping(session: requests.Session, reference: Reference) -> Response:
    url = f"{reference.url}/v2/"
    return session.get(url, timeout=_PING_LIMITS_S, allow_redirects=False, verify=trust(reference))
