"""How the image of a pool gets to its machines: who has it, who builds it, and which way it goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from skyward.build import ensure, plan_for
from skyward.build.events import Report
from skyward.build.used import note_use
from skyward.engine import Images, find_engine
from skyward.engine.address import EngineAddress
from skyward.errors import ImageError
from skyward.image import Plan
from skyward.model.image import Image
from skyward.model.ssh import SshHost
from skyward.providers import distribution
from skyward.providers.checks import check_disk, refuse
from skyward.providers.images import EngineImages
from skyward.providers.machine import Machine
from skyward.providers.registered import registered
from skyward.providers.relay import can_receive, relay
from skyward.system.futures import ThreadPoolExecutor

_AT_ONCE = 8


class Supply:
    """The way of one image to machines.

    Args:
        machines: all that run it.
        registry: repository to go through; None to send it through the connections.
        build: where it is built if it is nowhere.
        report: is told what happens.
    """

    def __init__(
        self, machines: Sequence[Machine], registry: str | None, build: Literal["local", "remote"], report: Report
    ) -> None:
        self._machines, self._registry, self._report = machines, registry, report
        self._builder: EngineAddress
        self._is_here = build == "local"
        self._docker_host: str | SshHost
        if build == "remote":
            self._builder, self._docker_host = machines[0].engine_address, machines[0].connection.through
            self._store = machines[0].images
        else:
            self._builder = find_engine()
            self._docker_host = self._builder.url
            self._store = EngineImages(Images(self._builder))

    def bring(self, image: Image, python: str, platform: str) -> str:
        """Make every machine have the image; its tag there.

        Raises:
            ProviderError: a machine has no room for it.
            ImageError: it cannot be had, or not be brought to a machine.
            EngineError: an engine refuses or broke off.
        """
        plan = plan_for(image, self._store, python=python, platform=platform)
        lacking = self._lacking(plan.tag)
        if lacking and self._registry:
            self._pull(plan, lacking, self._registry)
        elif lacking:
            self._send(plan, lacking)
        note_use(plan.tag)
        return plan.tag

    def _lacking(self, tag: str) -> list[Machine]:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="skyward-image") as threads:
            there = list(threads.map(lambda machine: machine.engine.image(tag), self._machines))
        ids = {str(found["Id"]) for found in there if found}
        if len(ids) > 1:
            raise ImageError(
                f"The hosts have different images as {tag}: {', '.join(sorted(ids))}. Remove it there (`docker rmi "
                f"{tag}`), and try again."
            )
        return [machine for machine, found in zip(self._machines, there, strict=True) if not found]

    def _send(self, plan: Plan, lacking: Sequence[Machine]) -> None:
        """From a machine that has it, else from the engine that builds, once; machines give it to each other."""
        source, facts = self._builder, self._store.inspect(plan.tag)
        having = [machine for machine in self._machines if machine not in lacking]
        if facts is None and having:
            source, facts = having[0].engine_address, having[0].images.inspect(plan.tag)
        elif facts is None:
            ensure(plan, self._store, self._report, docker_host=self._docker_host)
            facts = self._store.inspect(plan.tag)
            having = [machine for machine in self._machines if machine.engine_address is self._builder]
        lacking = [machine for machine in lacking if machine not in having]
        if facts is None or not lacking:
            return
        self._check_room(lacking, facts.size)
        if source is self._builder and self._is_here:
            lacking = distribution.complete(source, plan.tag, lacking, self._report)
            having = [machine for machine in self._machines if machine not in lacking]
        if lacking and not having:
            distribution.stream(source, plan.tag, facts.size, lacking[:1], self._report)
            having, lacking = [lacking[0]], lacking[1:]
        left = [machine for machine in lacking if not can_receive(machine.address)]
        if near := [machine for machine in lacking if machine not in left]:
            left += relay(having[0], plan.tag, facts.size, near, self._report)
        if left:
            distribution.stream(source, plan.tag, facts.size, left, self._report)

    def _pull(self, plan: Plan, lacking: Sequence[Machine], registry: str) -> None:
        """From the registry, where it is put first unless it is there."""
        supplied = registered(plan, registry, self._store, self._report, self._docker_host)
        lacking = [machine for machine in lacking if machine.engine.image(plan.tag) is None]
        facts = self._store.inspect(plan.tag)
        if facts is not None:
            self._check_room(lacking, facts.size)
        distribution.pull(supplied.reference, plan.tag, supplied.auth, lacking, self._report)

    def _check_room(self, machines: Sequence[Machine], size: int) -> None:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="skyward-disk") as threads:
            free = list(threads.map(Machine.free_bytes, machines))
        findings = [
            finding
            for machine, room in zip(machines, free, strict=True)
            for finding in check_disk(machine.name, room, size)
        ]
        refuse(findings, len(self._machines))
