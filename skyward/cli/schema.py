"""`skyward schema`: JSON Schemas of the files that declare images, for editors."""

from __future__ import annotations

import json

import click


@click.command()
@click.argument("kind", type=click.Choice(["image", "pyproject"]), default="image")
def command(kind: str) -> int:
    """Print a JSON Schema: of image files, or of [tool.skyward] in pyproject.toml.

    Editors that read TOML with taplo, such as Even Better TOML, complete and check a file whose first line names it:
    `#:schema image.schema.json`.
    """
    from skyward.builder.sources.toml import schema

    click.echo(json.dumps(schema(kind), indent=2))
    return 0
