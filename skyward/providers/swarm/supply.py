"""The image of a pool on its way to a swarm: built here, put into a registry, and named by its digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from skyward.build import ensure, plan_for
from skyward.build.events import Report
from skyward.build.registry import Absent, Exists, Unknown, existence, push, with_tag
from skyward.build.registry.client import registry_credentials
from skyward.build.registry.reference import parse_reference
from skyward.build.used import note_use
from skyward.engine import EngineAddress, Images
from skyward.model.image import Image
from skyward.providers.images import EngineImages


@dataclass(frozen=True, slots=True)
class Supplied:
    """An image that a swarm's machines can have.

    Attributes:
        reference: what they are told to run: `repository@digest`; or the image's id, on the machine that has built it.
        auth: credentials for its registry, in the form in which an engine takes them.
    """

    reference: str
    auth: Mapping[str, str] = field(default_factory=dict, repr=False)


def supply(
    image: Image, python: str, platform: str, registry: str | None, report: Report, engine: EngineAddress
) -> Supplied:
    """Have the image built unless it is anywhere, and put it into the registry unless it is there.

    Args:
        image: plugins applied.
        python: the client's version.
        platform: of the machines.
        registry: repository to go through; None where the engine that builds is all the swarm.
        report: is told what happens.
        engine: builds and pushes.

    Raises:
        ImageError: it cannot be had, built or pushed.
        EngineError: the engine here refuses or does not answer.
    """
    store = EngineImages(Images(engine))
    plan = plan_for(image, store, python=python, platform=platform)
    if registry is None:
        ensure(plan, store, report, docker_host=engine.url)
        note_use(plan.tag)
        facts = store.inspect(plan.tag)
        assert facts
        return Supplied(facts.id)  # a name would be looked for in a registry first
    target = with_tag(registry, plan.tag.rpartition(":")[2])
    found = existence.check(target, platform=plan.platform)
    if isinstance(found, Unknown):
        raise found.error()
    if isinstance(found, Exists):
        reference = found.reference
    else:
        assert isinstance(found, Absent)
        ensure(plan, store, report, docker_host=engine.url)
        note_use(plan.tag)
        reference = push(plan.tag, target, platform=plan.platform, engine=store, report=report).reference
    name = parse_reference(target).registry
    credentials = registry_credentials(name)
    return Supplied(reference, credentials.for_engine(name) if credentials else {})
