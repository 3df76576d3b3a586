"""A client of a swarm manager's HTTP interface: nodes, services, tasks, secrets."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, urlencode

from skyward.engine.address import EngineAddress
from skyward.engine.failures import advice_on, translate
from skyward.engine.lines import SocketLine
from skyward.errors import EngineMissingError

_VERSION = "/v1.41"  # engine 20.10
_LOG_HEADER = 8  # one byte for the stream, three of padding, four for the length
_LOG_S = 3.0  # a log on a machine that is gone never ends

Document = Mapping[str, Any]


class SwarmApi:
    """A manager's interface. Each request has a connection of its own: they are few, and come from several threads.

    All methods raise EngineError where the manager refuses, and EngineMissingError where it does not answer.
    """

    def __init__(self, engine: EngineAddress) -> None:
        self._engine = engine

    @property
    def url(self) -> str:
        """The manager's address, for messages."""
        return self._engine.url

    def info(self) -> Document:
        """What the engine reports of itself, its role in a swarm included."""
        return dict(self._ask("GET", "/info", "describe itself"))

    def nodes(self) -> Sequence[Document]:
        """The machines of the swarm."""
        return list(self._ask("GET", "/nodes", "list the machines of its swarm"))

    def services(self, label: str) -> Sequence[Document]:
        """The services with a label, as `name` or `name=value`."""
        return list(self._ask("GET", f"/services{_labelled(label)}", "list services"))

    def secrets(self, label: str) -> Sequence[Document]:
        """The secrets with a label, without their content, which the engine gives to nobody."""
        return list(self._ask("GET", f"/secrets{_labelled(label)}", "list secrets"))

    def tasks(self, service_name: str) -> Sequence[Document]:
        """The tasks of a service, including those that have ended and those left of a service just removed."""
        query = urlencode({"filters": json.dumps({"name": [f"{service_name}."]})})
        return list(self._ask("GET", f"/tasks?{query}", f"list the tasks of service {service_name}"))

    def create_secret(self, name: str, content: str, labels: Mapping[str, str]) -> str:
        """Make a secret; its id. The engine reads the content as a Go template and fills it in for each task."""
        spec = {
            "Name": name,
            "Labels": dict(labels),
            "Data": base64.b64encode(content.encode()).decode(),
            "Templating": {"Name": "golang"},
        }
        return str(self._ask("POST", "/secrets/create", f"make secret {name}", spec)["ID"])

    def create_service(self, spec: Document, auth: Mapping[str, str]) -> str:
        """Make a service; its id.

        Args:
            spec: as the engine takes it.
            auth: credentials for the registry of its image, which the machines get with their tasks.
        """
        header = base64.urlsafe_b64encode(json.dumps(dict(auth)).encode()).decode()
        action = f"make service {spec['Name']}"
        return str(self._ask("POST", "/services/create", action, spec, {"X-Registry-Auth": header})["ID"])

    def restart_tasks(self, service_name: str) -> None:
        """Have the manager start a new task in each slot of a service, in the place of whatever is there."""
        query = urlencode({"filters": json.dumps({"name": [service_name]})})
        for service in self._ask("GET", f"/services?{query}", f"find service {service_name}"):
            spec, version = service["Spec"], int(service["Version"]["Index"])
            task = {**spec["TaskTemplate"], "ForceUpdate": int(spec["TaskTemplate"].get("ForceUpdate", 0)) + 1}
            path = f"/services/{service['ID']}/update?version={version}"
            self._ask("POST", path, f"start the tasks of service {service_name} again", {**spec, "TaskTemplate": task})

    def remove_service(self, ident: str) -> None:
        """Remove a service, which ends its tasks; nothing happens if it is gone."""
        self._ask("DELETE", f"/services/{ident}", f"remove service {ident}", may_be_gone=True)

    def remove_secret(self, ident: str) -> None:
        """Remove a secret; nothing happens if it is gone."""
        self._ask("DELETE", f"/secrets/{ident}", f"remove secret {ident}", may_be_gone=True)

    def last_lines(self, task: str) -> str:
        """The last lines that a task has printed; "" where its machine does not answer."""
        try:
            with closing(SocketLine(self._engine)) as line:
                line.timeout = _LOG_S
                line.request("GET", f"{_VERSION}/tasks/{quote(task)}/logs?stdout=1&stderr=1&tail=20")
                if line.sock is not None:
                    line.sock.settimeout(_LOG_S)
                data = line.getresponse().read()
        except (HTTPException, OSError):
            return ""  # the error is reported without them
        text = b""
        while len(data) > _LOG_HEADER:
            end = _LOG_HEADER + int.from_bytes(data[4:_LOG_HEADER], "big")
            text, data = text + data[_LOG_HEADER:end], data[end:]
        return text.decode(errors="replace").strip()

    def _ask(
        self,
        method: str,
        path: str,
        action: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        may_be_gone: bool = False,
    ) -> Any:
        """The manager's answer; None for what it does not have, if that is allowed."""
        with closing(SocketLine(self._engine)) as line:
            try:
                given = {"Content-Type": "application/json", **(headers or {})}
                line.request(method, _VERSION + path, None if body is None else json.dumps(body), given)
                response = line.getresponse()
                answer = response.read()
            except (HTTPException, OSError) as error:
                raise EngineMissingError(
                    f"The Docker engine at {self.url} broke off when asked to {action} ({error}). {advice_on(self.url)}"
                ) from error
        if response.status == 404 and may_be_gone:
            return None
        if response.status >= 400:
            raise translate(action, self.url, _message(answer, response.reason))
        return json.loads(answer or b"null")


def _labelled(label: str) -> str:
    return "?" + urlencode({"filters": json.dumps({"label": [label]})})


def _message(answer: bytes, otherwise: str) -> str:
    try:
        return str(json.loads(answer)["message"])
    except (ValueError, KeyError, TypeError):
        return answer.decode(errors="replace") or otherwise
