"""Calls of Compute Engine's API through Google's library, with readable errors.

No other module imports `google`. Credentials are Application Default Credentials: GOOGLE_APPLICATION_CREDENTIALS, those
of `gcloud auth application-default login`, or the service account of the machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from skyward.errors import ConfigError, ProviderError
from skyward.providers.cloud.base import RefusedError, named
from skyward.system import threading, time

MIN_COUNT = "VM_MIN_COUNT_NOT_REACHED"  # for a launch as a whole; other errors give the reason
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_QUOTA = ("QUOTA_EXCEEDED", "quotaExceeded")
_NOT_ALLOWED = ("forbidden", "PERMISSIONS_ERROR")
_CALL_S, _RETRY_S = 150.0, 20.0  # Google answers a call that waits for an operation after at most two minutes
_OPERATION_S = 900.0
_PRICES = "services/6F81-5844-456A/skus"
_lock = threading.Lock()


class Api:
    """Compute Engine for one region and project.

    Args:
        place: region, such as "us-central1", or "PROJECT/REGION". The default region is that of gcloud's variable
            CLOUDSDK_COMPUTE_REGION; the default project is that of the credentials.
    """

    def __init__(self, place: str | None) -> None:
        self._project, _, self._region = (place or "").rpartition("/")
        self._clients: dict[str, Any] = {}

    @cached_property
    def region(self) -> str:
        """The region; raises ConfigError if none is set."""
        found = self._region or os.environ.get("CLOUDSDK_COMPUTE_REGION")
        return named(found, "region of Google Cloud", "sky.GCP('us-central1')", "CLOUDSDK_COMPUTE_REGION")

    @cached_property
    def project(self) -> str:
        """The project's id; raises ConfigError if none is set."""
        found = self._project or self._default[1]
        return named(found, "project of Google Cloud", "sky.GCP('PROJECT/REGION')", "GOOGLE_CLOUD_PROJECT")

    @cached_property
    def _default(self) -> tuple[Any, str | None]:
        """The credentials, and the project that they name."""
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError

        try:
            found: tuple[Any, str | None] = google.auth.default(scopes=[SCOPE])
        except DefaultCredentialsError as error:
            raise ConfigError(
                f"sky.GCP() found no credentials: {error} Run `gcloud auth application-default login`, or name a key "
                "file in GOOGLE_APPLICATION_CREDENTIALS."
            ) from None
        return found

    def _client(self, service: str) -> Any:
        credentials = self._default[0]
        from google.cloud import compute_v1

        with _lock:
            if service not in self._clients:
                made = getattr(compute_v1, "".join(map(str.capitalize, service.split("_"))) + "Client")
                options = {"api_endpoint": _endpoint("COMPUTE")}
                self._clients[service] = made(credentials=credentials, client_options=options)
            return self._clients[service]

    def call(self, service: str, method: str, **fields: Any) -> Any:
        """Make one call, such as ("instances", "bulk_insert_unary"), in the project unless `project` names another.

        Raises:
            RefusedError: Google refuses.
            ProviderError: Google does not answer.
            ConfigError: credentials, region or project are missing.
        """
        client = self._client(service)
        from google.api_core.retry import Retry

        request = {"project": self.project, **fields}  # each call is safe to repeat: see the tokens and names
        with _in_sentences(f"{method.removesuffix('_unary')} {service}".replace("_", " ")):
            return getattr(client, method)(request=request, retry=Retry(timeout=_RETRY_S), timeout=_CALL_S)

    def all(self, service: str, method: str = "list", **fields: Any) -> Iterator[Any]:
        """Yield the items in all pages of an answer; for `aggregated_list` pairs of a zone and its items."""
        pages = self.call(service, method, **fields)
        with _in_sentences(f"{method} {service}".replace("_", " ")):
            yield from pages

    def finish(self, operation: Any) -> None:
        """Wait until an operation has ended.

        Raises:
            RefusedError: it has failed.
            ProviderError: it does not end.
        """
        deadline = time.monotonic() + _OPERATION_S
        name, zone = operation.name, operation.zone.rpartition("/")[2]
        while operation.status.name != "DONE":
            if time.monotonic() > deadline:
                raise ProviderError(f"Google has not finished {operation.operation_type} {name} in {_OPERATION_S:g} s.")
            service, where = ("zone_operations", {"zone": zone}) if zone else ("global_operations", {})
            operation = self.call(service, "wait", operation=name, **where)
        errors = list(operation.error.errors)
        if errors and errors[0].code == MIN_COUNT:
            group = f'operationGroupId="{operation.operation_group_id}"'
            for each in self.all("zone_operations", zone=zone, filter=group):
                errors += each.error.errors
        if errors:
            why = next((each for each in errors if each.code != MIN_COUNT), errors[0])
            raise _refused(operation.operation_type, why.code, why.message)

    def price_list(self, fields: str) -> Iterator[Mapping[str, Any]]:
        """Yield the entries of the public price list of Compute Engine, in the format of the Cloud Billing API."""
        credentials = self._default[0]
        from google.auth.transport.requests import AuthorizedSession

        url = f"{_endpoint('CLOUDBILLING') or 'https://cloudbilling.googleapis.com'}/v1/{_PRICES}"
        query = {"pageSize": "5000", "fields": f"nextPageToken,skus({fields})"}
        with _in_sentences("list prices"), AuthorizedSession(credentials) as session:
            while query.get("pageToken") != "":
                answer = session.get(url, params=query, timeout=_CALL_S)
                if not answer.ok:
                    raise _refused("list prices", str(answer.status_code), answer.text[:300])
                page = answer.json()
                yield from page.get("skus", ())
                query["pageToken"] = page.get("nextPageToken", "")


def _endpoint(service: str) -> str | None:
    """Return scheme and host of a service if gcloud's variable overrides Google's public one; else None."""
    given = urlsplit(os.environ.get(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service}", ""))
    return f"{given.scheme}://{given.netloc}" if given.netloc else None


@contextmanager
def _in_sentences(doing: str) -> Iterator[None]:
    """Raise Google's errors as skyward's."""
    from google.api_core.exceptions import GoogleAPICallError, GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from requests import RequestException

    try:
        yield
    except GoogleAPICallError as error:
        first = next((each for each in error.errors if isinstance(each, dict)), {})
        raise _refused(doing, str(first.get("reason", error.code)), str(first.get("message", error.message))) from None
    except (GoogleAPIError, GoogleAuthError, RequestException) as error:
        raise ProviderError(
            f"Google Cloud was asked to {doing}; that failed: {str(error).rstrip('.')}. Check the credentials "
            "(`gcloud auth application-default login`) and the network."
        ) from None


def _refused(doing: str, code: str, said: str) -> RefusedError:
    text = f"Google Cloud was asked to {doing} and refused: {code}: {said.strip().rstrip('.')}."
    if code in _QUOTA:
        text += " Ask for a higher limit at https://console.cloud.google.com/iam-admin/quotas, or use another region."
    if code in _NOT_ALLOWED:
        text += " The identity needs the role in docs/gcp.md (Permissions)."
    return RefusedError(text, code)
