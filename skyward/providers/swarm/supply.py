"""The image of a pool on its way to a swarm: built here, put into a registry, and named by its digest."""

from __future__ import annotations

from skyward.build import ensure, plan_for
from skyward.build.events import Report
from skyward.build.used import note_use
from skyward.engine import EngineAddress, Images
from skyward.model.image import Image
from skyward.providers.images import EngineImages
from skyward.providers.registered import Supplied, registered
from skyward.providers.signed import refuse_unsigned


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
    if registry is None:
        refuse_unsigned(image, "from the engine that builds it")
    store = EngineImages(Images(engine), report)
    plan = plan_for(image, store, python=python, platform=platform)
    if registry is None:
        ensure(plan, store, report, docker_host=engine.url)
        note_use(plan.tag)
        facts = store.inspect(plan.tag)
        assert facts
        return Supplied(facts.id, user=plan.user)  # a name would be looked for in a registry first
    return registered(plan, registry, store, report, engine.url)
