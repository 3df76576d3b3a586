"""Commands that print a document: the rights that providers need, schemas for editors, completion for shells."""

from __future__ import annotations

import json

import click
from click.shell_completion import get_completion_class

from skyward.errors import ConfigError

_VARIABLE = "_SKYWARD_COMPLETE"  # which the shell sets when it asks; click's name for a program called skyward
_USE = {
    "bash": 'eval "$(skyward completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(skyward completion zsh)"    # in ~/.zshrc, after compinit',
    "fish": "skyward completion fish > ~/.config/fish/completions/skyward.fish   # once",
}


@click.group()
def aws() -> None:
    """What pools on AWS need of an account."""


@aws.command("policy")
def aws_policy() -> int:
    """Print what sky.AWS() must be allowed, as an IAM policy.

    It is the least that it needs. An identity that has it can look around in EC2, and create, change and delete
    only what bears a pool's tag. Nothing is asked of AWS and nothing is changed there.
    """
    from skyward.providers.aws.policy import policy

    click.echo(json.dumps(policy(), indent=2))
    return 0


@click.group()
def gcp() -> None:
    """What pools on Google Cloud need of a project."""


@gcp.command("policy")
def gcp_policy() -> int:
    """Print what sky.GCP() must be allowed, as a custom role.

    It is the least that it needs, for `gcloud iam roles create --file`. The role grants nobody anything before it
    is bound to an identity. Nothing is asked of Google and nothing is changed there.
    """
    from skyward.providers.gcp.policy import policy

    click.echo(json.dumps(policy(), indent=2))
    return 0


@click.group()
def kubernetes() -> None:
    """What pools on Kubernetes need of a cluster."""


@kubernetes.command("role")
@click.option("--namespace", default="default", show_default=True, metavar="NAME", help="Where the pools are.")
def kubernetes_role(namespace: str) -> int:
    """Print the Role that a user of sky.Kubernetes() needs.

    As YAML for `kubectl apply -f -`. It is all that pools take: rights in one namespace, and none of the whole
    cluster. It grants nobody anything before a RoleBinding names it. Nothing is asked of the cluster and nothing is
    changed there.
    """
    from skyward.providers.kubernetes.manifest import role

    click.echo(role(namespace))
    return 0


@click.command()
@click.argument("kind", type=click.Choice(["image", "pyproject"]), default="image")
def schema(kind: str) -> int:
    """Print a JSON Schema of image files, or of [tool.skyward].

    The latter is a table of pyproject.toml. Editors that read TOML with taplo, such as Even Better TOML, complete
    and check a file whose first line names it: `#:schema image.schema.json`.
    """
    from skyward.builder.sources.toml import schema as schema_of

    click.echo(json.dumps(schema_of(kind), indent=2))
    return 0


@click.command(epilog="\b\n" + "\n".join(_USE.values()))
@click.argument("shell", type=click.Choice(list(_USE)))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print the lines with which a shell completes commands."""
    kind = get_completion_class(shell)
    if kind is None:
        raise ConfigError(f"click, which makes the lines, knows no {shell}; update it.")
    click.echo(kind(context.find_root().command, {}, "skyward", _VARIABLE).source())
    return 0
