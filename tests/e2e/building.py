"""Images built for tests: made, looked into, removed."""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple

import skyward as sky
from skyward.builder.events import Event
from skyward.builder.plans import ensure, plan_for
from skyward.builder.store import EngineImages
from skyward.image import Layer, Plan

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


class Built:
    """Builds images and remembers them for removal; keeps what was reported of the last build."""

    def __init__(self, store: EngineImages, engine: Any) -> None:
        self.store, self.engine = store, engine
        self.made: list[str] = []
        self.reports: list[str] = []
        self.events: list[Event] = []
        self._layers: Sequence[Layer] = ()  # of the last build

    def plan(self, image: sky.Image) -> Plan:
        return plan_for(image, self.store, python=PYTHON, platform="linux/amd64")

    def __call__(self, image: sky.Image, **given: Any) -> Plan:
        self.reports, self.events = [], []
        plan = self.plan(image)
        self._layers = plan.layers
        if self.store.inspect(plan.tag) is None:
            self.made.append(plan.tag)
        ensure(plan, self.store, self.note, **given)
        return plan

    def made_anew(self) -> list[str]:
        """The layers whose steps ran in the last build, as opposed to those that the builder had made before.

        They are in the order of the Dockerfile: of steps that end at about the same time docker tells in any order.
        """
        done = [event.layer for event in self.events if event.kind == "done"]
        return [layer.name for layer in self._layers if layer in done]

    def run(self, plan: Plan, code: str) -> str:
        """What a piece of Python prints in a container of the image."""
        output: bytes = self.engine.containers.run(plan.tag, ["python", "-c", code], remove=True, network_mode="host")
        return output.decode()

    def layers(self, ref: str) -> list[str]:
        """The digests of an image's layers."""
        found: list[str] = self.engine.images.get(ref).attrs["RootFS"]["Layers"]
        return found

    def remove(self) -> None:
        """Remove what was made."""
        for tag in self.made:
            if self.store.inspect(tag) is not None:
                self.engine.images.remove(tag, force=True)

    def note(self, event: Event) -> None:
        """Keep what a build tells."""
        self.reports.append(str(event))
        self.events.append(event)


def search(image: Any, needles: list[bytes]) -> list[tuple[str, bytes]]:
    """Where these bytes are in a saved image: every file of every layer, and what describes them."""
    found = []
    with tempfile.TemporaryFile() as file:
        for chunk in image.save():
            file.write(chunk)
        file.seek(0)
        with tarfile.open(fileobj=file) as archive:
            for member in archive:
                content = archive.extractfile(member)
                data = content.read() if content else b""
                found += [(member.name, needle) for needle in needles if needle in data]
    return found


class Entry(NamedTuple):
    """An entry of a layer's archive, with all that decides its bytes."""

    name: str
    kind: bytes
    mode: int
    owner: tuple[int, int]
    mtime: float
    link: str
    more: tuple[tuple[str, str], ...]
    size: int
    digest: str


def entries_of_layers(image: Any) -> Iterator[list[Entry]]:
    """What is in each layer of an image, in its order, from the lowest on."""
    for layer in _layers(image):
        yield [_entry(layer, each) for each in layer.getmembers()]


def files_of_layers(image: Any) -> Iterator[list[tarfile.TarInfo]]:
    """What is in each layer of an image, from the lowest on."""
    for layer in _layers(image):
        yield layer.getmembers()


def _layers(image: Any) -> Iterator[tarfile.TarFile]:
    with tempfile.TemporaryFile() as file:
        for chunk in image.save():
            file.write(chunk)
        file.seek(0)
        with tarfile.open(fileobj=file) as archive:
            manifest = json.load(_member(archive, "manifest.json"))
            for name in manifest[0]["Layers"]:
                with tarfile.open(fileobj=_member(archive, name)) as layer:
                    yield layer


def _entry(layer: tarfile.TarFile, each: tarfile.TarInfo) -> Entry:
    content = layer.extractfile(each) if each.isreg() else None
    return Entry(
        name=each.name,
        kind=each.type,
        mode=each.mode,
        owner=(each.uid, each.gid),
        mtime=each.mtime,
        link=each.linkname,
        more=tuple(sorted(each.pax_headers.items())),
        size=each.size,
        digest=hashlib.sha256(content.read()).hexdigest() if content else "",
    )


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    found = archive.extractfile(name)
    assert found
    return found
