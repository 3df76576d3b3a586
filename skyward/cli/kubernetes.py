"""`skyward kubernetes`: what `sky.Kubernetes` needs of a cluster."""

from __future__ import annotations

import click


@click.group()
def command() -> None:
    """What pools on Kubernetes need of a cluster."""


@command.command("role")
@click.option("--namespace", default="default", show_default=True, metavar="NAME", help="Where the pools are.")
def role_command(namespace: str) -> int:
    """Print the Role that a user of sky.Kubernetes() needs, as YAML for `kubectl apply -f -`.

    It is all that pools take: rights in one namespace, and none of the whole cluster. It grants nobody anything before
    a RoleBinding names it. Nothing is asked of the cluster and nothing is changed there.
    """
    from skyward.providers.kubernetes.manifest import role

    click.echo(role(namespace))
    return 0
