"""The image of a pool in the registry that its machines pull it from: found there, else built and pushed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from skyward.build import ensure
from skyward.build.events import Report
from skyward.build.registry import Absent, Exists, Unknown, existence, push, with_tag
from skyward.build.registry.client import registry_credentials
from skyward.build.registry.reference import parse_reference
from skyward.build.used import note_use
from skyward.errors import RegistryError
from skyward.image import Plan
from skyward.model.ssh import SshHost
from skyward.providers.images import EngineImages


def _verify(target: str, found: Exists | Absent, key: str) -> None:
    from skyward.build.registry.signing import verify

    if isinstance(found, Absent):
        raise RegistryError(
            f"The registry does not have the image {target} that was expected, so nobody has signed it with the key of "
            f"{key}; with verify= it is not built here.",
            "Push and sign it: `skyward build --push ... --sign KEY`.",
        )
    verify(parse_reference(target), found.digest, key)


@dataclass(frozen=True, slots=True)
class Supplied:
    """An image that machines can have.

    Attributes:
        reference: what they are told to run: `repository@digest`; or the image's id, on the machine that has built it.
        auth: credentials for its registry, in the form in which an engine takes them.
        content: digest of what runs, see `skyward.build.contents`.
        user: the user that it names; "" for none.
    """

    reference: str
    auth: Mapping[str, str] = field(default_factory=dict, repr=False)
    content: str = ""
    user: str = ""


def registered(plan: Plan, registry: str, store: EngineImages, report: Report, docker_host: str | SshHost) -> Supplied:
    """Have an image in a registry, and say how machines get it from there. Another one under its name is replaced.

    Args:
        plan: the image.
        registry: repository to put it into.
        store: images of the engine that builds and pushes.
        report: is told what happens.
        docker_host: where that engine is.

    Raises:
        ConfigError: the key of `Image.verify` cannot be used.
        ImageError: it cannot be built, or is not signed as `Image.verify` wants; the registry cannot be reached, or
            refuses.
        EngineError: the engine refuses or does not answer.
    """
    target = with_tag(registry, plan.tag.rpartition(":")[2])
    found = existence.check_content(plan.tag, target, platform=plan.platform, report=report)
    if isinstance(found, Unknown):
        raise found.error()
    if plan.image.verify:
        _verify(target, found, plan.image.verify)
    if isinstance(found, Absent):
        ensure(plan, store, report, docker_host=docker_host)
        note_use(plan.tag)
        pushed = push(plan.tag, target, platform=plan.platform, engine=store, report=report)
        reference, content = pushed.reference, pushed.content
    else:
        reference, content = found.reference, found.content
    name = parse_reference(target).registry
    credentials = registry_credentials(name)
    return Supplied(reference, credentials.for_engine(name) if credentials else {}, content, plan.user)
