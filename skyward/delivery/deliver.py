"""`deliver`: make the image of a pool available to the engines that run it, built and pushed where necessary.

An engine has an image if its content is what was built or is in the registry (`skyward.builder.store`); the tag alone
does not suffice. After a delivery to machines, the content on each of them is checked.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from skyward.builder.events import Report, note, paced, readable
from skyward.builder.explain import remember
from skyward.builder.plans import ensure, plan_for
from skyward.builder.registry.auth import registry_login
from skyward.builder.registry.pushing import find, push
from skyward.builder.registry.reference import parse_reference, with_tag
from skyward.builder.store import EngineImages, ImageFacts, facts_of, is_known, known_contents, note_content
from skyward.engine import EngineAddress, Images
from skyward.engine.images import Follow, load, save
from skyward.errors import ImageError, SkywardError
from skyward.image import Plan
from skyward.model.image import Image
from skyward.model.spec import Cluster, ClusterSpec
from skyward.model.ssh import SshHost
from skyward.nodes.ssh_host import Machine
from skyward.records.run import FOLDER_VARIABLE, write_json
from skyward.ssh.preflight import check_disk, refuse
from skyward.system import threading, time
from skyward.system.futures import ThreadPoolExecutor

_AT_ONCE = 8
_PREPARED_FILE = "images.json"
Found = Mapping[Machine, ImageFacts | None]  # what each machine has under a tag


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
        ProviderError: a machine has no space for it.
        ImageError: it cannot be built, pushed, pulled, or sent to a machine.
        EngineError: an engine refuses or does not answer.
    """
    store = EngineImages(Images(target.engine), report, target.docker_host)
    if (ready := prepared_image(image, cluster.spec)) and (found := _where_wanted(ready, target, store)):
        return found
    plan = plan_for(image, store, python=cluster.spec.python, platform=image.platform or cluster.spec.platform)
    if target.machines:
        _to_machines(plan, target, store, report)
        delivered = Delivered(tag=plan.tag, user=plan.user)
    elif target.registry:
        reference = put_in_registry(plan, target.registry, store, report)
        delivered = Delivered(tag=plan.tag, reference=reference, auth=engine_login(target.registry), user=plan.user)
    else:
        facts = ensure(plan, store, report)
        delivered = Delivered(tag=plan.tag, reference=facts.id, user=plan.user)
    remember(plan)
    return delivered


def _where_wanted(ready: Delivered, target: ImageTarget, store: EngineImages) -> Delivered | None:
    """Return an image delivered before, if all recipients have it unchanged, or pull it by its digest."""
    if target.registry and not target.machines:
        return replace(ready, auth=engine_login(target.registry)) if "@" in ready.reference else None
    facts = [*_look(target.machines, ready.tag).values()] if target.machines else [store.inspect(ready.tag)]
    if not all(is_known(ready.tag, each) for each in facts):
        return None
    return replace(ready, reference=facts[0].id if facts[0] else "")


def put_in_registry(plan: Plan, registry: str, store: EngineImages, report: Report) -> str:
    """Build and push an image unless the registry has it, and return its `repository@digest`.

    Another image under its name there is replaced.

    Args:
        plan: the image.
        registry: the repository that it is pushed to.
        store: images of the engine that builds and pushes.
        report: receives progress.

    Raises:
        ImageError: it cannot be built; the registry cannot be reached, or refuses.
        EngineError: the engine refuses or does not answer.
    """
    target = with_tag(registry, plan.tag.rpartition(":")[2])
    found = find(plan.tag, target, store.images, report)
    if found is None:
        ensure(plan, store, report)
        found = push(plan.tag, target, engine=store.images, report=report)
    return found


def engine_login(registry: str) -> Mapping[str, str]:
    """Return the user's login for the registry of a repository, in the format of engines; {} if there is none.

    Raises:
        RegistryError: a credential program or AWS gives no login.
    """
    return registry_login(parse_reference(registry).registry)


# to machines ----------------------------------------------------------------------------------------------------------


def _to_machines(plan: Plan, target: ImageTarget, store: EngineImages, report: Report) -> None:
    """Deliver an image to the machines that lack it, and check that all have the same content then."""
    tag, machines = plan.tag, target.machines
    before = _look(machines, tag)
    contents = {facts.content if facts and is_known(tag, facts) else None for facts in before.values()}
    if None not in contents and len(contents) == 1:
        return
    content = (_pull if target.registry else _send)(plan, target, store, before, report)
    wrong = [machine.name for machine, facts in _look(machines, tag).items() if not facts or facts.content != content]
    if wrong:
        raise ImageError(
            f"After {tag} was delivered to {', '.join(wrong)}, another image had that name there, or none. "
            "Something else moves or removes the tag; try again."
        )


def _look(machines: Sequence[Machine], tag: str) -> dict[Machine, ImageFacts | None]:
    """Return the image that each machine has under a tag."""

    def look(machine: Machine) -> ImageFacts | None:
        found = machine.engine.image(tag)
        return facts_of(found) if found else None

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="skyward-image") as threads:
        return dict(zip(machines, threads.map(look, machines), strict=True))


def _pull(plan: Plan, target: ImageTarget, store: EngineImages, before: Found, report: Report) -> str:
    """Let the machines that lack the image pull it by its digest, and return the digest of its content."""
    assert target.registry
    reference = put_in_registry(plan, target.registry, store, report)
    auth, local = engine_login(target.registry), store.inspect(plan.tag)
    lacking = _lacking(plan.tag, before, lambda facts: reference in facts.repo_digests, report)
    if local:
        _check_room(lacking, local.size, len(target.machines))

    def work(machine: Machine, follow: Follow) -> None:
        images = Images(machine.engine_address)
        images.pull(reference, auth, follow)
        images.tag(reference, plan.tag)

    _on_each(lacking, work, f"pulling {reference} on", report)
    found = target.machines[0].engine.image(reference)
    content = facts_of(found).content if found else ""
    note_content(plan.tag, content)
    return content


