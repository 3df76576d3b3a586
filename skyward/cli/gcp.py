"""`skyward gcp`: what `sky.GCP` needs of a project."""

from __future__ import annotations

import json

import click


@click.group()
def command() -> None:
    """What pools on Google Cloud need of a project."""


@command.command("policy")
def policy_command() -> int:
    """Print the least permissions that sky.GCP() needs, as a custom role for `gcloud iam roles create --file`.

    The role grants nobody anything before it is bound to an identity. Nothing is asked of Google and nothing is changed
    there.
    """
    from skyward.providers.gcp.policy import policy

    click.echo(json.dumps(policy(), indent=2))
    return 0
