"""`deliver`: make the image of a pool available to the engines that run it, built and pushed where necessary.

An engine has an image if its content is what was built or is in the registry (`skyward.builder.store`); the tag alone
does not suffice. After a delivery to machines, the content on each of them is checked.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward.builder import ensure, plan_for
from skyward.builder.events import Report, note
from skyward.builder.registry.auth import registry_credentials
from skyward.builder.registry.reference import parse_reference, with_tag
from skyward.builder.store import EngineImages, ImageFacts, facts_of, is_known, known_contents, note_content, note_use
from skyward.delivery import stream
from skyward.delivery.checks import check_verifiable
from skyward.engine import EngineAddress, Images
from skyward.errors import ImageError, RegistryError
from skyward.image import Plan
from skyward.model.image import Image
from skyward.model.spec import Cluster, ClusterSpec
from skyward.model.ssh import SshHost
from skyward.nodes.ssh_host import Machine
from skyward.records.run import FOLDER_VARIABLE, write_json
from skyward.ssh.connection import uses_paramiko
from skyward.ssh.preflight import check_disk, refuse
from skyward.system.futures import ThreadPoolExecutor

if TYPE_CHECKING:
    from skyward.builder.registry.existence import Absent, Exists

_AT_ONCE = 8
_PREPARED_FILE = "images.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTarget:
    """The engine that builds an image, and the machines or the registry that receive it.

    Attributes:
        engine: builds the image if it exists nowhere, and pushes it.
        docker_host: address of that engine for the docker command; None for an engine of this machine.
        machines: the hosts that run the image; if empty, `engine` runs it, or whatever pulls it from the registry.
        registry: repository through which the image is delivered; None for none.
    """

    engine: EngineAddress
    docker_host: SshHost | None = None
    machines: Sequence[Machine] = ()
    registry: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """An image that can be run.

    Attributes:
        tag: its name on the machines, or on the engine that has built it.
        reference: `repository@digest` if it was put into a registry for others to pull, else its id on that engine.
        auth: credentials for the registry, in the format of engines.
        user: the user that the image names; "" if it names none.
    """

    tag: str
    reference: str = ""
    auth: Mapping[str, str] = field(default_factory=dict, repr=False)
    user: str = ""


def deliver(image: Image, cluster: Cluster, target: ImageTarget, report: Report) -> Delivered:
    """Make an image available to a target, replacing other images of its name there.

    Args:
        image: the description, plugins applied.
        cluster: the cluster it is compiled for.
        target: the recipients.
        report: receives progress.

    Raises:
        ConfigError: its signature is to be verified, but it does not come from a registry.
        ProviderError: a machine has no space for it.
        ImageError: it cannot be built, pushed, pulled, or sent to a machine.
        EngineError: an engine refuses or does not answer.
    """
    check_verifiable(image, target.registry)
    store = EngineImages(Images(target.engine), report)
    if (ready := prepared_image(image, cluster.spec)) and (found := _where_wanted(ready, target, store)):
        return found
    plan = plan_for(image, store, python=cluster.spec.python, platform=image.platform or cluster.spec.platform)
    docker_host = target.docker_host or target.engine.url
    if target.machines:
        _ToMachines(plan, target, store, report).run()
        delivered = Delivered(tag=plan.tag, user=plan.user)
    elif target.registry:
        there = put_in_registry(plan, target.registry, store, report, docker_host)
        delivered = Delivered(tag=plan.tag, reference=there.reference, auth=there.auth, user=plan.user)
    else:
        facts = ensure(plan, store, report, docker_host=docker_host)
        delivered = Delivered(tag=plan.tag, reference=facts.id, user=plan.user)
    note_use(plan.tag)
    return delivered


def _where_wanted(ready: Prepared, target: ImageTarget, store: EngineImages) -> Delivered | None:
    """Return an image delivered before, if all recipients have it unchanged, or pull it by its digest."""
    if target.registry and not target.machines:
        if "@" not in ready.reference:
            return None
        return Delivered(tag=ready.tag, reference=ready.reference, auth=engine_login(target.registry), user=ready.user)
    if target.machines:
        found = [machine.engine.image(ready.tag) for machine in target.machines]
        facts = [facts_of(each) if each else None for each in found]
    else:
        facts = [store.inspect(ready.tag)]
    if not all(is_known(ready.tag, each) for each in facts):
        return None
    return Delivered(tag=ready.tag, reference=facts[0].id if facts[0] else "", user=ready.user)


class _ToMachines:
    """Delivery of one image to machines."""

    def __init__(self, plan: Plan, target: ImageTarget, store: EngineImages, report: Report) -> None:
        self._plan, self._store, self._report = plan, store, report
        self._engine, self._machines, self._registry = target.engine, target.machines, target.registry
        self._is_local = target.docker_host is None
        self._docker_host = target.docker_host or target.engine.url

    def run(self) -> None:
        """Deliver it to the machines that lack it."""
        tag = self._plan.tag
        before = self._look(self._machines)
        contents = {facts.content if facts and is_known(tag, facts) else None for facts in before.values()}
        # signatures are of images in the registry, which is asked even if all machines have the image
        if None in contents or len(contents) > 1 or self._plan.image.verify:
            expected = self._pull(before, self._registry) if self._registry else self._send(before)
            self._check(expected)

    def _look(self, machines: Sequence[Machine]) -> dict[Machine, ImageFacts | None]:
        """Return the image that each machine has under the tag."""

        def look(machine: Machine) -> ImageFacts | None:
            found = machine.engine.image(self._plan.tag)
            return facts_of(found) if found else None

        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="skyward-image") as threads:
            return dict(zip(machines, threads.map(look, machines), strict=True))

    def _check(self, expected: str) -> None:
        """Check that each machine has the delivered content."""
        tag, after = self._plan.tag, self._look(self._machines)
        wrong = [machine.name for machine, facts in after.items() if facts is None or facts.content != expected]
        if wrong:
            raise ImageError(
                f"After {tag} was delivered to {', '.join(wrong)}, another image had that name there, or none. "
                "Something else moves or removes the tag; try again."
            )

    def _pull(self, before: Mapping[Machine, ImageFacts | None], registry: str) -> str:
        """Let the machines that lack it pull it from the registry, and return the digest of its content."""
        plan = self._plan
        found = put_in_registry(plan, registry, self._store, self._report, self._docker_host)
        if not self._is_local:
            before = self._look(self._machines)  # the machine that builds may have it now
        lacking = self._lacking(before, found.content)
        facts = self._store.inspect(plan.tag)
        if facts is not None:
            self._check_room(lacking, facts.size)
        if lacking:
            stream.pull(found.reference, plan.tag, found.auth, lacking, self._report)
        return found.content

    def _send(self, before: dict[Machine, ImageFacts | None]) -> str:
        """Send it to the machines that lack it, and return the digest of its content.

        It is sent once, from the engine that builds or a machine that has it, and machines relay it to each other.
        """
        source, facts = self._source(before)
        if not self._is_local:  # the machine that builds may have it now
            before |= self._look([each for each in self._machines if each.engine_address is self._engine])
        tag, report = self._plan.tag, self._report
        lacking = self._lacking(before, facts.content)
        self._check_room(lacking, facts.size)
        if lacking and source is self._engine and self._is_local:
            lacking = stream.send_missing_layers(source, tag, lacking, report)
        having = [machine for machine in self._machines if machine not in lacking]
        if lacking and not having:
            stream.send(source, tag, facts.size, lacking[:1], report)
            having, lacking = lacking[:1], lacking[1:]
        # relay sessions between hosts require OpenSSH
        near = [machine for machine in lacking if stream.can_receive(machine.address) and not uses_paramiko()]
        left = [machine for machine in lacking if machine not in near]
        if near:
            left += stream.relay(having[0], tag, facts.size, near, report)
        if left:
            stream.send(source, tag, facts.size, left, report)
        return facts.content

    def _source(self, before: Mapping[Machine, ImageFacts | None]) -> tuple[EngineAddress, ImageFacts]:
        """Return an engine that has the image, after building it if there is none."""
        facts = self._store.inspect(self._plan.tag)
        if facts is None or not is_known(self._plan.tag, facts):
            for machine, found in before.items():
                if found and is_known(self._plan.tag, found):
                    return machine.engine_address, found
            facts = ensure(self._plan, self._store, self._report, docker_host=self._docker_host)
        return self._engine, facts

    def _lacking(self, before: Mapping[Machine, ImageFacts | None], expected: str) -> list[Machine]:
        """Return the machines without this content, and report other images under the same tag."""
        lacking = {machine: facts for machine, facts in before.items() if facts is None or facts.content != expected}
        for machine, facts in lacking.items():
            if facts is not None:
                replaced = (
                    f"{self._plan.tag} was another image on {machine.name} ({facts.id[:19]}); ours takes its place"
                )
                self._report(note(replaced))
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


# by a registry --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegistryImage:
    """An image in a registry.

    Attributes:
        reference: `repository@digest`.
        content: digest of the executed content; see `skyward.builder.store`.
        auth: credentials for the registry, in the format of engines.
    """

    reference: str
    content: str
    auth: Mapping[str, str] = field(repr=False)


def put_in_registry(
    plan: Plan, registry: str, store: EngineImages, report: Report, docker_host: str | SshHost
) -> RegistryImage:
    """Build and push an image unless the registry has it; another image under its name there is replaced.

    Args:
        plan: the image.
        registry: the repository that it is pushed to.
        store: images of the engine that builds and pushes.
        report: receives progress.
        docker_host: address of that engine.

    Raises:
        ConfigError: the key of `Image.verify` cannot be used.
        ImageError: it cannot be built, or its signature does not match `Image.verify`; the registry cannot be reached,
            or refuses.
        EngineError: the engine refuses or does not answer.
    """
    from skyward.builder.registry import existence  # imports requests, which most deliveries do not need
    from skyward.builder.registry.existence import Absent, Unknown
    from skyward.builder.registry.pushing import push

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
    """Return the user's credentials for the registry of a repository, in the format of engines; {} if there are none.

    Raises:
        RegistryError: a credential program or the registry's cloud fails.
    """
    name = parse_reference(registry).registry
    credentials = registry_credentials(name)
    return credentials.for_engine(name) if credentials else {}


def _verify(target: str, found: Exists | Absent, key: str) -> None:
    from skyward.builder.registry.attachments import verify
    from skyward.builder.registry.existence import Absent

    if isinstance(found, Absent):
        raise RegistryError(
            f"The registry does not have the image {target} that was expected, so nobody has signed it with the key of "
            f"{key}; with verify= it is not built here.",
            "Push and sign it: `skyward build --push ... --sign KEY`.",
        )
    verify(parse_reference(target), found.digest, key)


# images that were delivered before a detached run began -------------------------------------------------------------
#
# Its driver lacks the locks, bases and docker command they were made with, and does not need them: an image that is
# where it is needed, with the delivered content, is used unchanged.


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """An image that has been delivered.

    Attributes:
        tag: its name on the engines that have it.
        user: the user that it names; "" if it names none.
        contents: digests that its content may have, and its ids.
        reference: `repository@digest` if it was put into a registry for others to pull.
    """

    tag: str
    user: str
    contents: tuple[str, ...]
    reference: str = ""

    @classmethod
    def of(cls, tag: str, user: str, reference: str) -> Prepared:
        """Create the value for an image that this user has just delivered."""
        return cls(tag=tag, user=user, contents=tuple(sorted(known_contents(tag))), reference=reference)


def description(image: Image, spec: ClusterSpec) -> str:
    """Return a key that identifies an image before any look-up: a hash of its fields and its compilation target."""
    told = {field.name: getattr(image, field.name) for field in fields(image) if field.compare}
    wanted = [told, image.platform or spec.platform, spec.python]
    return hashlib.sha256(json.dumps(wanted, sort_keys=True, default=_plain).encode()).hexdigest()


def write_prepared(folder: Path, images: Mapping[str, Prepared]) -> None:
    """Store the images, by their descriptions, for the driver of the run with this directory."""
    write_json(folder / _PREPARED_FILE, {key: asdict(image) for key, image in images.items()})


def prepared_image(image: Image, spec: ClusterSpec) -> Prepared | None:
    """Return the delivered image for the run of this process; None if there is none, or outside a run."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder or not (Path(folder) / _PREPARED_FILE).is_file():
        return None
    found = json.loads((Path(folder) / _PREPARED_FILE).read_text()).get(description(image, spec))
    if found is None:
        return None
    for content in found["contents"]:  # compared with the contents on engines
        note_content(found["tag"], content)
    return Prepared(**{**found, "contents": tuple(found["contents"])})


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return dict(value) if isinstance(value, Mapping) else str(value)