def _lacking(tag: str, before: Found, has: Callable[[ImageFacts], bool], report: Report) -> list[Machine]:
    """Return the machines without the image, and report other images under its tag."""
    lacking = {machine: facts for machine, facts in before.items() if facts is None or not has(facts)}
    for machine, facts in lacking.items():
        if facts and not is_known(tag, facts):
            report(note(f"{tag} was another image on {machine.name} ({facts.id[:19]}); ours takes its place"))
    return list(lacking)


def _send(plan: Plan, target: ImageTarget, store: EngineImages, before: Found, report: Report) -> str:
    """Send the image to the machines that lack it, from an engine that has it; return the digest of its content."""
    source, facts = _source(plan, target, store, before, report)
    if target.docker_host:  # the machine that builds may have it now
        builders = [each for each in target.machines if each.engine_address is target.engine]
        before = {**before, **_look(builders, plan.tag)}
    lacking = _lacking(plan.tag, before, lambda found: found.content == facts.content, report)
    _check_room(lacking, facts.size, len(target.machines))

    def work(machine: Machine, follow: Follow) -> None:
        load(machine.engine_address, plan.tag, _counted(save(source, plan.tag), facts.size, follow))

    _on_each(lacking, work, f"sending the image, {readable(facts.size)}, to", report)
    return facts.content


def _counted(chunks: Iterator[bytes], size: int, follow: Follow) -> Iterator[bytes]:
    done = 0
    for chunk in chunks:
        done += len(chunk)
        follow(done, size)
        yield chunk


def _source(
    plan: Plan, target: ImageTarget, store: EngineImages, before: Found, report: Report
) -> tuple[EngineAddress, ImageFacts]:
    """Return an engine that has the image, after building it if there is none."""
    facts = store.inspect(plan.tag)
    if facts is None or not is_known(plan.tag, facts):
        for machine, found in before.items():
            if found and is_known(plan.tag, found):
                return machine.engine_address, found
        facts = ensure(plan, store, report)
    return target.engine, facts


def _check_room(machines: Sequence[Machine], size: int, total: int) -> None:
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="skyward-disk") as threads:
        free = list(threads.map(Machine.free_bytes, machines))
    refuse(
        [each for machine, room in zip(machines, free, strict=True) for each in check_disk(machine.name, room, size)],
        total,
    )


def _on_each(machines: Sequence[Machine], work: Callable[[Machine, Follow], None], doing: str, report: Report) -> None:
    """Transfer something to machines in parallel; an interrupt ends all transfers.

    Args:
        machines: the machines.
        work: transfers it to one; calls its second argument with the bytes done, and the total.
        doing: what is done, for a message that ends with their names.
        report: receives progress.

    Raises:
        SkywardError: a machine did not get it; all others have it.
    """
    if not machines:
        return
    report(note(f"{doing} {', '.join(machine.name for machine in machines)}"))
    over, began, failures = threading.Event(), time.monotonic(), dict[Machine, SkywardError]()

    def run(machine: Machine) -> None:
        paced_follow = paced(report, machine.name)

        def follow(done: int, total: int) -> None:
            if over.is_set():
                raise ImageError("The transfer was interrupted.")
            paced_follow(done, total)

        try:
            work(machine, follow)
            report(note(f"{machine.name}: has the image after {time.monotonic() - began:.1f} s"))
        except SkywardError as error:
            failures[machine] = error

    threads = [threading.Thread(target=run, args=(each,), name=f"image-{each.name}", daemon=True) for each in machines]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        over.set()
        raise
    if len(failures) == 1:
        raise next(iter(failures.values()))
    if failures:
        lines = "\n".join(f"  {machine.name}  {failure}" for machine, failure in failures.items())
        raise ImageError(f"{len(failures)} hosts could not get the image:\n{lines}")


# images that were delivered before a detached run began -------------------------------------------------------------
#
# Its driver lacks the locks, bases and docker command they were made with, and does not need them: an image that is
# where it is needed, with the delivered content, is used unchanged.


def description(image: Image, spec: ClusterSpec) -> str:
    """Return a key that identifies an image before any look-up: a hash of its fields and its compilation target."""
    told = {field.name: getattr(image, field.name) for field in fields(image) if field.compare}
    wanted = [told, image.platform or spec.platform, spec.python]
    return hashlib.sha256(json.dumps(wanted, sort_keys=True, default=_plain).encode()).hexdigest()


def write_prepared(folder: Path, images: Mapping[str, Delivered]) -> None:
    """Store the images, by their descriptions, for the driver of the run with this directory; without credentials."""
    told = {}
    for key, image in images.items():
        contents = sorted(known_contents(image.tag))
        told[key] = {"tag": image.tag, "reference": image.reference, "user": image.user, "contents": contents}
    write_json(folder / _PREPARED_FILE, told)


def prepared_image(image: Image, spec: ClusterSpec) -> Delivered | None:
    """Return the delivered image for the run of this process; None if there is none, or outside a run."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder or not (Path(folder) / _PREPARED_FILE).is_file():
        return None
    found = json.loads((Path(folder) / _PREPARED_FILE).read_text()).get(description(image, spec))
    if found is None:
        return None
    for content in found.pop("contents"):  # compared with the contents on engines
        note_content(found["tag"], content)
    return Delivered(**found)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return dict(value) if isinstance(value, Mapping) else str(value)
