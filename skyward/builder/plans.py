"""Plans of images: made from a description, and carried out unless an engine has the image.

Planning reads files, finds the base, locks the requirements, and compiles. `ensure` builds a plan. It does not suffice
that the engine has an image with the plan's tag: its content must be what this user built, or found in a registry, for
that tag (`is_known`). Otherwise it is built, mostly from the builder's cache, and replaces the image under the tag.
Several processes may build the same plan: the builder runs its steps once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from skyward.builder.base import check_base, facts_of_base
from skyward.builder.events import Report, note
from skyward.builder.files.copied import code_files, package_files, runner_digest
from skyward.builder.packages.local import located
from skyward.builder.packages.lock import Request, lock_anew, lock_requirements
from skyward.builder.packages.lock_file import Entry, entry_for, not_upgraded, wrong_base
from skyward.builder.packages.requirements import resolve_files
from skyward.builder.registry.reference import parse_reference
from skyward.builder.store import EngineImages, ImageFacts, is_known, note_content
from skyward.errors import BuildError, ConfigError, ImageNotFoundError
from skyward.image import (
    BaseFacts,
    Copied,
    Lock,
    Plan,
    check_python,
    compile,  # noqa: A004
    default_base,
)
from skyward.model.image import Dockerfile, Image

if TYPE_CHECKING:
    from skyward.builder.registry.pushing import SharedCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A base image for a build: the reference for FROM, and the digest that identifies its content.

    `facts` are the engine's.
    """

    reference: str
    digest: str
    facts: ImageFacts


def plan_for(
    image: Image, store: EngineImages, *, python: str, platform: str, root: Path | None = None, upgrade: bool = False
) -> Plan:
    """Compile an image: read its files, lock its requirements, and find its base on the engine or pull it.

    Args:
        image: the description, plugins applied. Without its own base it starts from the one in SKYWARD_BASE, or else
            from the official slim image of the Python version.
        store: the images of the engine.
        python: the client's minor version, such as "3.11".
        platform: platform of the nodes, such as "linux/amd64".
        root: base of the image's relative paths; None for the working directory.
        upgrade: lock again, and take the newest versions allowed.

    Raises:
        ConfigError: the image requires another Python version, or a file it names is missing or wrong.
        ImageNotFoundError: the base is neither on the engine nor in its registry.
        ImageError: nothing can be built on the base, or its requirements cannot be locked.
    """
    check_python(image, python)
    wanted = _wanted(image, root or Path.cwd(), python, image.platform or platform)
    request = wanted.request
    file = wanted.lock_file
    if file is not None and upgrade:
        raise not_upgraded(file)
    entry = entry_for(file, request) if file is not None else None
    base = wanted.base(store, entry, file)
    named = base.reference if entry else wanted.named  # the name may refer to another image by now
    given = facts_of_base(repr(named), base.facts, store)
    check_base(repr(named), given, python)
    if entry:
        lock = replace(entry.lock, sources=request.rules.sources)
    else:
        lock = lock_requirements(replace(request, libc=given.libc), upgrade=upgrade)
    return wanted.plan(base.reference, base.digest, lock=lock, given=given, code=wanted.code())


def draft_for(image: Image, *, python: str, platform: str, root: Path) -> Plan:
    """Return a plan for reading, not for building, without asking an engine, a registry or an index.

    Its base is the named one, and its requirements are not locked.

    Raises:
        ConfigError: the image requires another Python version, or a file it names is missing or wrong.
    """
    check_python(image, python)
    wanted = _wanted(image, root, python, image.platform or platform)
    return wanted.plan(wanted.named, "", lock=None, code=wanted.code())


def plan_on_machine(image: Image, *, python: str, platform: str, libc: str) -> Plan:
    """Return the plan of an image whose packages are installed for a machine's own Python, without a container.

    Only its lock and its tag are meaningful, not its Dockerfile.

    Args:
        image: the description, plugins applied, without a base.
        python: the client's minor version, such as "3.11", which the machine also has.
        platform: platform of the machine, such as "linux/amd64".
        libc: its C library, such as "glibc 2.36".

    Raises:
        ConfigError: the image requires another Python version, or a file it names is missing or wrong.
        ImageError: its requirements cannot be locked.
    """
    check_python(image, python)
    wanted = _wanted(image, Path.cwd(), python, platform)
    request, file = wanted.request, wanted.lock_file
    if file is None:
        lock = lock_requirements(replace(request, libc=libc))
    else:
        lock = replace(entry_for(file, request).lock, sources=request.rules.sources)
    return wanted.plan("scratch", f"machine:{platform},{libc}", lock=lock)


