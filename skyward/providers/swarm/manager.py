"""A swarm's manager: the connection to its engine, local or by SSH, its HTTP API; checks of the swarm's machines."""

from __future__ import annotations

import base64
import ipaddress
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlencode

from skyward.engine.address import EngineAddress, find_engine
from skyward.engine.connection import SocketLine
from skyward.engine.failures import advice_on, translate
from skyward.errors import ConfigError, EngineMissingError, ProviderError
from skyward.model.image_fields import PLATFORMS
from skyward.model.spec import Accelerator
from skyward.model.ssh import SshHost
from skyward.nodes.claimed import DIAL_S, dial_program
from skyward.nodes.ssh_host import Machine
from skyward.providers.base import PoolRequest
from skyward.ssh.connection import handed_hosts
from skyward.ssh.preflight import check_host, refuse
from skyward.system import socket

_UNUSED_LEASE_S = 60.0  # for a watchdog that creates nothing
_VERSION = "/v1.41"  # engine 20.10
_LOG_HEADER = 8  # one byte for the stream, three of padding, four for the length
_LOG_S = 3.0  # a log on a lost machine never ends
_GIB = 1024**3
Document = Mapping[str, Any]


class SwarmApi:
    """A manager's API. Each request has its own connection: they are few, and come from several threads.

    All methods raise EngineError if the manager refuses, and EngineMissingError if it does not answer.
    """

    def __init__(self, engine: EngineAddress) -> None:
        self._engine = engine

    @property
    def url(self) -> str:
        """The manager's address, for messages."""
        return self._engine.url

    def info(self) -> Document:
        """Return the engine's information about itself, including its role in a swarm."""
        return dict(self._ask("GET", "/info", "describe itself"))

    def nodes(self) -> Sequence[Document]:
        """Return the machines of the swarm."""
        return list(self._ask("GET", "/nodes", "list the machines of its swarm"))

    def labelled(self, kind: Literal["service", "secret"], label: str) -> Sequence[Document]:
        """Return services or secrets with a label (`name` or `name=value`); secrets come without their content."""
        query = urlencode({"filters": json.dumps({"label": [label]})})
        return list(self._ask("GET", f"/{kind}s?{query}", f"list {kind}s"))

    def tasks(self, service_name: str) -> Sequence[Document]:
        """Return the tasks of a service, including those that have ended, and those left of a removed service."""
        query = urlencode({"filters": json.dumps({"name": [f"{service_name}."]})})
        return list(self._ask("GET", f"/tasks?{query}", f"list the tasks of service {service_name}"))

    def create_secret(self, name: str, content: str, labels: Mapping[str, str]) -> str:
        """Create a secret and return its id. The engine evaluates the content as a Go template for each task."""
        spec = {
            "Name": name,
            "Labels": dict(labels),
            "Data": base64.b64encode(content.encode()).decode(),
            "Templating": {"Name": "golang"},
        }
        return str(self._ask("POST", "/secrets/create", f"make secret {name}", spec)["ID"])

    def create_service(self, spec: Document, auth: Mapping[str, str]) -> str:
        """Create a service and return its id.

        Args:
            spec: the service in the engine's format.
            auth: credentials for the registry of its image, which the machines get with their tasks.
        """
        header = base64.urlsafe_b64encode(json.dumps(dict(auth)).encode()).decode()
        action = f"make service {spec['Name']}"
        return str(self._ask("POST", "/services/create", action, spec, {"X-Registry-Auth": header})["ID"])

    def restart_tasks(self, service_name: str) -> None:
        """Start a new task in each slot of a service, in place of the existing one."""
        query = urlencode({"filters": json.dumps({"name": [service_name]})})
        for service in self._ask("GET", f"/services?{query}", f"find service {service_name}"):
            spec, version = service["Spec"], int(service["Version"]["Index"])
            task = {**spec["TaskTemplate"], "ForceUpdate": int(spec["TaskTemplate"].get("ForceUpdate", 0)) + 1}
            path = f"/services/{service['ID']}/update?version={version}"
            self._ask("POST", path, f"start the tasks of service {service_name} again", {**spec, "TaskTemplate": task})

    def remove(self, kind: Literal["service", "secret"], ident: str) -> None:
        """Remove a service, which ends its tasks, or a secret; do nothing if it does not exist."""
        self._ask("DELETE", f"/{kind}s/{ident}", f"remove {kind} {ident}", may_be_gone=True)

    def last_lines(self, task: str) -> str:
        """Return the last lines that a task has printed; "" if its machine does not answer."""
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
        """Send a request and return the answer; None if the object does not exist and `may_be_gone` is set."""
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


def _message(answer: bytes, otherwise: str) -> str:
    try:
        return str(json.loads(answer)["message"])
    except (ValueError, KeyError, TypeError):
        return answer.decode(errors="replace") or otherwise


