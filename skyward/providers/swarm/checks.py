"""Checks of a swarm before anything is made in it. Pure: from what its manager reports."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence

from skyward.errors import ProviderError
from skyward.model.image_fields import PLATFORMS
from skyward.model.spec import Accelerator
from skyward.providers.base import PoolRequest
from skyward.providers.swarm.manager import Document

_GIB = 1024**3


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
    """IP address of a machine in its swarm; of a manager the one that it advertises."""
    managing = str((node.get("ManagerStatus") or {}).get("Addr", "")).rpartition(":")[0]
    return managing.strip("[]") or str(node["Status"]["Addr"])


def name_of_machine(node: Document) -> str:
    """Its host name."""
    return str(node["Description"]["Hostname"])


def usable(nodes: Sequence[Document], platform: str) -> list[Document]:
    """The machines that can be given tasks of an image's platform.

    Raises:
        ProviderError: there is none, or one of them is in its swarm by an address of the public internet.
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


def room(nodes: Sequence[Document], request: PoolRequest) -> int:
    """How many of the nodes asked for fit on the machines, were they empty.

    Raises:
        ProviderError: too few.
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


def gpus(nodes: Sequence[Document], count: int, at_least: int, accelerator: Accelerator) -> tuple[str, int]:
    """The kind of generic resource that stands for an accelerator, and how many of so many nodes can have it.

    It is the kind that bears the accelerator's name, else one that says GPU.

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
    """How many of each kind a machine has."""
    found = Counter[str]()
    for each in node["Description"]["Resources"].get("GenericResources") or ():
        if named := each.get("NamedResourceSpec"):
            found[named["Kind"]] += 1
        elif counted := each.get("DiscreteResourceSpec"):
            found[counted["Kind"]] += int(counted["Value"])
    return found