def lock_for(
    image: Image,
    store: EngineImages,
    *,
    python: str,
    platform: str,
    root: Path,
    file: Path,
    known: Sequence[Entry] = (),
    newer: Collection[str] | None = None,
) -> Entry:
    """Return the entry of an image for its lock file: the existing one if it still fits, else a new one.

    Args:
        image: the description, plugins applied.
        store: the images of the engine.
        python: minor version of the nodes.
        platform: platform of the nodes.
        root: base of the image's relative paths.
        file: the present or future location of the lock file.
        known: its present entries. Their versions are kept if they still fit.
        newer: packages to take in the newest versions allowed; empty for all, with the base; None for none.

    Raises:
        The same errors as `plan_for`.
    """
    wanted = _wanted(image, root, python, image.platform or platform)
    request = wanted.request
    asked = request.asked(file.parent)
    same = [each for each in known if (each.platform, each.python) == (request.platform, python)]
    last = next((each for each in same if each.asked == asked), None) or next(iter(same), None)
    if last is not None and last.asked == asked and newer is None and (last.is_pulled or not last.base):
        return last
    keeps_base = last is not None and last.is_pulled and newer != () and _bases(last.asked) == _bases(asked)
    base = wanted.base(store, last if keeps_base else None, file)
    request = replace(request, libc=facts_of_base(repr(base.reference), base.facts, store).libc)
    preferred = last.lock.packages if last and newer != () else ()
    left = tuple(package for package in preferred if package.name not in (newer or ()))
    return Entry(
        platform=request.platform,
        python=python,
        asked=asked,
        base="" if isinstance(image.base, Dockerfile) else base.digest,
        is_pulled="@" in base.reference,
        lock=last.lock if last and last.asked == asked and newer is None else lock_anew(request, left),
    )


def _bases(asked: Sequence[str]) -> list[str]:
    return [line for line in asked if line.startswith("base ")]


def check_lock(image: Image, *, python: str, platform: str, root: Path, file: Path) -> None:
    """Check that a lock file fits an image, without asking engine or index.

    Raises:
        ConfigError: it does not; the message names the changes, and the command to run.
    """
    entry_for(file, _wanted(image, root, python, image.platform or platform).request)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """The requirements of an image, with its files read. `root` is the base of its relative paths."""

    request: Request
    root: Path

    @property
    def named(self) -> str:
        """The base named by the image or this machine."""
        return str(self.request.image.base or os.environ.get("SKYWARD_BASE") or default_base(self.request.python))

    @property
    def lock_file(self) -> Path | None:
        """The lock file that the image names; None if there is none."""
        image = self.request.image
        return None if image.lock is None else located(self.root, image.lock)

    def code(self) -> Copied | None:
        """Return its local code, if that is to be baked in."""
        return code_files(self.request.image, self.root)

    def plan(
        self, base: str, digest: str, *, lock: Lock | None, given: BaseFacts | None = None, code: Copied | None = None
    ) -> Plan:
        """Compile it on a base with that digest."""
        return compile(
            self.request.image,
            python=self.request.python,
            platform=self.request.platform,
            base=base,
            base_digest=digest,
            runner_digest=runner_digest(),
            lock=lock,
            packages=package_files(self.request.packages),
            code=code,
            given=given,
        )

    def base(self, store: EngineImages, entry: Entry | None = None, file: Path | None = None) -> Base:
        """Return the base: that of an entry of a lock file, else the one that the engine has under its name.

        A base from a Dockerfile is built first.
        """
        image, request = self.request.image, self.request
        if isinstance(image.base, Dockerfile):
            return _built_base(image.base, self.root, request.platform, image.secrets, store)
        named = self.named
        if entry is None or file is None or not entry.base:
            return resolve_base(named, store)
        if entry.is_pulled:
            return replace(resolve_base(f"{_repository(named)}@{entry.base}", store), digest=entry.base)
        base = resolve_base(named, store)
        if base.digest != entry.base:
            raise wrong_base(file, named, base.digest, entry)
        return base


def _wanted(image: Image, root: Path, python: str, platform: str) -> _Wanted:
    request = replace(resolve_files(image, root, python=python, platform=platform), platform=platform)
    return _Wanted(request=request, root=root)


