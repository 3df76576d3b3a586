"""Output of `skyward build`: progress and results; and the tables that other commands print.

Progress goes to standard error, as a live list of layers on a terminal and as plain lines in a pipe; results go to
standard output.

With `--json` standard output has one object per line and nothing else. Every object has `event`, and `image`, the name
of what is being built. The events:

- `note`: `message`, a sentence.
- `layer`: `name` and `origin` are what it does and who asked for it; `stage` and `step` (null if it runs nothing)
  identify it; `state` is "start", "cached", "done" (with `seconds`) or "failed".
- `output`: `line`, printed by the layer with that `stage` and `step`.
- `result`: `tag`, `id`, `size` (bytes), `built` (false if the image existed), `seconds`, `reference` (with the
  registry's digest; null if it was not pushed), `layers` as above, with `seconds` (null: unknown).
- `check`: `tag`, `state` ("exists", "absent", "unknown"), `reason`.
- `explain`: `tag`, `exists`, `last` (the tag of the last build here, or null), `changes` since then (each with `input`,
  `before`, `after`), `cached` and `rebuilt` (layers); if the image exists, nothing is changed or rebuilt.
- `dockerfile`: `text`.
- `eject`: `folder`, and `command`, which builds the image there.
- `error`: `kind` (the exception's name), `message`, `status` (the exit status).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from skyward.builder.events import Event, Report, as_lines, readable
from skyward.cli.commands import status_of
from skyward.errors import SkywardError

if TYPE_CHECKING:
    from skyward.builder.explain import Explanation
    from skyward.image import Layer, Plan


_WIDE = 10_000  # columns if the output is not a terminal
Row = Mapping[str, Any]


@dataclass(slots=True)
class Result:
    """Outcome for one image.

    Attributes:
        reference: `repository@digest` if it is in a registry.
        built: whether it was built now.
        seconds: duration of the build.
        layers: those that were run, or found in the cache, in the order of the Dockerfile, with the latest event.
    """

    tag: str
    id: str = ""
    size: int | None = None
    reference: str | None = None
    built: bool = False
    seconds: float = 0.0
    layers: dict[Layer, Event | None] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan) -> Result:
        """Return a result in which nothing is known yet."""
        return cls(tag=plan.tag, layers=dict.fromkeys(plan.layers))

    def follow(self, event: Event) -> None:
        """Record what an event says about a layer."""
        # what a base built from a Dockerfile lacks is known only after its build; a layer may then differ
        if event.layer is not None and event.kind != "output":
            self.layers[event.layer] = event

    @property
    def made(self) -> list[Event]:
        """The latest event of each layer that was run, or found in the cache."""
        return [event for event in self.layers.values() if event is not None]


def result_text(image: str, result: Result) -> str:
    """Return the result for an image as text for people."""
    how = f"built in {result.seconds:.1f} s" if result.built else "exists"
    size = None if result.size is None else readable(result.size)
    facts = {"digest": result.reference, "id": result.id, "size": size}
    lines = [f"{result.tag}  {image}: {how}"]
    lines += [f"  {name:<8}{value}" for name, value in facts.items() if value]
    for event in result.made:
        time = event.kind if event.seconds is None else f"{event.seconds:.1f} s"
        lines.append(f"  {time:>8}  {event.layer.name if event.layer else ''}")
    return "".join(f"{line}\n" for line in lines)


class Output:
    """Prints results and progress, as text or as JSON."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    @contextmanager
    def listening(self, image: str) -> Iterator[Report]:
        """Yield a listener for the events of one image."""
        with ExitStack() as stack:
            if self.as_json:
                yield lambda event: self._show(image, **_document(event))
            elif sys.stderr.isatty():
                from skyward.builder.docker.live import LiveLayers

                yield stack.enter_context(LiveLayers())
            else:
                yield as_lines(lambda line: click.echo(f"skyward: {line}", err=True))

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Report an error as an event as well, and raise it again."""
        try:
            yield
        except SkywardError as error:
            if self.as_json:
                say_error(error, image="", status=status_of(error))
            raise

    def note(self, image: str, text: str) -> None:
        """Show a sentence, as text on standard error."""
        if self.as_json:
            self._show(image, event="note", message=text)
        else:
            click.echo(f"skyward: {text}", err=True)

    def result(self, image: str, result: Result) -> None:
        """Show the result for an image."""
        layers = [
            {**_place(each.layer), "state": each.kind, "seconds": each.seconds} for each in result.made if each.layer
        ]
        about = {name: getattr(result, name) for name in ("tag", "id", "size", "reference", "built", "seconds")}
        self._show(image, result_text(image, result), event="result", **about, layers=layers)

    def check(self, image: str, tag: str, state: str, reason: str = "") -> None:
        """Show whether an image exists."""
        text = f"{tag}  {image}: {state}{f' ({reason})' if reason else ''}\n"
        self._show(image, text, event="check", tag=tag, state=state, reason=reason)

    def explanation(self, image: str, plan: Plan, found: Explanation, *, exists: bool) -> None:
        """Show what a build would do, and why."""
        lines = [f"{plan.tag}  {image}: {'exists, nothing to build' if exists else 'would be built'}"]
        if found.last is None:
            lines.append("  no build of it is known here")
        for change in found.changes:
            signs = f"- {change.before} " if change.before else "", f"+ {change.after}" if change.after else ""
            lines.append(f"  changed  {change.input}: {''.join(signs).rstrip()}")
        layers = {"cached": found.reused, "rebuilt": found.rebuilt}
        lines += [f"  {word:<8} {each.name}  ({each.origin})" for word, those in layers.items() for each in those]
        self._show(
            image,
            "".join(f"{line}\n" for line in lines),
            event="explain",
            tag=plan.tag,
            exists=exists,
            last=found.last,
            changes=[{"input": each.input, "before": each.before, "after": each.after} for each in found.changes],
            **{word: [*map(_place, those)] for word, those in layers.items()},
        )

    def dockerfile(self, image: str, text: str) -> None:
        """Show a Dockerfile."""
        self._show(image, text, event="dockerfile", text=text)

    def ejected(self, image: str, folder: str, command: str) -> None:
        """Show where an image's Dockerfile was written, and the command that builds it."""
        text = f"{folder}  {image}: build it there with\n  {command}\n"
        self._show(image, text, event="eject", folder=folder, command=command)

    def _show(self, image: str, shown: str = "", *, event: str, **about: Any) -> None:
        if self.as_json:
            click.echo(json.dumps({"event": event, "image": image, **about}, ensure_ascii=False))
        else:
            click.echo(shown, nl=False)


