"""A client of the registry API, version 2: manifests and blobs, tokens, retries, the host's CA bundle and proxies.

`find_image` selects the manifest of a tag's image for one platform, from an index if there is one.

It talks to one registry, with one set of rights. No engine is involved. Credentials are sent to the registry's own
origin and to its token service; redirects and uploads may lead elsewhere, without them (`http`). `RegistryAuth` answers
a registry's challenge, with name and password or a token: https://distribution.github.io/distribution/spec/auth/token/
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

import requests
from requests import PreparedRequest, Response, Session

from skyward.builder.registry.auth import Credentials, registry_credentials
from skyward.builder.registry.http import (
    LONGEST_S,
    Patience,
    Upload,
    follow,
    host_of,
    new_session,
    origin_of,
    shown_url,
    status_of,
    stay_protected,
    trust,
    unreachable,
    with_patience,
)
from skyward.builder.registry.reference import DIGEST, DOCKER_HUB, Reference
from skyward.builder.store import content_digest
from skyward.errors import RegistryError

MANIFEST_TYPES = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
INDEX_TYPES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
# limits for connecting to a registry, and for gaps in its answer
_LIMITS_S = (3.0, 30.0)
_STORE_LIMITS_S = (3.0, LONGEST_S + 60)  # for storing uploads; `Patience` ends them earlier
_TOKEN_LIMITS_S = (3.0, 10.0)
_CHALLENGE = re.compile(r"(?:^|,)\s*(Bearer|Basic)\s", re.IGNORECASE)
_PARAMETER = re.compile(r'(\w+)\s*=\s*(?:"([^"]*)"|([^\s,"]+))')


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A document or file of a registry: its content, media type, and verified digest."""

    media_type: str
    digest: str
    content: bytes = field(repr=False)


