"""Where a guide runs: turns `--provider`, `--nodes`, `--host` and others into parameters of a pool."""

from __future__ import annotations

import argparse
from typing import Any

import skyward as sky

# the classes, by the name given on the command line
PROVIDERS = {"docker": "Docker", "local": "Local", "ssh": "SSH", "aws": "AWS", "kubernetes": "Kubernetes"}


def pool_options(description: str | None, *, nodes: int = 2, data: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read the command line: `provider`, `nodes` and `accelerator` for a pool; and `data`, where there are several."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=PROVIDERS, default="docker", help="where the nodes come from")
    parser.add_argument("--nodes", type=int, default=nodes, help="how many nodes (default: %(default)s)")
    parser.add_argument("--host", action="append", default=[], help="a host for --provider ssh; repeat it for several")
    parser.add_argument("--key", help="private key for --provider ssh; by default what ssh itself would take")
    parser.add_argument("--known-hosts", help="the only host keys to trust for --provider ssh; by default ssh's own")
    parser.add_argument("--registry", help="repository through which images reach the pods of --provider kubernetes")
    parser.add_argument("--namespace", help="of the pods of --provider kubernetes; by default that of the context")
    parser.add_argument("--accelerator", help="GPUs of each node, such as A100 or T4:2; none by default")
    if data:
        parser.add_argument("--data", choices=data, default=data[0], help="what to train on (default: %(default)s)")
    given = parser.parse_args()
    name = PROVIDERS[given.provider]
    if not hasattr(sky, name):
        parser.error(f"this version has no provider {given.provider!r}; choose another")
    settings: dict[str, dict[str, str | None]] = {
        "ssh": {"key": given.key, "known_hosts": given.known_hosts},
        "kubernetes": {"registry": given.registry, "namespace": given.namespace},
    }
    provider = getattr(sky, name)(*given.host, **settings.get(given.provider, {}))
    options = {"provider": provider, "nodes": given.nodes, "accelerator": given.accelerator}
    return {**options, "data": given.data} if data else options
