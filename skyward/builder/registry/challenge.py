"""The client's answer to a registry's authentication challenge: name and password, or a token from its token service.

https://distribution.github.io/distribution/spec/auth/token/
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import requests
from requests import PreparedRequest, Response, Session

from skyward.builder.registry.auth import Credentials
from skyward.builder.registry.http import follow, host_of, origin_of, status_of, trust, unreachable
from skyward.builder.registry.reference import DOCKER_HUB, Reference
from skyward.errors import RegistryError

_LIMITS_S = (3.0, 10.0)
_CHALLENGE = re.compile(r"(?:^|,)\s*(Bearer|Basic)\s", re.IGNORECASE)
_PARAMETER = re.compile(r'(\w+)\s*=\s*(?:"([^"]*)"|([^\s,"]+))')


class RegistryAuth:
    """The `Authorization` header of requests to a registry; called by `requests` for each.

    Args:
        session: what tokens are fetched with.
        reference: the registry.
        rights: what to ask for, "pull" or "pull,push".
        find: the credentials for a registry; called when the registry sends a challenge.
    """

    def __init__(
        self, session: Session, reference: Reference, rights: str, find: Callable[[str], Credentials | None]
    ) -> None:
        self._session, self._reference, self._find = session, reference, find
        self._scope = f"repository:{reference.repository}:{rights}"
        self._header = ""
        self._credentials: Credentials | None = None

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        """Only the registry itself gets the header: redirects and uploads may lead to another origin."""
        if self._header and origin_of(request.url or "") == origin_of(self._reference.url):
            request.headers["Authorization"] = self._header
        return request

    def authenticate(self, answer: Response) -> bool:
        """Answer the challenge in a registry's refusal; False if there is nothing new to answer it with.

        Raises:
            RegistryError: the token service cannot be reached or refuses; or no credentials can be had.
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
        """The error for a registry that refuses us."""
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
        if answer.status_code in (400, 401, 403):  # GitHub's and others' answer to a wrong password is one of these
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
        """Whether a token service may get credentials. The specification lets it be any host, as Docker Hub's is.

        https://distribution.github.io/distribution/spec/auth/token/ names the service in the challenge and nowhere
        else. It has to speak TLS; only beside a registry without TLS, on that registry's own host, it need not.
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
                # a redirect of a POST would take the token along, and is not followed
                return self._session.post(
                    realm, data=fields, auth=_no_auth, timeout=_LIMITS_S, allow_redirects=False, verify=verify
                )
            fields["scope"] = self._scope
            header = _basic(known) if known and known.username else ""

            def authorize(request: PreparedRequest) -> PreparedRequest:
                if header and origin_of(request.url or "") == origin_of(realm):
                    request.headers["Authorization"] = header
                return request

            return follow(self._session, "GET", realm, params=fields, auth=authorize, timeout=_LIMITS_S, verify=verify)
        except requests.RequestException as error:
            raise unreachable(self._reference, error) from error


def _no_auth(request: PreparedRequest) -> PreparedRequest:
    """Keeps `requests` from replacing our header by what it finds in ~/.netrc."""
    return request


def _basic(credentials: Credentials) -> str:
    return "Basic " + b64encode(f"{credentials.username}:{credentials.password}".encode()).decode()


def _challenges(header: str) -> dict[str, dict[str, str]]:
    """The schemes a WWW-Authenticate header offers, with their parameters."""
    parts = _CHALLENGE.split(header)
    return {
        scheme.lower(): {name: quoted or plain for name, quoted, plain in _PARAMETER.findall(text)}
        for scheme, text in zip(parts[1::2], parts[2::2], strict=True)
    }
