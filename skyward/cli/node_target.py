"""The node that a command names as `POOL NODE` or `POOL:NODE`, found at the places of `skyward.cli.places`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skyward.cli.kept import identifiers
from skyward.cli.places import Place, ask_all
from skyward.errors import ConfigError, ProviderError, SkywardError
from skyward.model.resource import Resource
from skyward.nodes.access import NodeAccess


@dataclass(frozen=True, slots=True)
class NodeTarget:
    """A node, and where it is."""

    place: Place
    node: Resource

    @property
    def title(self) -> str:
        """The node for messages."""
        return f"node {self.node['node']} of pool {self.node['pool']} ({self.node['name']})"

    def enter(self) -> NodeAccess:
        """A way into it.

        Raises:
            SkywardError: there is none.
        """
        return self.place.provider.enter(self.node)


def find_node(places: Sequence[Place], pool: str, node: str | None = None) -> NodeTarget:
    """The node of a pool that runs.

    Args:
        places: where to look.
        pool: the pool's identifier, the begin of one that no other has, or its name; with ":NODE" if wanted.
        node: number or name of the node; None for the pool's only node, else node 0.

    Raises:
        ConfigError: the words name no one node.
        ProviderError: there is no such pool or node.
    """
    pool, colon, number = pool.partition(":")
    if colon and node is not None:
        raise ConfigError(f"The node is named twice: {pool}:{number} and {node}.")
    wanted = (number or None) if colon else node
    found, failures = list[NodeTarget](), list[str]()
    for place, answer in ask_all(places):
        if isinstance(answer, SkywardError):
            failures.append(f"{place.name} cannot be asked: {answer}")
        else:
            found += [NodeTarget(place, each) for each in answer]
    return _choose(_of_pool(found, identifiers([pool])[pool], failures), wanted)


def _of_pool(found: Sequence[NodeTarget], pool: str, failures: Sequence[str]) -> list[NodeTarget]:
    exact = [each for each in found if each.node["pool"] == pool]
    chosen = exact or [each for each in found if pool and str(each.node["pool"]).startswith(pool)]
    pools = sorted({str(each.node["pool"]) for each in chosen})
    if len(pools) > 1:
        raise ConfigError(f"{pool} can mean several pools: {', '.join(pools)}. Name one of them.")
    if not pools:
        advice = (
            "`skyward ps` shows what runs; pools elsewhere are found with --ssh, --aws, --gcp, --swarm, --slurm, "
            "--kubernetes or --provider."
        )
        raise ProviderError("\n".join([f"There is no pool {pool} here. {advice}", *failures]))
    return chosen


def _choose(found: Sequence[NodeTarget], wanted: str | None) -> NodeTarget:
    running = [each for each in found if each.node["state"] == "running"]
    pool = found[0].node["pool"]
    numbers = sorted({int(each.node["node"]) for each in running if each.node["node"] >= 0})
    if wanted is None and running and not numbers:
        if len(running) == 1:
            return running[0]
        names = ", ".join(each.node["name"] for each in running)
        raise ConfigError(f"Nodes of {pool} have no numbers; name one: {names}.")
    if wanted is None:
        wanted = str(numbers[0]) if numbers else "0"
    # of a node that two places list, the one that an option has named
    for each in reversed(running):
        if wanted in (each.node["name"], str(each.node["node"])):
            return each
    there = f"its nodes are {', '.join(map(str, numbers))}" if numbers else "none of its nodes runs"
    raise ProviderError(f"Pool {pool} has no node {wanted} that runs: {there}.")