def _built_base(base: Dockerfile, root: Path, platform: str, secrets: Collection[str], store: EngineImages) -> Base:
    """Build a base from a Dockerfile, mostly from the builder's cache, and return it; its id stands for its content.

    Raises:
        ConfigError: the Dockerfile or its context does not exist.
        BuildError: a step failed.
    """
    from skyward.builder.docker.build import build_base  # not loaded for other bases

    file, context = located(root, base.path), located(root, base.context)
    if not file.is_file():
        raise ConfigError(f"Image: base names the Dockerfile {base.path!r}, but there is no file {file}.")
    if not context.is_dir():
        raise ConfigError(f"Image: base.context is {base.context!r}, but there is no directory {context}.")
    name = hashlib.sha256("\n".join((str(file), str(context), base.target or "", platform)).encode()).hexdigest()
    tag = f"skyward:base-{name[:16]}"
    build_base(file, context, tag, base.target, platform, secrets, store)
    facts = store.inspect(tag)
    if facts is None:
        raise _elsewhere(tag, store.builder)
    return Base(reference=tag, digest=facts.id, facts=facts)


def _elsewhere(tag: str, builder: object) -> BuildError:
    return BuildError(
        f"The build of {tag} ended well, but the engine does not have the image. The docker command and skyward may "
        f"use different engines: the build was on {builder!r}; set DOCKER_HOST for both."
    )


def resolve_base(reference: str, store: EngineImages) -> Base:
    """Find a base image on the engine, or pull it.

    Raises:
        ImageNotFoundError: it is neither on the engine nor in its registry.
    """
    facts = store.inspect(reference)
    if facts is None:
        try:
            store.pull(reference)
        except ImageNotFoundError as error:
            raise ImageNotFoundError(
                f"The base image {reference!r} is neither on the engine nor can it be pulled. {error} "
                "Where no registry can be reached, set SKYWARD_BASE or Image(base=...) to an image the engine has."
            ) from None  # the text contains all of it
        facts = store.inspect(reference)
    if facts is None:
        raise ImageNotFoundError(
            f"The engine pulled {reference!r} but does not have it under that name. Give it a tag."
        )
    pinned, digest = _pinned(reference, facts)
    return Base(reference=pinned, digest=digest, facts=facts)


def _pinned(reference: str, facts: ImageFacts) -> tuple[str, str]:
    """Return the base by digest if its own registry supplied one, and the digest; for an image made here, its id.

    An engine that keeps images in containerd assigns every image a digest, which is also its id. The builder would ask
    a registry for it, which does not have it if the image did not come from one, so such a base is referred to by its
    tag.
    """
    name = _repository(reference)
    for known in facts.repo_digests:
        repository, _, digest = known.partition("@")
        if parse_reference(repository).name == parse_reference(name).name:
            return (reference if digest == facts.id else f"{name}@{digest}"), digest
    return reference, facts.id


def _repository(reference: str) -> str:
    """Return a reference without tag and digest."""
    name = reference.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def ensure(
    plan: Plan,
    store: EngineImages,
    report: Report,
    *,
    cache: SharedCache | None = None,
) -> ImageFacts:
    """Ensure that the engine has the image of a plan, and return its facts; another image with the tag is replaced.

    Args:
        plan: a plan from `plan_for`.
        store: the images of the engine.
        report: receives progress; see `skyward.builder.events`.
        cache: source of other builders' layers, and destination of new ones.

    Raises:
        BuildError: the build failed.
        ImageNotFoundError: the builder cannot get the base.
        EngineError: no docker command here can build.
        ConfigError: a secret has no value here, or this machine's settings for package sources are wrong.
    """
    facts = store.inspect(plan.tag)
    if facts and is_known(plan.tag, facts):
        return facts
    # not loaded if nothing is built
    from skyward.builder.docker.build import build, secret_values

    secrets = secret_values(plan.image.secrets)  # missing secrets are reported before anything is made
    started, before = perf_counter(), facts
    if plan.given and plan.given.pythons and plan.given.lacks(plan.python):
        version, path = plan.given.pythons[0]
        report(
            note(
                f"the base has Python {version} ({path}), and nodes get Python {plan.python}, as this client has: "
                "packages that the base has for its own are not seen there"
            )
        )
    report(note(f"building {plan.tag} from {plan.base}"))
    build(plan, report, store, secrets, cache)
    made = store.inspect(plan.tag)
    if made is None:
        raise _elsewhere(plan.tag, store.builder)
    if before and (before.content or before.id) != (made.content or made.id):
        report(note(f"{plan.tag} was another image on the engine ({before.id[:19]}); the built one takes its place"))
    note_content(plan.tag, made.content, made.id)
    report(note(f"built {plan.tag} in {perf_counter() - started:.1f} s"))
    return made