def _document(event: Event) -> dict[str, Any]:
    layer = event.layer
    if layer is None:
        return {"event": "note", "message": event.line}
    if event.kind == "output":
        return {"event": "output", "stage": layer.stage, "step": layer.step, "line": event.line}
    seconds = {} if event.seconds is None else {"seconds": event.seconds}
    return {"event": "layer", "state": event.kind, **_place(layer), **seconds}


def _place(layer: Layer) -> dict[str, Any]:
    return {"name": layer.name, "origin": layer.origin, "stage": layer.stage, "step": layer.step}


def say_error(error: SkywardError, **about: Any) -> None:
    """Print an error as a JSON object, with the given fields about its origin."""
    told = {"kind": type(error).__name__, "message": str(error)}
    click.echo(json.dumps({"event": "error", **about, **told}, ensure_ascii=False))


def show_rows(rows: Sequence[Row], columns: Mapping[str, Callable[[Row], str]], *, as_json: bool) -> None:
    """Print rows: as JSON objects, with all their fields; or as a table with these columns."""
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
    else:
        show_table([tuple(columns), *(tuple(text(row) for text in columns.values()) for row in rows)])


def show_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns, the first row as heading. Nothing is cut; on a terminal that is too narrow, cells wrap.

    The first column is never broken: it has the names that other commands take.
    """
    from rich.console import Console
    from rich.table import Table

    heading, *others = rows
    width = None if sys.stdout.isatty() else _WIDE
    console = Console(file=sys.stdout, markup=False, highlight=False, emoji=False, width=width)
    table = Table(*heading, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in table.columns:
        column.overflow = "fold"
    table.columns[0].min_width = max(len(row[0]) for row in rows)
    for row in others:
        table.add_row(*row)
    with console.capture() as capture:
        console.print(table)
    click.echo("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()), nl=False)