@dataclass(frozen=True, slots=True)
class ManagerAddress:
    """The address of a manager.

    Attributes:
        host: the machine to reach by SSH; None for this one.
        url: the engine's socket on this machine, as `unix:///path`; None for the one that the docker command would use.
    """

    host: SshHost | None
    url: str | None

    @classmethod
    def of(
        cls, engine: str | None, key: str | os.PathLike[str] | None, known_hosts: str | os.PathLike[str] | None
    ) -> ManagerAddress:
        """Return the manager that a caller specifies; by default the engine that the docker command would use.

        Raises:
            ConfigError: the text is not such an address.
        """
        given: object = engine
        if given is not None and not isinstance(given, str):
            raise ConfigError(f"sky.Swarm: a manager is named by a string such as 'ssh://user@host'; found {given!r}.")
        text = engine or os.environ.get("DOCKER_HOST") or ""
        if text.startswith("ssh://"):
            host = SshHost.parse(text)
            if handed := handed_hosts().get(host.name):
                return cls(handed, None)
            files = [str(path) if path else None for path in (key, known_hosts)]
            return cls(replace(host, key=files[0], known_hosts=files[1]), None)
        if engine and not engine.startswith("unix://"):
            raise ConfigError(
                f"sky.Swarm: a manager is named as 'ssh://user@host', or as 'unix:///path' of its engine's socket on "
                f"this machine; found {engine!r}."
            )
        if key or known_hosts:
            raise ConfigError("sky.Swarm: key= and known_hosts= are for a manager that is reached by SSH.")
        return cls(None, engine)

    @property
    def name(self) -> str:
        """Its name for messages."""
        return self.host.name if self.host else "this machine"


class Manager:
    """An open connection to a manager.

    Attributes:
        api: its HTTP interface.

    Raises:
        ProviderError: its machine cannot be reached.
        EngineMissingError: no engine answers.
    """

    def __init__(self, address: ManagerAddress, folder: Path) -> None:
        self.address = address
        self._machine: Machine | None = None
        self.engine: EngineAddress
        if address.host is None:
            self.engine = find_engine(address.url)
        else:
            self._machine = machine = Machine(address.host, "none", folder / "m", _UNUSED_LEASE_S)
            try:
                refuse(check_host(machine.name, machine.open(), 0, None), 1)
                self.engine = machine.engine_address
            except BaseException:
                self.close()
                raise
        self.api = SwarmApi(self.engine)

    def dial(self, address: str, port: int) -> socket.socket:
        """Return a socket connected to a machine of the swarm.

        Raises:
            OSError: nothing is listening there, or it cannot be reached.
        """
        return dial_program(address, port, self._machine.connection if self._machine else None)

    def machines(self) -> dict[str, Document]:
        """Return the machines of the swarm by id.

        Raises:
            EngineError: the manager refuses or does not answer.
        """
        return {str(node["ID"]): node for node in self.api.nodes()}

    def why_gone(self) -> str:
        """Return why the manager cannot be queried any more, to complete "Node 1 ..."; "" if it can."""
        machine = self._machine
        if machine is not None and machine.connection.ended.is_set():
            return f"is unreachable: the SSH connection to the manager {machine.name} ended ({machine.connection.why})"
        try:
            self.engine.dial(DIAL_S).close()
        except EngineMissingError:
            return f"is unreachable: the manager's engine at {self.engine.url} is gone"
        return ""

    def close(self) -> None:
        """Close the connection. Repeated calls do nothing."""
        if self._machine is not None:
            self._machine.connection.kill()


# checks before anything is created, from the manager's information ---------------------------------------------------


def check_manager(url: str, info: Document) -> None:
    """Check that an engine is a manager of a swarm.

    Raises:
        ProviderError: it is not.
    """
    swarm = info.get("Swarm") or {}
    state = swarm.get("LocalNodeState", "inactive")
    if state == "active" and swarm.get("ControlAvailable"):
        return
    if state == "active":
        others = ", ".join(str(each["Addr"]).rpartition(":")[0] for each in swarm.get("RemoteManagers") or ())
        raise ProviderError(
            f"The engine at {url} is a worker of its swarm; services are made on a manager. Name one: "
            f"sky.Swarm('ssh://user@host'){f' with {others} as host' if others else ''}."
        )
    if state == "locked":
        raise ProviderError(f"The swarm of the engine at {url} is locked. Unlock it: `docker swarm unlock`.")
    why = f" ({swarm['Error']})" if swarm.get("Error") else ""
    raise ProviderError(
        f"The engine at {url} is not in a working swarm: its state is {state!r}{why}. Start one with `docker swarm "
        "init`, or name a manager of yours: sky.Swarm('ssh://user@host')."
    )


