"""`skyward image infer`: what a script imports, as this interpreter has it, beside what its images have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skyward.errors import ConfigError

if TYPE_CHECKING:
    from skyward.builder.sources.declared import Declared
    from skyward.builder.sources.inferred import Difference, Inferred


@click.command("infer")
@click.argument("script", metavar="SCRIPT")
@click.option("--image", "declaration", metavar="FILE", help="Compare with the image of this file (TOML or a script).")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, one object for each image.")
def command(script: str, declaration: str | None, as_json: bool) -> int:
    """Show the packages that a script imports, beside its image's.

    In the versions installed here, as a difference to its image. Nothing is run, and nothing is written: copy what
    the image shall have. Without --image, the images that the script itself declares are compared. The signs: + is
    not in the image, ~ is there in another version, = is there, - is there and not imported, ? is imported and not
    installed here.
    """
    from skyward.builder.sources.infer import infer

    found = infer(Path(script))
    for name, difference in _differences(found, script, declaration):
        if as_json:
            click.echo(json.dumps(_document(name, difference), ensure_ascii=False))
        else:
            click.echo(f"{name}:\n{difference}" if name else str(difference))
    return 0


def _differences(found: Inferred, script: str, declaration: str | None) -> Iterator[tuple[str, Difference]]:
    """The difference to each image, with its name; to none where none is declared."""
    from skyward.builder.packages.requirements import resolve_files
    from skyward.model.image import Image
    from skyward.model.targets import local_minor, platform_of
    from skyward.plugins.declared import declared_image

    declared = _declared(script, declaration)
    for each in declared:
        platform = each.image.platform or platform_of(each.architecture)
        image = declared_image(each, platform=platform, python=local_minor())
        yield f"{each.name} ({each.where})", found.diff(resolve_files(image, each.root).image, each.root)
    if not declared:
        yield "", found.diff(Image())


def _declared(script: str, declaration: str | None) -> list[Declared]:
    from skyward.builder.sources.declared import load
    from skyward.builder.sources.script import pools_in_script

    if declaration is not None:
        return pools_in_script(declaration) if Path(declaration).suffix == ".py" else [load(declaration)]
    try:
        return pools_in_script(script)
    except ConfigError as error:
        click.echo(f"skyward: the images of {script} cannot be read, so it is compared with none: {error}", err=True)
        return []


def _document(name: str, difference: Difference) -> dict[str, object]:
    found = difference.inferred
    packages = [
        {**(asdict(line.package) if line.package else {}), "state": line.state, "requirement": line.requirement}
        for line in difference.lines
    ]
    missing = [{"module": module, "where": where, "optional": optional} for module, where, optional in found.missing]
    return {
        "event": "infer",
        "image": name,
        "code": found.code,
        "pip": list(difference.pip),
        "packages": packages,
        "missing": missing,
        "notes": list(found.notes),
    }
