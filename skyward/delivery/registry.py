"""The image of a pool in a registry: found there, else built and pushed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from skyward.builder import ensure
from skyward.builder.events import Report
from skyward.builder.registry import existence
from skyward.builder.registry.auth import registry_credentials
from skyward.builder.registry.existence import Absent, Exists, Unknown
from skyward.builder.registry.pushing import push
from skyward.builder.registry.reference import parse_reference, with_tag
from skyward.builder.store import EngineImages
from skyward.errors import RegistryError
from skyward.image import Plan
from skyward.model.ssh import SshHost


@dataclass(frozen=True, slots=True)
class RegistryImage:
    """An image that a registry has.

    Attributes:
        reference: `repository@digest`.
        content: digest of what runs, see `skyward.builder.store`.
        auth: credentials for the registry, in the form in which an engine takes them.
    """

    reference: str
    content: str
    auth: Mapping[str, str] = field(repr=False)


def put_in_registry(
    plan: Plan, registry: str, store: EngineImages, report: Report, docker_host: str | SshHost
) -> RegistryImage:
    """Build and push an image unless the registry has it. Another image under its name there is replaced.

    Args:
        plan: the image.
        registry: the repository that it is pushed to.
        store: images of the engine that builds and pushes.
        report: receives progress.
        docker_host: address of that engine.

    Raises:
        ConfigError: the key of `Image.verify` cannot be used.
        ImageError: it cannot be built, or its signature is not what `Image.verify` asks for; the registry cannot be
            reached, or refuses.
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
        pushed = push(plan.tag, target, platform=plan.platform, engine=store, report=report)
        reference, content = pushed.reference, pushed.content
    else:
        reference, content = found.reference, found.content
    return RegistryImage(reference, content, engine_login(registry))


def engine_login(registry: str) -> Mapping[str, str]:
    """The user's credentials for the registry of a repository, in the form in which an engine takes them; {} for none.

    Raises:
        RegistryError: a credential program or the registry's cloud fails.
    """
    name = parse_reference(registry).registry
    credentials = registry_credentials(name)
    return credentials.for_engine(name) if credentials else {}


def _verify(target: str, found: Exists | Absent, key: str) -> None:
    from skyward.builder.registry.attachments import verify

    if isinstance(found, Absent):
        raise RegistryError(
            f"The registry does not have the image {target} that was expected, so nobody has signed it with the key of "
            f"{key}; with verify= it is not built here.",
            "Push and sign it: `skyward build --push ... --sign KEY`.",
        )
    verify(parse_reference(target), found.digest, key)