class RegistryClient:
    """A client of one registry during a `with` block.

    Args:
        reference: the registry, and the repository of all calls.
        rights: "pull" or "pull,push".

    Raises:
        RegistryError: from each method, if the registry cannot be reached, refuses, or violates the protocol.
    """

    def __init__(self, reference: Reference, rights: str = "pull") -> None:
        self._reference = reference
        self._base = f"{reference.url}/v2/{reference.repository}/"
        self._session, self._verify = new_session(reference), trust(reference)
        self._auth = RegistryAuth(self._session, reference, rights, registry_credentials)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def digest_of(self, wanted: str) -> str | None:
        """Return the digest of the manifest with that tag, by a HEAD; None if the registry does not report one.

        None does not prove absence: nothing in the answer to a HEAD shows that it came from a registry.
        """
        answer = self._call("HEAD", f"manifests/{wanted}", accept=True, expect=(200, 404))
        digest = answer.headers.get("Docker-Content-Digest", "")
        is_manifest = answer.status_code == 200 and _media_type(answer) in (*MANIFEST_TYPES, *INDEX_TYPES)
        return digest if is_manifest and DIGEST.fullmatch(digest) else None

    def manifest(self, wanted: str) -> Blob | None:
        """Return the manifest or index with that tag or digest; None if the registry reports that it has none."""
        answer = self._call("GET", f"manifests/{wanted}", accept=True, expect=(200, 404))
        if answer.status_code == 404:
            # any web server sends some page for unknown paths; only a registry's answer has its format of errors
            if not _errors(answer):
                raise self._violation("has no such page", answer)
            return None
        if _media_type(answer) not in (*MANIFEST_TYPES, *INDEX_TYPES):
            raise self._violation(f"sent {_media_type(answer) or 'something'} for a manifest", answer)
        return self._checked(answer, wanted)

    def blob(self, digest: str) -> Blob:
        """Return a whole blob; for configurations, not for layers."""
        return self._checked(self._call("GET", f"blobs/{digest}"), digest)

    def has_blob(self, digest: str) -> bool:
        """Return whether the repository has a blob."""
        return self._call("HEAD", f"blobs/{digest}", expect=(200, 404)).status_code == 200

    def put_blob(self, content: bytes) -> None:
        """Upload a blob in one piece."""
        place = self._call("POST", "blobs/uploads/", expect=(202,)).headers.get("Location", "")
        if not place:
            raise RegistryError(f"The registry {self._reference.registry} did not say where to upload to.")
        place = urljoin(self._base, place)  # another origin gets no credentials
        stay_protected(self._base, place)
        place += f"{'&' if urlsplit(place).query else '?'}digest={sha256(content)}"
        kind = {"Content-Type": "application/octet-stream"}
        self._call("PUT", place, content=content, headers=kind, expect=(201,))

    def put_blobs(self, *contents: bytes) -> None:
        """Upload those blobs that the repository does not have."""
        for content in contents:
            if not self.has_blob(sha256(content)):
                self.put_blob(content)

    def put_manifest(self, wanted: str, media_type: str, content: bytes) -> bool:
        """Put a manifest under a tag or its digest; return whether the registry lists it with its subject."""
        kind = {"Content-Type": media_type}
        answer = self._call("PUT", f"manifests/{wanted}", content=content, headers=kind, expect=(201,))
        return bool(answer.headers.get("OCI-Subject"))

    def referrers(self, digest: str) -> list[dict[str, Any]] | None:
        """Return descriptors of the attachments of an image; None from a registry without such lists."""
        answer = self._call("GET", f"referrers/{digest}", expect=(200, 404, 405))
        if answer.status_code != 200 or _media_type(answer) not in INDEX_TYPES:
            return None
        try:
            return list(answer.json().get("manifests") or ())
        except (ValueError, AttributeError):
            raise self._violation("sent something else than a list of referrers", answer) from None

    def _call(
        self,
        method: str,
        path: str,
        *,
        expect: tuple[int, ...] = (200,),
        accept: bool = False,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> Response:
        url = urljoin(self._base, path)
        sent = {**(headers or {}), **({"Accept": ", ".join((*MANIFEST_TYPES, *INDEX_TYPES))} if accept else {})}
        try:
            # a second time after an authentication challenge
            for last in (False, True):
                if content is None:
                    answer = self._send(method, url, sent)
                else:
                    patience = Patience(self._reference, f"The upload to {self._reference.name}", lambda _: None)
                    answer = with_patience(partial(self._send, method, url, sent), content, patience)
                if answer.status_code != 401 or last or not self._is_own(answer) or not self._auth.authenticate(answer):
                    break
        except requests.RequestException as error:
            raise unreachable(self._reference, error) from error
        if answer.status_code in expect:
            return answer
        if answer.status_code in (401, 403):
            if not self._is_own(answer):
                raise self._refused_elsewhere(answer)
            raise self._auth.refused(_errors(answer))
        said = status_of(answer, _errors(answer))
        reason = (
            f"The registry {self._reference.registry}, asked to {method} {shown_url(answer.url)}, answered: {said}."
        )
        raise RegistryError(reason, _advice(answer.status_code, self._reference))

    def _send(self, method: str, url: str, headers: Mapping[str, str], body: Upload | None = None) -> Response:
        return follow(
            self._session,
            method,
            url,
            headers=headers,
            data=body,
            auth=self._auth,
            timeout=_LIMITS_S if body is None else _STORE_LIMITS_S,
            verify=self._verify,
        )

    def _is_own(self, answer: Response) -> bool:
        """Return whether the registry itself answered, and not a host that it referred to."""
        return origin_of(answer.url) == origin_of(self._base)

    def _refused_elsewhere(self, answer: Response) -> RegistryError:
        return RegistryError(
            f"The registry {self._reference.registry} refers to {host_of(answer.url)} for its content, which answered "
            f"with status {answer.status_code}. The credentials of the registry were not sent there.",
            "Try again, since such addresses expire; or ask who runs the registry.",
        )

    def _checked(self, answer: Response, wanted: str) -> Blob:
        digest = sha256(answer.content)
        if DIGEST.fullmatch(wanted) and digest != wanted:
            raise RegistryError(
                f"The registry {self._reference.registry} was asked for {wanted} and sent {digest}.",
                "What it holds is damaged, or something between it and this machine changes it: push the image anew.",
            )
        return Blob(media_type=_media_type(answer), digest=digest, content=answer.content)

    def _violation(self, what: str, answer: Response) -> RegistryError:
        return RegistryError(
            f"{urlsplit(answer.url).netloc} {what}: that is not the protocol of a registry.",
            f"Check the name {self._reference.name}, and whether a proxy or a login page answers in its place.",
        )


def sha256(content: bytes) -> str:
    """Return the digest of some bytes, in the notation of registries."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def encoded(document: Mapping[str, Any]) -> bytes:
    """Encode a document of a registry; equal content results in equal bytes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _errors(answer: Response) -> str:
    """Return the errors in a registry's answer; "" if it has none in the format of the specification."""
    try:
        found: Any = answer.json().get("errors")
        return "; ".join(f"{entry['code']} {entry.get('message', '')}".strip() for entry in found)
    except (ValueError, AttributeError, TypeError, KeyError):
        return ""


def _media_type(answer: Response) -> str:
    return answer.headers.get("Content-Type", "").partition(";")[0].strip()


def _advice(status: int, reference: Reference) -> str:
    if status == 404:
        return f"Check the name {reference.name}; some registries want a repository to be created first."
    if status == 429:
        return "It limits the rate of requests: wait, or log in, which raises the limit."
    if status == 400 and reference.plain_http:
        return f"If it speaks TLS, write https://{reference.name}."
    return "Try again later, or ask who runs it." if status >= 500 else ""


class RegistryAuth:
    """The `Authorization` header of requests to a registry; called by `requests` for each.

    Args:
        session: the session for fetching tokens.
        reference: the registry.
        rights: the rights to request, "pull" or "pull,push".
        find: returns the credentials for a registry; called when the registry sends a challenge.
    """

    def __init__(
        self, session: Session, reference: Reference, rights: str, find: Callable[[str], Credentials | None]
    ) -> None:
        self._session, self._reference, self._find = session, reference, find
        self._scope = f"repository:{reference.repository}:{rights}"
        self._header = ""
        self._credentials: Credentials | None = None

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        """Add the header only for the registry itself, as redirects and uploads may lead to another origin."""
        if self._header and origin_of(request.url or "") == origin_of(self._reference.url):
            request.headers["Authorization"] = self._header
        return request

    def authenticate(self, answer: Response) -> bool:
        """Answer the challenge in a registry's refusal; False if there is nothing new to answer it with.

        Raises:
            RegistryError: the token service cannot be reached or refuses; or credentials are unavailable.
        """
        challenges = _challenges(answer.headers.get("WWW-Authenticate", ""))
        before = self._header
        self._credentials = self._find(self._reference.registry)
        if self._credentials and self._credentials.registry_token:
            self._header = f"Bearer {self._credentials.registry_token}"
        elif "bearer" in challenges:
            self._header = f"Bearer {self._token(challenges['bearer'])}"
        elif "basic" in challenges and self._credentials and self._credentials.username:
            self._header = _basic(self._credentials)
        return self._header != before

    def refused(self, said: str) -> RegistryError:
        """Return the error for a registry that refuses access."""
        name, words = self._reference.registry, f" It says: {said}." if said else ""
        login = "docker login" if name == DOCKER_HUB else f"docker login {name}"
        if self._credentials is None:
            return RegistryError(
                f"The registry {name} refuses access to {self._reference.repository}: it wants credentials, and "
                f"Docker's configuration has none for it.{words}",
                f"Log in with `{login}`. Where that is done, the repository may not exist, or be somebody else's.",
            )
        user = self._credentials.username or "a token"
        return RegistryError(
            f"The registry {name} refuses access to {self._reference.repository} with the credentials of {user}."
            f"{words}",
            f"Log in anew with `{login}`; or have that user be given the right to use the repository, or create it.",
        )

    def _token(self, challenge: dict[str, str]) -> str:
        realm = challenge.get("realm", "")
        if not self._may_ask(realm):
            raise RegistryError(
                f"The registry {self._reference.registry} wants credentials to be sent to {realm!r}, which is not "
                "protected by TLS; they were not sent.",
                "Ask who runs the registry to name a token service with https://.",
            )
        answer = self._ask_for_token(realm, challenge.get("service", ""))
        if answer.status_code in (400, 401, 403):  # answers of GitHub and others to a wrong password
            raise self.refused("")
        try:
            found: Any = answer.json()
            token = str(found.get("token") or found["access_token"])
        except (ValueError, AttributeError, KeyError, TypeError):
            raise RegistryError(
                f"The token service {host_of(realm)} of the registry {self._reference.registry} gave no token: "
                f"{status_of(answer)}.",
                "Try again later, or ask who runs it.",
            ) from None
        return token

    def _may_ask(self, realm: str) -> bool:
        """Return whether a token service may receive credentials.

        By the specification it may be any host, as Docker Hub's is:
        https://distribution.github.io/distribution/spec/auth/token/ names the service only in the challenge. It must
        use TLS, except for a registry without TLS on the registry's own host.
        """
        try:
            scheme, host, _ = origin_of(realm)
        except RegistryError:
            return False
        own_host = origin_of(self._reference.url)[1]
        return scheme == "https" or (self._reference.plain_http and scheme == "http" and host == own_host)

    def _ask_for_token(self, realm: str, service: str) -> Response:
        verify = trust(self._reference)
        known = self._credentials
        fields: dict[str, Any] = {"service": service} if service else {}
        try:
            if known and known.identity_token:
                fields |= {"grant_type": "refresh_token", "client_id": "skyward", "scope": self._scope}
                fields["refresh_token"] = known.identity_token
                # a redirect of a POST would pass on the token, and is not followed
                return self._session.post(
                    realm, data=fields, auth=_no_auth, timeout=_TOKEN_LIMITS_S, allow_redirects=False, verify=verify
                )
            fields["scope"] = self._scope
            header = _basic(known) if known and known.username else ""

            def authorize(request: PreparedRequest) -> PreparedRequest:
                if header and origin_of(request.url or "") == origin_of(realm):
                    request.headers["Authorization"] = header
                return request

            limits = {"timeout": _TOKEN_LIMITS_S, "verify": verify}
            return follow(self._session, "GET", realm, params=fields, auth=authorize, **limits)
        except requests.RequestException as error:
            raise unreachable(self._reference, error) from error


def _no_auth(request: PreparedRequest) -> PreparedRequest:
    """Prevent `requests` from replacing the header by a login from ~/.netrc."""
    return request


def _basic(credentials: Credentials) -> str:
    return "Basic " + b64encode(f"{credentials.username}:{credentials.password}".encode()).decode()


def _challenges(header: str) -> dict[str, dict[str, str]]:
    """Return the schemes of a WWW-Authenticate header, with their parameters."""
    parts = _CHALLENGE.split(header)
    return {
        scheme.lower(): {name: quoted or plain for name, quoted, plain in _PARAMETER.findall(text)}
        for scheme, text in zip(parts[1::2], parts[2::2], strict=True)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageManifest:
    """One image in a registry.

    Attributes:
        tagged: digest of the target of the tag: the manifest, or an index that contains it.
        digest: digest of the manifest, which nodes run.
        media_type: Docker's or OCI's.
        document: the manifest.
        config: the image's configuration: environment, labels, history, layers by content.
    """

    tagged: str
    digest: str
    media_type: str
    document: Mapping[str, Any] = field(repr=False, hash=False)
    config: Mapping[str, Any] = field(repr=False, hash=False)

    @property
    def layers(self) -> tuple[tuple[str, str, int], ...]:
        """Its layers from the base up: digest of the content, digest of the blob, bytes of the blob."""
        contents = self.config["rootfs"]["diff_ids"]
        blobs = self.document["layers"]
        return tuple((content, b["digest"], b["size"]) for content, b in zip(contents, blobs, strict=True))

    @property
    def content(self) -> str:
        """Digest of the executed content; see `skyward.builder.store`."""
        config = self.config
        layers = config["rootfs"]["diff_ids"]
        return content_digest(layers, config.get("config") or {}, config["os"], config["architecture"])


def find_image(client: RegistryClient, wanted: str, platform: str) -> ImageManifest | None:
    """Return the image with that tag or digest for a platform; None if there is none.

    Raises:
        RegistryError: the registry does not answer the question.
    """
    found = client.manifest(wanted)
    if found is None:
        return None
    tagged, document = found.digest, _document(found)
    if found.media_type in INDEX_TYPES:
        entries = document.get("manifests") or ()
        fitting = [entry for entry in entries if _fits(entry.get("platform") or {}, platform)]
        if not fitting:
            return None
        found = client.manifest(str(fitting[0]["digest"]))
        if found is None:
            return None
        document = _document(found)
    try:
        config = _document(client.blob(str(document["config"]["digest"])))
    except (KeyError, TypeError) as error:
        raise RegistryError(f"What the registry has as {wanted} is no image: it has no configuration.") from error
    if not _fits(config, platform):
        return None
    return ImageManifest(
        tagged=tagged, digest=found.digest, media_type=found.media_type, document=document, config=config
    )


def _document(blob: Blob) -> Mapping[str, Any]:
    try:
        found: Any = json.loads(blob.content)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RegistryError(f"The registry holds something else than JSON as {blob.digest}.", "Push the image anew.")
    return found


def _fits(described: Mapping[str, Any], platform: str) -> bool:
    """Return whether the platform in an index or a configuration is the wanted one."""
    system, _, rest = platform.partition("/")
    machine, _, variant = rest.partition("/")
    if (described.get("os"), described.get("architecture")) != (system, machine):
        return False
    return variant in ("", "v8" if machine == "arm64" else "", described.get("variant") or "")
