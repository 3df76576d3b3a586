"""`skyward lock`: writes the exact packages and base of declared images to files that are meant to be committed."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skyward.builder.packages.lock_file import Entry, read_lock_file, shown, write_lock_file
from skyward.builder.plans import check_lock, lock_for
from skyward.builder.store import EngineImages
from skyward.cli.output import Output
from skyward.cli.sources import ProgramCommand, declared_in, split
from skyward.engine import Images, find_engine
from skyward.errors import ConfigError
from skyward.model.image import Image, package_name
from skyward.model.image_fields import local_minor, platform_of

if TYPE_CHECKING:
    from skyward.builder.sources.declared import Declared

FITS, STALE = 0, 1


@dataclass(frozen=True, slots=True)
class Locked:
    """A declared image and the lock file that pins it."""

    source: Path
    declared: Declared
    file: Path

    def targets(self, entries: Iterable[Entry], platforms: Collection[str]) -> list[tuple[str, str]]:
        """Return the platforms and Python versions to lock for: those in the file, plus those requested."""
        own = self.declared.image.platform
        if own:
            return [(own, local_minor())]
        asked = platforms or ({each.platform for each in entries} or {platform_of(self.declared.architecture)})
        return sorted({(each.platform, each.python) for each in entries} | {(each, local_minor()) for each in asked})

    def image(self, platform: str, python: str) -> Image:
        """Return the image for a target, including what its plugins add."""
        declared = replace(self.declared, image=replace(self.declared.image, platform=platform))
        if not declared.plugins and not declared.images:
            return declared.image
        from skyward.plugins.registry import declared_image

        return declared_image(declared, platform=platform, python=python)


@click.command(cls=ProgramCommand)
@click.argument("sources", nargs=-1, required=True, metavar="FILE...")
@click.option("--platform", "platforms", multiple=True, metavar="PLATFORM", help="To lock for, such as linux/arm64.")
@click.option("--check", is_flag=True, help="Write nothing; exit with 0 if the locks fit, 1 if not.")
@click.option("--upgrade", is_flag=True, help="Take the newest packages that are allowed, and the base as it is now.")
@click.option(
    "--upgrade-package", "-P", "newer", multiple=True, metavar="NAME", help="Take the newest of this package."
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, one object per line.")
def command(
    sources: tuple[str, ...],
    arguments: tuple[str, ...] | None,
    platforms: tuple[str, ...],
    check: bool,
    upgrade: bool,
    newer: tuple[str, ...],
    as_json: bool,
) -> int:
    """Lock what images are made of, so that all build the same.

    A FILE is an image in TOML, whose lock is NAME.lock beside it, or a Python program whose images name theirs:
    sky.Image(lock="train.lock"). Commit the locks. Builds and pools use them, and refuse them when the image asks for
    something else by then.
    """
    if upgrade and newer:
        raise ConfigError("Give --upgrade (all packages) or --upgrade-package (one package), not both.")
    output = Output(as_json=as_json)
    with output.errors():
        images = [each for source in sources for each in _locked(source, arguments, output)]
        files = dict.fromkeys(each.file for each in images)
        wanted = {file: [each for each in images if each.file == file] for file in files}
        if check:
            return max(_check(file, all_, platforms, as_json) for file, all_ in wanted.items())
        names = None if not (upgrade or newer) else tuple(map(package_name, newer))
        with closing(Images(find_engine())) as engine:
            for file, all_ in wanted.items():
                _lock(file, all_, platforms, names, EngineImages(engine), as_json)
    return FITS


def _locked(source: str, arguments: Sequence[str] | None, output: Output) -> Iterator[Locked]:
    """Yield the images that a file declares, each with its lock file."""
    path = Path(split(source)[0])
    if path.is_dir():
        raise ConfigError(f"{source} is a project, whose lock is its own: `uv lock --project {source}`.")
    for declared in declared_in(source, arguments, output):
        lock = declared.image.lock
        if lock is None and path.suffix != ".toml":
            raise ConfigError(
                f"{declared.where}: the image of {declared.name!r} names no lock, so that a pool would not find it. "
                f"Name one: sky.Image(lock={f'{path.stem}.lock'!r})."
            )
        file = declared.root / (lock or f"{path.stem}.lock")
        yield Locked(path, declared, Path(os.path.normpath(file.expanduser())))


def _check(file: Path, images: list[Locked], platforms: Collection[str], as_json: bool) -> int:
    """Print whether a lock file fits its images, and return the exit status."""
    reason = ""
    try:
        entries = read_lock_file(file) if file.is_file() else ()
        for each in images:
            for platform, python in each.targets(entries, platforms):
                image = each.image(platform, python)
                check_lock(image, python=python, platform=platform, root=each.declared.root, file=file)
    except ConfigError as error:
        reason = str(error)
    state = "stale" if reason else "fits"
    if as_json:
        document = {"event": "check", "file": shown(file), "state": state, "reason": reason}
        click.echo(json.dumps(document, ensure_ascii=False))
    else:
        click.echo(f"{shown(file)}: {state}{f'. {reason}' if reason else ''}")
    return STALE if reason else FITS


def _lock(
    file: Path,
    images: list[Locked],
    platforms: Collection[str],
    newer: Collection[str] | None,
    engine: EngineImages,
    as_json: bool,
) -> None:
    """Write a lock file, and print what changed."""
    known = read_lock_file(file) if file.is_file() else ()
    entries: list[Entry] = []
    for each in images:
        for platform, python in each.targets(known, platforms):
            entry = lock_for(
                each.image(platform, python),
                engine,
                python=python,
                platform=platform,
                root=each.declared.root,
                file=file,
                known=known,
                newer=newer,
            )
            if entry not in entries:
                entries.append(entry)
    declaration = os.path.relpath(images[0].source.absolute(), file.parent)
    written = write_lock_file(file, declaration, entries)
    for entry in entries:
        _tell(file, entry, known, written, as_json)


def _tell(file: Path, entry: Entry, known: Iterable[Entry], written: bool, as_json: bool) -> None:
    same = [each for each in known if (each.platform, each.python) == (entry.platform, entry.python)]
    before = {package.name: package.pin for each in same for package in each.lock.packages}
    after = {package.name: package.pin for package in entry.lock.packages}
    changes = [
        {"package": name, "before": before.get(name), "after": after.get(name)}
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]
    if as_json:
        about = {"file": shown(file), "platform": entry.platform, "python": entry.python, "written": written}
        document = {"event": "lock", **about, "packages": len(after), "changes": changes if same else None}
        click.echo(json.dumps(document, ensure_ascii=False))
        return
    how = "written" if written else "unchanged"
    click.echo(f"{shown(file)}: {len(after)} packages for {entry.target}, {how}")
    for change in changes if same else ():
        signs = [f"-{change['before']}" if change["before"] else "", f"+{change['after']}" if change["after"] else ""]
        click.echo(f"  {' '.join(sign for sign in signs if sign)}")
