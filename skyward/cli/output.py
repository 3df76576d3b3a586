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
  `before`, `after`), `reused` and `rebuilt` (layers); if the image exists, nothing is changed or rebuilt.
- `dockerfile`: `text`.
- `eject`: `folder`, and `command`, which builds the image there.
- `error`: `kind` (the exception's name), `message`, `status` (the exit status).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
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


@dataclass(slots=True)
class LayerRecord:
    """Outcome of one layer."""

    state: str | None = None
    seconds: float | None = None


@dataclass(slots=True)
class Result:
    """Outcome for one image.

    Attributes:
        reference: `repository@digest` if it is in a registry.
        built: whether it was built now.
        seconds: duration of the build.
        layers: outcomes of its layers, if it was built now, in the order of the Dockerfile.
    """

    tag: str
    id: str = ""
    size: int | None = None
    reference: str | None = None
    built: bool = False
    seconds: float = 0.0
    layers: dict[Layer, LayerRecord] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan) -> Result:
        """Return a result in which nothing is known yet."""
        return cls(tag=plan.tag, layers={layer: LayerRecord() for layer in plan.layers})

    def follow(self, event: Event) -> None:
        """Record what an event says about a layer."""
        if event.layer is None or event.kind == "output":
            return
        # what a base built from a Dockerfile lacks is known only after its build; a layer may then differ
        record = self.layers.setdefault(event.layer, LayerRecord())
        record.state, record.seconds = event.kind, event.seconds

    @property
    def made(self) -> list[tuple[Layer, LayerRecord]]:
        """The layers that were run, or found in the cache."""
        return [(layer, record) for layer, record in self.layers.items() if record.state]


def result_text(image: str, result: Result) -> str:
    """Return the result for an image as text for people."""
    how = f"built in {result.seconds:.1f} s" if result.built else "exists"
    lines = [f"{result.tag}  {image}: {how}"]
    facts = {
        "digest": result.reference,
        "id": result.id,
        "size": None if result.size is None else readable(result.size),
    }
    lines += [f"  {name:<8}{value}" for name, value in facts.items() if value]
    for layer, record in result.made:
        time = record.state or "" if record.seconds is None else f"{record.seconds:.1f} s"
        lines.append(f"  {time:>8}  {layer.name}")
    return "".join(f"{line}\n" for line in lines)


class Output:
    """Prints results and progress, as text or as JSON."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    @contextmanager
    def listening(self, image: str) -> Iterator[Report]:
        """Yield a listener for the events of one image."""
        with ExitStack() as stack:
            yield self._report(image, stack)

    def _report(self, image: str, stack: ExitStack) -> Report:
        if self.as_json:
            return lambda event: self._say(image, _document(event))
        if sys.stderr.isatty():
            return _Terminal(stack)
        return as_lines(lambda line: click.echo(f"skyward: {line}", err=True))

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Report an error as an event as well, and raise it again."""
        try:
            yield
        except SkywardError as error:
            if self.as_json:
                about = {"kind": type(error).__name__, "message": str(error), "status": status_of(error)}
                self._say("", {"event": "error", **about})
            raise

    def note(self, image: str, text: str) -> None:
        """Show a sentence, as text on standard error."""
        if self.as_json:
            self._say(image, {"event": "note", "message": text})
        else:
            click.echo(f"skyward: {text}", err=True)

    def result(self, image: str, result: Result) -> None:
        """Show the result for an image."""
        layers = [{**_place(layer), "state": record.state, "seconds": record.seconds} for layer, record in result.made]
        names = ("tag", "id", "size", "reference", "built", "seconds")
        document = {"event": "result", **{n: getattr(result, n) for n in names}, "layers": layers}
        self._show(image, document, result_text(image, result))

    def check(self, image: str, tag: str, state: str, reason: str = "") -> None:
        """Show whether an image exists."""
        text = f"{tag}  {image}: {state}{f' ({reason})' if reason else ''}\n"
        self._show(image, {"event": "check", "tag": tag, "state": state, "reason": reason}, text)

    def explanation(self, image: str, plan: Plan, last: str | None, found: Explanation, *, exists: bool) -> None:
        """Show what a build would do, and why."""
        if self.as_json:
            changes = [{"input": c.input, "before": c.before, "after": c.after} for c in found.changes]
            layers = {"reused": [*map(_place, found.reused)], "rebuilt": [*map(_place, found.rebuilt)]}
            document = {"event": "explain", "tag": plan.tag, "exists": exists, "last": last, "changes": changes}
            self._say(image, {**document, **layers})
            return
        click.echo(f"{plan.tag}  {image}: {'exists, nothing to build' if exists else 'would be built'}")
        if last is None and not exists:
            click.echo("  no build of it is known here")
        for change in found.changes:
            signs = f"- {change.before} " if change.before else "", f"+ {change.after}" if change.after else ""
            click.echo(f"  changed  {change.input}: {''.join(signs).rstrip()}")
        for word, layers_of in (("reused", found.reused), ("rebuilt", found.rebuilt)):
            for layer in layers_of:
                click.echo(f"  {word:<8} {layer.name}  ({layer.origin})")

    def dockerfile(self, image: str, text: str) -> None:
        """Show a Dockerfile."""
        self._show(image, {"event": "dockerfile", "text": text}, text)

    def ejected(self, image: str, folder: str, command: str) -> None:
        """Show where an image's Dockerfile was written, and the command that builds it."""
        text = f"{folder}  {image}: build it there with\n  {command}\n"
        self._show(image, {"event": "eject", "folder": folder, "command": command}, text)

    def _show(self, image: str, document: dict[str, Any], text: str) -> None:
        if self.as_json:
            self._say(image, document)
        else:
            click.echo(text, nl=False)

    def _say(self, image: str, document: dict[str, Any]) -> None:
        click.echo(json.dumps({"event": document["event"], "image": image, **document}, ensure_ascii=False))


class _Terminal:
    """Plain lines until the first layer, then a live list, so that rich is loaded only for builds."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._report: Report | None = None
        self._lines = as_lines(lambda line: click.echo(f"skyward: {line}", err=True))

    def __call__(self, event: Event) -> None:
        if self._report is None and event.layer is not None:
            from skyward.builder.docker.live import LiveLayers

            self._report = self._stack.enter_context(LiveLayers())
        (self._report or self._lines)(event)


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


def say_error(error: SkywardError, **about: str) -> None:
    """Print an error as a JSON object, with the given fields about its origin."""
    told = {"kind": type(error).__name__, "message": str(error)}
    click.echo(json.dumps({"event": "error", **about, **told}))


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
