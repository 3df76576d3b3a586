"""`skyward aws`: what `sky.AWS` needs of an account."""

from __future__ import annotations

import json

import click


@click.group()
def command() -> None:
    """What pools on AWS need of an account."""


@command.command("policy")
def policy_command() -> int:
    """Print the least permissions that sky.AWS() needs, as an IAM policy.

    An identity that has it can look around in EC2, and create, change and delete only what bears a pool's tag. Nothing
    is asked of AWS and nothing is changed there.
    """
    from skyward.providers.aws.policy import policy

    click.echo(json.dumps(policy(), indent=2))
    return 0
