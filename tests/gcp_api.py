"""Compute Engine's API for tests, as small as the calls of `sky.GCP` need: a project in this process, on loopback.

Google's own library talks to it over HTTP, with a service account's key file made here. Operations end a moment after
they have begun, and what they make exists only then, as at Google.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from werkzeug.serving import WSGIRequestHandler, make_server

from tests.gcp_permissions import required

UNIVERSE = "test.invalid"  # in Google's own the library asks IAM, which is not here, about each service account
PROJECT, REGION = "test-project", "us-central1"
ZONES = ("us-central1-a", "us-central1-b")
NETWORK = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/global/networks/default"
# processors, GiB, GPU of the type, how many
TYPES: Mapping[str, tuple[int, float, str, int]] = {
    "e2-medium": (2, 4, "", 0), "e2-standard-2": (2, 8, "", 0), "e2-highcpu-8": (8, 8, "", 0),
    "n1-standard-4": (4, 15, "", 0), "n1-standard-32": (32, 120, "", 0), "n2-standard-2": (2, 8, "", 0),
    "g2-standard-4": (4, 16, "nvidia-l4", 1), "g2-standard-24": (24, 96, "nvidia-l4", 2),
    "a2-highgpu-1g": (12, 85, "nvidia-tesla-a100", 1), "a2-ultragpu-1g": (12, 170, "nvidia-a100-80gb", 1),
    "a3-megagpu-8g": (208, 1872, "nvidia-h100-mega-80gb", 8), "c4a-standard-2": (2, 8, "", 0),
}  # fmt: skip
# USD per hour, on demand and spot, by the descriptions of the price list
PARTS = {
    "E2 Instance Core running in Americas": (0.02, 0.008),
    "E2 Instance Ram running in Americas": (0.003, 0.001),
    "N1 Predefined Instance Core running in Americas": (0.03, 0.007),
    "N1 Predefined Instance Ram running in Americas": (0.004, 0.001),
    "G2 Instance Core running in Americas": (0.025, 0.01),
    "G2 Instance Ram running in Americas": (0.003, 0.001),
    "Nvidia L4 GPU running in Americas": (0.56, 0.2),
    "Nvidia Tesla T4 GPU running in Iowa": (0.35, 0.11),
    "A3Plus Instance Core running in Iowa": (0.03, 0.02),
    "A3Plus Instance Ram running in Iowa": (0.0025, 0.002),
    "Nvidia H100 80GB Plus GPU running in Iowa": (9.5, 7.0),
}
DELAY_S = 0.03
_ROLE = Path(__file__).parents[1] / "docs" / "permissions" / "gcp.json"
_COMPUTE = re.compile(rf"/compute/v1/projects/([\w-]+)/(?:global/|zones/([\w-]+)/|regions/{REGION}/)?(.*)")


def role() -> dict[str, Any]:
    """The custom role that the documentation has."""
    found: dict[str, Any] = json.loads(_ROLE.read_text(encoding="utf-8"))
    return found


class ComputeApi:
    """The API, and what the project has.

    Attributes:
        calls: all calls so far, each by its name, such as "instances/bulkInsert", and with its body.
        instances, firewalls: what exists, by name.
        granted: the permissions that the caller has in the project: those of the role that we print.
        needed: those that its calls so far took.
        refuse: answers a launch (zone and body) with codes and messages of errors, or lets it be.
        on_launch, on_delete: are told of each instance.
    """

    def __init__(self, folder: Path) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.instances: dict[str, dict[str, Any]] = {}
        self.firewalls: dict[str, dict[str, Any]] = {}
        self.granted: set[str] = set(role()["includedPermissions"])
        self.needed: set[str] = set()
        self.prices = True
        self.refuse: Callable[[str, dict[str, Any]], list[tuple[str, str]] | None] = lambda *_: None
        self.on_launch: Callable[[dict[str, Any]], None] = lambda _: None
        self.on_delete: Callable[[str], None] = lambda _: None
        self._operations: dict[str, dict[str, Any]] = {}
        self._ended: dict[str, threading.Event] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Silent)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self._key_file = folder / "key.json"
        self._key_file.write_text(json.dumps({**_service_account(), "token_uri": f"{self.url}/token"}))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def env(self) -> dict[str, str]:
        """The variables with which Google's library uses it."""
        return {
            "GOOGLE_CLOUD_UNIVERSE_DOMAIN": UNIVERSE,
            "GOOGLE_APPLICATION_CREDENTIALS": str(self._key_file),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{self.url}/compute/v1/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDBILLING": f"{self.url}/",
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def begun(self) -> list[str]:
        """The operations that have not ended."""
        with self._lock:
            return [name for name, each in self._operations.items() if each["status"] != "DONE"]

    def set_status(self, name: str, status: str) -> None:
        """Change the state of an instance, as when it shuts itself down or is taken away."""
        with self._lock:
            if name in self.instances:
                self.instances[name]["status"] = status

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = (
            json.loads(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)) or b"{}")
            if ("json" in environ.get("CONTENT_TYPE", ""))
            else {}
        )
        query = {key: values[0] for key, values in parse_qs(environ["QUERY_STRING"]).items()}
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path == "/token":
            return _json(start, {"access_token": "token", "expires_in": 3600, "token_type": "Bearer"})
        if not environ.get("HTTP_AUTHORIZATION", "").startswith("Bearer "):
            return _error(start, 401, "authError", "no credentials")
        found = _COMPUTE.fullmatch(path)
        if found is None:
            name, status, answer = "skus", 200, self._skus(query)
        else:
            project, zone, rest = found.groups()
            if lacking := self._lacking(method, zone, rest, body) if project == PROJECT else None:
                return _error(start, 403, "forbidden", f"Required '{lacking}' permission for '{path}'")
            if rest.endswith("/wait"):
                self._ended[rest.split("/")[1]].wait(60)
            with self._lock:
                name, status, answer = self._compute(method, project, zone, rest, query, body)
        self.calls.append((name, body))
        return _json(start, answer) if status == 200 else _error(start, status, *answer)

    def _lacking(self, method: str, zone: str | None, rest: str, body: dict[str, Any]) -> str | None:
        """A permission that the caller has not, and that its call takes."""
        took = required(method, zone, rest, body, PROJECT)
        self.needed |= took
        return min(took - self.granted, default=None)

    def _compute(
        self, method: str, project: str, zone: str | None, rest: str, query: Mapping[str, str], body: dict[str, Any]
    ) -> tuple[str, int, Any]:
        kind, _, name = rest.partition("/")
        if method == "GET" and (kind, name) == ("aggregated", "instances"):
            return rest, 200, {"items": self._scopes("instances", query)}
        if method == "GET" and (kind, name) == ("aggregated", "operations"):
            return rest, 200, {"items": self._scopes("operations", query)}
        if method == "GET" and kind == "images":
            url = f"https://www.googleapis.com/compute/v1/projects/{project}/global/images/{name.rpartition('/')[2]}"
            return kind, 200, {"name": name.rpartition("/")[2], "selfLink": url, "diskSizeGb": "10"}
        if method == "GET" and kind == "operations":
            if name:
                return "operations/get", 200, self._operations[name]
            return "operations", 200, _list(self._operations.values(), query)
        if method == "GET":
            return kind, 200, _list(self._listed(kind, zone), query)
        if kind == "operations":
            return "operations/wait", 200, self._operations[name.removesuffix("/wait")]
        if method == "DELETE":
            return f"{kind}/delete", *self._delete(kind, name, zone, query)
        return rest if name else f"{kind}/insert", *self._make(kind, zone, query, body)

    def _listed(self, kind: str, zone: str | None) -> list[dict[str, Any]]:
        if kind == "zones":
            return [{"name": each, "status": "UP"} for each in (*ZONES, "europe-west4-a")]
        if kind == "machineTypes":
            return [_type(name) for name in TYPES]
        if kind == "acceleratorTypes":
            return [{"name": "nvidia-tesla-t4", "maximumCardsPerInstance": 4}] if zone == ZONES[0] else []
        if kind == "subnetworks":
            return [{"name": "default", "network": NETWORK, "selfLink": "subnet", "ipCidrRange": "10.128.0.0/20"}]
        assert kind == "firewalls", kind
        return list(self.firewalls.values())

    def _scopes(self, kind: str, query: Mapping[str, str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for each in (self.instances if kind == "instances" else self._operations).values():
            if _matches(each, query.get("filter", "")):
                found.setdefault(str(each.get("zone", "global")), {kind: []})[kind].append(each)
        return found

    def _delete(self, kind: str, name: str, zone: str | None, query: Mapping[str, str]) -> tuple[int, Any]:
        known = self.instances if kind == "instances" else self.firewalls
        if name not in known:
            return 404, ("notFound", f"The resource '{name}' was not found")
        if kind == "instances":
            self.instances[name]["status"] = "STOPPING"

        def delete() -> None:
            known.pop(name, None)
            if kind == "instances":
                self.on_delete(name)

        return 200, self._begin("delete", zone, query, delete)

    def _make(self, kind: str, zone: str | None, query: Mapping[str, str], body: dict[str, Any]) -> tuple[int, Any]:
        token = query.get("requestId")
        same = next(
            (each for each in self._operations.values() if token and each.get("clientOperationId") == token), None
        )
        if same is not None:
            return 200, same
        if kind == "firewalls":
            if body["name"] in self.firewalls:
                return 409, ("alreadyExists", f"The resource '{body['name']}' already exists")
            return 200, self._begin("insert", zone, query, lambda: self.firewalls.update({body["name"]: body}))
        assert kind == "instances"
        assert zone
        errors = self.refuse(zone, body)
        return 200, self._begin(
            "bulkInsert", zone, query, (lambda: None) if errors else lambda: self._launch(zone, body), errors
        )

    def _launch(self, zone: str, body: Mapping[str, Any]) -> None:
        shared = body["instanceProperties"]
        for name in body["perInstanceProperties"]:
            number = next(self._numbers)
            interface = {**shared["networkInterfaces"][0], "networkIP": f"10.128.0.{number}"}
            if "accessConfigs" in interface:
                interface["accessConfigs"] = [{**interface["accessConfigs"][0], "natIP": f"203.0.113.{number}"}]
            self.instances[name] = {
                **shared,
                "name": name,
                "zone": f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{zone}",
                "machineType": f"zones/{zone}/machineTypes/{shared['machineType']}",
                "status": "RUNNING",
                "networkInterfaces": [interface],
                "creationTimestamp": datetime.now(UTC).isoformat(),
            }
            self.on_launch(self.instances[name])

    def _begin(
        self,
        kind: str,
        zone: str | None,
        query: Mapping[str, str],
        effect: Callable[[], Any],
        errors: list[tuple[str, str]] | None = None,
    ) -> dict[str, Any]:
        name = f"operation-{next(self._numbers)}"
        made: dict[str, Any] = {"name": name, "operationType": kind, "status": "RUNNING", "operationGroupId": name}
        if zone:
            made["zone"] = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{zone}"
        if "requestId" in query:
            made["clientOperationId"] = query["requestId"]
        self._operations[name], self._ended[name] = made, threading.Event()

        def end() -> None:
            with self._lock:
                effect()
                made["status"] = "DONE"
                if errors:
                    made["error"] = {"errors": [{"code": code, "message": said} for code, said in errors]}
            self._ended[name].set()

        timer = threading.Timer(DELAY_S, end)
        timer.daemon = True
        timer.start()
        return dict(made)

    def _skus(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Two pages, with entries that are no parts of plain machines between."""
        if not self.prices:
            return {}
        entries = [entry for text, usd in PARTS.items() for entry in _entries(text, *usd)]
        entries += [
            entry for text in ("E2 Custom Instance Core running in Americas",) for entry in _entries(text, 9.0, 9.0)
        ]
        half = len(entries) // 2
        return {"skus": entries[half:]} if query.get("pageToken") else {"skus": entries[:half], "nextPageToken": "2"}


class _Silent(WSGIRequestHandler):
    """Writes no line for each request, and keeps connections, as Google does."""

    protocol_version = "HTTP/1.1"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Say nothing."""


@cache
def _service_account() -> dict[str, str]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    kinds = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return {
        "type": "service_account",
        "universe_domain": UNIVERSE,
        "project_id": PROJECT,
        "private_key_id": "1",
        "private_key": key.private_bytes(*kinds).decode(),
        "client_email": f"tests@{PROJECT}.iam.gserviceaccount.com",
        "client_id": "1",
    }


def _type(name: str) -> dict[str, Any]:
    cpus, memory, gpu, count = TYPES[name]
    found: dict[str, Any] = {"name": name, "guestCpus": cpus, "memoryMb": int(memory * 1024)}
    found["architecture"] = "ARM64" if name.startswith("c4a") else "X86_64"
    found["isSharedCpu"] = name == "e2-medium"
    if gpu:
        found["accelerators"] = [{"guestAcceleratorType": gpu, "guestAcceleratorCount": count}]
    return found


def _entries(text: str, on_demand: float, spot: float) -> Iterator[dict[str, Any]]:
    for usage, usd, words in (("OnDemand", on_demand, text), ("Preemptible", spot, f"Spot Preemptible {text}")):
        price = {"units": str(int(usd)), "nanos": round(usd % 1 * 1e9)}
        if usage == "Preemptible" and " GPU running" in text:
            words = text.replace(" GPU running", " GPU attached to Spot Preemptible VMs running")
        yield {
            "description": words,
            "serviceRegions": [REGION, "us-east1"],
            "category": {"usageType": usage},
            "pricingInfo": [{"pricingExpression": {"tieredRates": [{"unitPrice": price}]}}],
        }


def _list(found: Iterable[dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    return {"items": [each for each in found if _matches(each, query.get("filter", ""))]}


def _matches(found: Mapping[str, Any], expression: str) -> bool:
    """One comparison, of either kind that Google knows."""
    if not expression:
        return True
    parsed = re.fullmatch(r'(\S+?)(?: (eq|!=) |(=|:))"?(.*?)"?', expression)
    assert parsed, expression
    path, comparison, wanted = parsed[1].split("."), parsed[2] or parsed[3], parsed[4]
    text: Any = found
    for word in path:
        text = text.get(word, "") if isinstance(text, dict) else ""
    if comparison == "eq":
        return re.fullmatch(wanted, text) is not None
    if comparison == ":":
        return bool(text)
    return bool((text == wanted) == (comparison == "="))


def _json(start: Callable[..., Any], answer: Any, status: str = "200 OK") -> Iterable[bytes]:
    body = json.dumps(answer).encode()
    start(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]


def _error(start: Callable[..., Any], status: int, reason: str, said: str) -> Iterable[bytes]:
    error = {"code": status, "message": said, "errors": [{"reason": reason, "message": said, "domain": "global"}]}
    return _json(start, {"error": error}, f"{status} Error")