def address_of(node: Document) -> str:
    """Return a machine's IP address in its swarm; for a manager the one it advertises."""
    managing = str((node.get("ManagerStatus") or {}).get("Addr", "")).rpartition(":")[0]
    return managing.strip("[]") or str(node["Status"]["Addr"])


def name_of_machine(node: Document) -> str:
    """Return a machine's host name."""
    return str(node["Description"]["Hostname"])


def usable_machines(nodes: Sequence[Document], platform: str) -> list[Document]:
    """Return the machines that can run tasks of an image's platform.

    Raises:
        ProviderError: there is none, or the swarm knows one of them by a public IP address.
    """
    ready, wrong = [], []
    for node in nodes:
        about = node["Description"].get("Platform") or {}
        system = f"{about.get('OS')}/{about.get('Architecture')}"
        system = PLATFORMS.get(system.removeprefix("linux/"), system)
        state, wanted = node["Status"]["State"], node["Spec"]["Availability"]
        if (state, wanted) != ("ready", "active"):
            wrong.append(f"{name_of_machine(node)} is {state if state != 'ready' else wanted}")
        elif not platform.startswith(system):
            wrong.append(f"{name_of_machine(node)} is {system}")
        else:
            ready.append(node)
    if not ready:
        raise ProviderError(
            f"No machine of the swarm can run an image for {platform}: {'; '.join(wrong)}. See `docker node ls`."
        )
    for node in ready:
        address = ipaddress.ip_address(address_of(node))
        if address.is_global:
            raise ProviderError(
                f"{name_of_machine(node)} is in its swarm by {address}, an address of the public internet, at which "
                "skyward's nodes do not listen. Have it join again by a private one (--advertise-addr)."
            )
    return ready


def room_for(nodes: Sequence[Document], request: PoolRequest) -> int:
    """Return how many of the requested nodes would fit on the machines if these were empty.

    Raises:
        ProviderError: fewer than the pool requires.
    """
    count = request.nodes
    for what, unit, each, key, scale in (
        ("CPUs", "", request.cpus, "NanoCPUs", 1e9),
        ("memory", " GiB", request.memory_gb, "MemoryBytes", _GIB),
    ):
        if each is None:
            continue
        there = {name_of_machine(node): node["Description"]["Resources"].get(key, 0) / scale for node in nodes}
        fit = sum(int(amount // each) for amount in there.values())
        if fit < request.fewest:
            sizes = ", ".join(f"{name} {amount:.4g}{unit}" for name, amount in there.items())
            raise ProviderError(
                f"{request.fewest} nodes with {each:.4g}{unit} of {what} each do not fit on the swarm's machines. "
                f"They have: {sizes}. Ask for fewer nodes or smaller ones."
            )
        count = min(count, fit)
    return count


def gpus_for(nodes: Sequence[Document], count: int, at_least: int, accelerator: Accelerator) -> tuple[str, int]:
    """Return the generic resource that represents an accelerator, and how many of `count` nodes can have it.

    It is the kind with the accelerator's name, or else one that contains "gpu".

    Raises:
        ProviderError: no machine offers one, or they have too few.
    """
    if not accelerator.cuda:
        raise ProviderError(f"sky.Swarm gives nodes NVIDIA GPUs; {accelerator.name} is something else.")
    offers = {name_of_machine(node): _resources(node) for node in nodes}
    kinds = sorted({kind for offer in offers.values() for kind in offer})
    named = [kind for kind in kinds if kind.lower() == accelerator.name.lower()]
    kind = next(iter(named or [kind for kind in kinds if "gpu" in kind.lower()]), None)
    if kind is None:
        other = f" They offer {', '.join(kinds)}." if kinds else ""
        raise ProviderError(
            f"The pool asks for {accelerator.name}, and no machine of the swarm says that it has GPUs.{other} Tell "
            'each engine of its own in daemon.json, as "node-generic-resources": ["NVIDIA-GPU=GPU-6f0b..."], and make '
            "nvidia its default runtime."
        )
    there = {name: offer[kind] for name, offer in offers.items()}
    fit = sum(number // accelerator.count for number in there.values())
    if fit < at_least:
        listed = ", ".join(f"{name} {number}" for name, number in there.items())
        raise ProviderError(
            f"The pool asks for {at_least} nodes with {accelerator.count} x {accelerator.name} each. Of {kind} the "
            f"swarm's machines have: {listed}. Ask for fewer nodes or fewer GPUs per node."
        )
    return kind, min(count, fit)


def _resources(node: Document) -> Counter[str]:
    """Return the number of generic resources of each kind on a machine."""
    found = Counter[str]()
    for each in node["Description"]["Resources"].get("GenericResources") or ():
        if named := each.get("NamedResourceSpec"):
            found[named["Kind"]] += 1
        elif counted := each.get("DiscreteResourceSpec"):
            found[counted["Kind"]] += int(counted["Value"])
    return found
