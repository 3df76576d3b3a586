"""`skyward image`: lists and removes the images that skyward built on this engine; other images are never touched.

With `--json` standard output has one object per line and nothing else:

- `{"event": "image", "tag", "size", "built", "used", "source"}` of `ls`: bytes, seconds since the epoch, and the
  declaration or program that it was built for or last used by; `used` and `source` are null if unknown.
- `{"event": "removed", "tag", "size"}` of `rm` and `prune`; "would-remove" with `--dry-run`.
- `{"event": "stays", "tag", "reason"}`: something still needs it.

An image is skyward's if it has skyward's label and a tag that matches the identity in that label: an image that
somebody built on top of one inherits the label, but not the tag. Tags are removed, never image ids, and never by force.

`infer` shows what a script imports, in the versions of this interpreter.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import click

from skyward.builder.events import readable
from skyward.builder.store import forget_use, last_use, source_of
from skyward.cli.output import show_table
from skyward.engine import Images, find_engine
from skyward.errors import ConfigError, ImageError

LABEL = "skyward.image"
_TAG = re.compile(r"sky-\d+-([0-9a-f]{16})")
_AGE = re.compile(r"(\d+)([mhdw])")
_IN_USE = "is needed by a container, or by an image built on it"
_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """An image built by skyward; times in seconds since the epoch, `used` and `source` None if unknown.

    `also` lists its other names, such as those of registries that it was pushed to.
    """

    tag: str
    also: tuple[str, ...]
    size: int
    built: float
    used: float | None
    source: str | None

    @property
    def last(self) -> float:
        """Time of its last use, or of its build if no use is known."""
        return self.built if self.used is None else self.used


def own_images(images: Images) -> list[Own]:
    """Return the images on an engine that skyward built, most recently used first."""
    found = []
    for image in images.labelled(LABEL):
        names = [tag for tag in map(_local, image["RepoTags"] or ()) if _is_own(tag, image["Labels"][LABEL])]
        if not names:
            continue
        tag, *also = sorted(names, key=lambda name: (name.count("/"), name))
        found.append(
            Own(
                tag=tag,
                also=tuple(also),
                size=image["Size"],
                built=_built(images, tag, image["Created"]),
                used=last_use(tag),
                source=source_of(tag) or None,
            )
        )
    return sorted(found, key=lambda image: (-image.last, image.tag))


def _local(tag: str) -> str:
    """Return the name that the image was built under: Podman prefixes names without a registry with localhost/."""
    return tag.removeprefix("localhost/") if tag.startswith("localhost/skyward:") else tag


def _built(images: Images, tag: str, created: float) -> float:
    """Return when an image appeared on this engine: all images have the same creation date, for reproducible builds."""
    tagged = ((images.inspect(tag) or {}).get("Metadata") or {}).get("LastTagTime") or ""
    moment = re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", tagged)
    if moment is None or tagged.startswith("0001-"):  # pulled by this name, never tagged
        return created
    return datetime.fromisoformat(f"{moment[0]}+00:00").timestamp()


def _is_own(tag: str, identity: str) -> bool:
    named = _TAG.fullmatch(tag.rpartition(":")[2])
    return bool(named) and identity.startswith(named[1]) if named else False


@click.group()
def command() -> None:
    """Show and remove images that skyward built on this engine."""


_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, and nothing else.")


_dry_run = click.option("--dry-run", "is_trial", is_flag=True, help="Say what would be removed, and remove nothing.")


@command.command("ls")
@_as_json
def list_images(as_json: bool) -> int:
    """Show tags, sizes, times and what used them last.

    The times are when an image was built and last used, the source is the program or file that did. Layers that
    several images share are counted in the size of each.
    """
    found = own_images(Images(find_engine()))
    if as_json:
        for image in found:
            click.echo(json.dumps({"event": "image", **asdict(image)}))
        return 0
    rows = [("TAG", "SIZE", "BUILT", "LAST USED", "SOURCE")]
    for image in found:
        used = "-" if image.used is None else _moment(image.used)
        rows.append((image.tag, readable(image.size), _moment(image.built), used, image.source or "-"))
    show_table(rows)
    return 0


@command.command("rm")
@click.argument("tags", nargs=-1, required=True, metavar="TAG...")
@_dry_run
@_as_json
def remove_images(tags: tuple[str, ...], is_trial: bool, as_json: bool) -> int:
    """Remove images by their tags, as `ls` shows them.

    `skyward:` may be left out.
    """
    images = Images(find_engine())
    own = {tag: image for image in own_images(images) for tag in (image.tag, *image.also)}
    wanted = [_local(tag) if ":" in tag else f"skyward:{tag}" for tag in tags]
    if unknown := [tag for tag in wanted if tag not in own]:
        raise ConfigError(
            f"Nothing was removed: {', '.join(unknown)} {'is' if len(unknown) == 1 else 'are'} no image that skyward "
            "built on this engine. `skyward image ls` shows those."
        )
    if used := _removed(images, list(dict.fromkeys(own[tag] for tag in wanted)), is_trial=is_trial, as_json=as_json)[1]:
        raise ImageError(
            f"{', '.join(used)} cannot be removed. First end the pool, or remove the container or image, that needs it."
        )
    return 0


@command.command("prune")
@click.option("--older-than", metavar="AGE", help="Only what was last used before that: 30d, 12h, 2w. [default: 30d]")
@click.option("--keep", type=click.IntRange(min=0), metavar="N", help="Keep the N images used last, however old.")
@_dry_run
@_as_json
def prune_images(older_than: str | None, keep: int | None, is_trial: bool, as_json: bool) -> int:
    """Remove images that have not been used for a while.

    Without options: those last used more than 30 days ago. With --keep alone: all but those N, whatever their age.
    """
    age_s = _seconds(older_than or ("30d" if keep is None else "0m"))
    images = Images(find_engine())
    old = [image for image in own_images(images)[keep or 0 :] if time.time() - image.last >= age_s]
    removed, _ = _removed(images, old, is_trial=is_trial, as_json=as_json)
    if not as_json:
        click.echo(f"{len(removed)} image{'s' * (len(removed) != 1)} {'to be ' * is_trial}removed")
    return 0


def _removed(images: Images, wanted: Sequence[Own], *, is_trial: bool, as_json: bool) -> tuple[list[str], list[str]]:
    """Remove images and report each; return the tags that were removed, and those that are still in use."""
    gone: list[str] = []
    stay: list[str] = []
    for image in wanted:
        is_gone = is_trial or [images.remove(tag) for tag in (*image.also, image.tag)][-1]
        (gone if is_gone else stay).append(image.tag)
        about: dict[str, object]
        if not is_gone:
            event, about, line = "stays", {"reason": _IN_USE}, f"{_IN_USE}, and stays"
        elif is_trial:
            event, about, line = "would-remove", {"size": image.size}, f"would be removed ({readable(image.size)})"
        else:
            forget_use(image.tag)
            event, about, line = "removed", {"size": image.size}, "removed"
        if as_json:
            click.echo(json.dumps({"event": event, "tag": image.tag, **about}))
        else:
            click.echo(f"{image.tag} {line}", err=not is_gone)
    return gone, stay


def _seconds(age: str) -> int:
    found = _AGE.fullmatch(age)
    if not found:
        raise ConfigError(f"--older-than must be a number and a unit, such as 30d, 12h, 90m or 2w; found {age!r}.")
    return int(found[1]) * _UNITS[found[2]]


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


@command.command("infer")
@click.argument("script", metavar="SCRIPT")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, one object.")
def show_inferred(script: str, as_json: bool) -> int:
    """Show the packages that a script imports, in the versions installed here.

    SCRIPT is not run, and nothing is written: copy what the image shall have.
    """
    from skyward.model.infer import infer

    found = infer(Path(script))
    click.echo(json.dumps(asdict(found) | {"pip": found.pip}, ensure_ascii=False) if as_json else str(found))
    return 0
