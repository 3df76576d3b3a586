"""How the image of a pool gets to its machines: who has it, who builds it, and which way it goes.

Machines have an image if its content is what was built or is in the registry (`skyward.build.contents`); its tag alone
counts for nothing. After the delivery each is asked what it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from skyward.build import ensure, plan_for
from skyward.build.contents import is_known
from skyward.build.events import Report, note
from skyward.build.store import ImageFacts
from skyward.build.used import note_use
from skyward.engine import Images, find_engine
from skyward.engine.address import EngineAddress
from skyward.errors import ImageError
from skyward.image import Plan
from skyward.model.image import Image
from skyward.model.ssh import SshHost
from skyward.providers import distribution
from skyward.providers.checks import check_disk, refuse
from skyward.providers.images import EngineImages, facts_of
from skyward.providers.machine import Machine
from skyward.providers.registered import registered
from skyward.providers.relay import can_receive, relay
from skyward.providers.signed import refuse_unsigned
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
            self._store = EngineImages(Images(self._builder), report)
        else:
            self._builder = find_engine()
            self._docker_host = self._builder.url
            self._store = EngineImages(Images(self._builder), report)

    def bring(self, image: Image, python: str, platform: str) -> str:
        """Make every machine have the image, whatever else has its tag there; the tag.

        Raises:
            ProviderError: a machine has no room for it.
            ImageError: it cannot be had, or not be brought to a machine.
            EngineError: an engine refuses or broke off.
        """
        if self._registry is None:
            refuse_unsigned(image, "through SSH")
        plan = plan_for(image, self._store, python=python, platform=platform)
        there = self._look(plan.tag, self._machines)
        contents = {facts.content if facts and is_known(plan.tag, facts) else None for facts in there.values()}
        # a signature is of what the registry has: it is asked even where all machines have the image
        if None in contents or len(contents) > 1 or image.verify:
            expected = self._pull(plan, there, self._registry) if self._registry else self._send(plan, there)
            self._check(plan.tag, expected)
        note_use(plan.tag)
        return plan.tag

    def _look(self, tag: str, machines: Sequence[Machine]) -> dict[Machine, ImageFacts | None]:
        """What each machine has by that name."""

        def look(machine: Machine) -> ImageFacts | None:
            found = machine.engine.image(tag)
            return facts_of(found) if found else None

        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="skyward-image") as threads:
            return dict(zip(machines, threads.map(look, machines), strict=True))

    def _check(self, tag: str, expected: str) -> None:
        """See that what was delivered, in whichever way, is what was to be."""
        there = self._look(tag, self._machines)
        wrong = [machine.name for machine, facts in there.items() if facts is None or facts.content != expected]
        if wrong:
            raise ImageError(
                f"After {tag} was delivered to {', '.join(wrong)}, another image had that name there, or none. "
                "Something else moves or removes the tag; try again."
            )

    def _send(self, plan: Plan, there: dict[Machine, ImageFacts | None]) -> str:
        """From the engine that builds or a machine that has it, once; machines give it to each other."""
        source, facts = self._builder, self._store.inspect(plan.tag)
        known = [machine for machine in self._machines if is_known(plan.tag, there[machine])]
        if not is_known(plan.tag, facts):
            if known:
                source, facts = known[0].engine_address, there[known[0]]
            else:
                ensure(plan, self._store, self._report, docker_host=self._docker_host)
                facts = self._store.inspect(plan.tag)
        assert facts
        if not self._is_here:  # the machine that built it
            there |= self._look(plan.tag, [m for m in self._machines if m.engine_address is self._builder])
        lacking = self._lacking(plan.tag, there, facts.content)
        having = [machine for machine in self._machines if machine not in lacking]
        self._check_room(lacking, facts.size)
        if lacking and source is self._builder and self._is_here:
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
        return facts.content

    def _pull(self, plan: Plan, there: Mapping[Machine, ImageFacts | None], registry: str) -> str:
        """From the registry, where it is put first unless it is there."""
        supplied = registered(plan, registry, self._store, self._report, self._docker_host)
        if not self._is_here:
            there = self._look(plan.tag, self._machines)  # one of them may have built it now
        lacking = self._lacking(plan.tag, there, supplied.content)
        facts = self._store.inspect(plan.tag)
        if facts is not None:
            self._check_room(lacking, facts.size)
        if lacking:
            distribution.pull(supplied.reference, plan.tag, supplied.auth, lacking, self._report)
        return supplied.content

    def _lacking(self, tag: str, there: Mapping[Machine, ImageFacts | None], expected: str) -> list[Machine]:
        """The machines that do not have this content; says of those that have another by the same name."""
        lacking = {machine: facts for machine, facts in there.items() if facts is None or facts.content != expected}
        for machine, facts in lacking.items():
            if facts is not None:
                self._report(note(f"{tag} was another image on {machine.name} ({facts.id[:19]}); ours takes its place"))
        return list(lacking)

    def _check_room(self, machines: Sequence[Machine], size: int) -> None:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="skyward-disk") as threads:
            free = list(threads.map(Machine.free_bytes, machines))
        findings = [
            finding
            for machine, room in zip(machines, free, strict=True)
            for finding in check_disk(machine.name, room, size)
        ]
        refuse(findings, len(self._machines))
