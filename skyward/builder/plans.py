"""Plans of images: made from a description, and carried out unless an engine has the image.

To plan is to read files, find the base, lock the requirements, and compile. `ensure` builds what was planned, once for
all processes that ask at the same time. That the engine has an image with the plan's tag is not enough: its content has
to be what this user built, or found in a registry, for that tag (`is_known`). Otherwise it is built, mostly from the
builder's cache, and takes the tag.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from skyward.builder.base import check_base, facts_of_base, noted_libc, replaced_python
from skyward.builder.dockerfile import base_build
from skyward.builder.events import Event, Report, note
from skyward.builder.files.copied import code_files, package_files, runner_digest
from skyward.builder.folders import cache_folder, cache_path, gone_without, read, write
from skyward.builder.packages.lock import Request, lock_anew, lock_requirements
from skyward.builder.packages.lock_file import Entry, asked_for, entry_for, not_upgraded, wrong_base
from skyward.builder.packages.metadata import LocalPackage, located
from skyward.builder.packages.requirements import resolve_files
from skyward.builder.store import EngineImages, ImageFacts, is_known, note_content
from skyward.errors import BuildError, ImageNotFoundError
from skyward.image import (
    BaseBuild,
    BaseFacts,
    Copied,
    Lock,
    Plan,
    check_python,
    compile,  # noqa: A004
    default_base,
    settled,
)
from skyward.model.image import Dockerfile, Image

if TYPE_CHECKING:
    from skyward.builder.registry.pushing import SharedCache
    from skyward.model.ssh import SshHost


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A base image as a build uses it: the reference for FROM, and the digest that stands for its content.

    With what the engine says of it; None while it is to be built first.
    """

    reference: str
    digest: str
    facts: ImageFacts | None = None


def plan_for(
    image: Image, store: EngineImages, *, python: str, platform: str, root: Path | None = None, upgrade: bool = False
) -> Plan:
    """Compile an image: with its files read, its requirements locked, and against the base an engine has or can pull.

    Args:
        image: the description, plugins applied. Without a base of its own it starts from what SKYWARD_BASE names,
            else from the official slim image of the Python version.
        store: the images of the engine.
        python: the client's minor version, such as "3.11".
        platform: of the nodes, such as "linux/amd64".
        root: what the image's relative paths are relative to; None for the working directory.
        upgrade: lock anew, and take the newest versions that are allowed.

    Raises:
        ConfigError: the image asks for another Python version, a file it names is missing or wrong, or its
            requirements contradict each other.
        ImageNotFoundError: the base is neither on the engine nor in its registry.
        ImageError: nothing can be built on the base, or a package or an index cannot be had.
    """
    check_python(image, python)
    wanted = _wanted(image, root or Path.cwd(), python, image.platform or platform)
    request = wanted.request
    file = wanted.lock_file
    if file is not None and upgrade:
        raise not_upgraded(file)
    entry = entry_for(file, request) if file is not None else None
    base = wanted.base(store, entry, file)
    named = base.reference if entry else wanted.named  # the name may be another image's by now
    given = facts_of_base(named, base.facts, store, request.platform) if base.facts else None
    if given:
        check_base(repr(named), given, python)
    if entry:
        lock = replace(entry.lock, sources=request.rules.sources)
    else:
        lock = lock_requirements(replace(request, libc=wanted.libc(store, given)), upgrade=upgrade)
    return wanted.plan(base.reference, base.digest, lock=lock, given=given, code=wanted.code())


def draft_for(image: Image, *, python: str, platform: str, root: Path) -> Plan:
    """The plan of an image to be read and not to be built, made without asking an engine, a registry or an index.

    It starts from the base as that is named, and its requirements are not locked.

    Raises:
        ConfigError: the image asks for another Python version, or a file it names is missing or wrong.
    """
    check_python(image, python)
    wanted = _wanted(image, root, python, image.platform or platform)
    base = wanted.base_build.tag if wanted.base_build else wanted.named
    return wanted.plan(base, "", lock=None, code=wanted.code())


def plan_on_machine(image: Image, *, python: str, platform: str, libc: str) -> Plan:
    """The plan of an image whose packages are installed for a machine's own Python, without a container.

    Its lock and its tag mean something; its Dockerfile does not.

    Args:
        image: the description, plugins applied, without a base.
        python: the client's minor version, such as "3.11", which the machine has as well.
        platform: of the machine, such as "linux/amd64".
        libc: its C library, such as "glibc 2.36".

    Raises:
        ConfigError: the image asks for another Python version, a file it names is missing or wrong, or its
            requirements contradict each other.
        ImageError: a package or an index cannot be had.
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
    """The entry of an image in its lock file: the one that it has if that still fits, else a new one.

    Args:
        image: the description, plugins applied.
        store: the images of the engine.
        python: minor version of the nodes.
        platform: of the nodes.
        root: what the image's relative paths are relative to.
        file: where the lock file is, or will be.
        known: the entries that it has. Their versions are kept where they still fit.
        newer: packages to take in their newest versions that are allowed; empty for all, with the base; None for none.

    Raises:
        The same errors as `plan_for`.
    """
    wanted = _wanted(image, root, python, image.platform or platform)
    request = wanted.request
    asked = asked_for(request, file.parent)
    same = [each for each in known if (each.platform, each.python) == (request.platform, python)]
    last = next((each for each in same if each.asked == asked), None) or next(iter(same), None)
    if last is not None and last.asked == asked and newer is None and (last.is_pulled or not last.base):
        return last
    keeps_base = last is not None and last.is_pulled and newer != () and last.asked.get("base") == asked.get("base")
    base = wanted.base(store, last if keeps_base else None, file)
    given = facts_of_base(base.reference, base.facts, store, request.platform) if base.facts else None
    request = replace(request, libc=wanted.libc(store, given))
    preferred = last.lock.packages if last and newer != () else ()
    left = tuple(package for package in preferred if package.name not in (newer or ()))
    return Entry(
        platform=request.platform,
        python=python,
        asked=asked,
        base="" if wanted.base_build else base.digest,
        is_pulled="@" in base.reference,
        lock=last.lock if last and last.asked == asked and newer is None else lock_anew(request, left),
    )


def check_lock(image: Image, *, python: str, platform: str, root: Path, file: Path) -> None:
    """See that a lock file fits an image. Asks neither engine nor index.

    Raises:
        ConfigError: it does not; the message names what was changed, and the command to run.
    """
    entry_for(file, _wanted(image, root, python, image.platform or platform).request)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What is wanted of an image, its files read. `root` is what its relative paths are relative to."""

    request: Request
    packages: tuple[LocalPackage, ...]
    base_build: BaseBuild | None
    root: Path

    @property
    def named(self) -> str:
        """The base as the image or this machine names it."""
        return str(self.request.image.base or os.environ.get("SKYWARD_BASE") or default_base(self.request.python))

    @property
    def lock_file(self) -> Path | None:
        """The lock file that the image names; None for none."""
        image = self.request.image
        return None if image.lock is None else located(self.root, image.lock)

    def code(self) -> Copied | None:
        """Its local code, where that is to be baked in."""
        return code_files(self.request.image, self.root)

    def plan(
        self, base: str, digest: str, *, lock: Lock | None, given: BaseFacts | None = None, code: Copied | None = None
    ) -> Plan:
        """What it is compiled to, on a base of that digest."""
        return compile(
            self.request.image,
            python=self.request.python,
            platform=self.request.platform,
            base=base,
            base_digest=digest,
            runner_digest=runner_digest(),
            lock=lock,
            packages=package_files(self.packages),
            code=code,
            base_build=self.base_build,
            given=given,
        )

    def base(self, store: EngineImages, entry: Entry | None = None, file: Path | None = None) -> Base:
        """The base: the one of an entry of a lock file, else the one that the engine has under its name."""
        if self.base_build:
            return Base(reference=self.base_build.tag, digest=f"dockerfile:{self.base_build.digest}")
        named = self.named
        if entry is None or file is None or not entry.base:
            return resolve_base(named, store)
        if entry.is_pulled:
            return replace(resolve_base(f"{_repository(named)}@{entry.base}", store), digest=entry.base)
        base = resolve_base(named, store)
        if base.digest != entry.base:
            raise wrong_base(file, named, base.digest, entry)
        return base

    def libc(self, store: EngineImages, given: BaseFacts | None) -> str:
        """The C library of the base; of one that is still to be built that of the image it is built from.

        "" where neither tells.
        """
        made = self.base_build
        if given or not made or not made.parent:
            return given.libc if given else ""

        def find() -> str:
            parent = resolve_base(made.parent, store)
            return facts_of_base(made.parent, parent.facts, store, made.platform).libc if parent.facts else ""

        try:
            return noted_libc(made.digest, find)
        except ImageNotFoundError:  # the builder may have it, or other credentials; if not, it says so
            return ""


def _wanted(image: Image, root: Path, python: str, platform: str) -> _Wanted:
    resolved = resolve_files(image, root, python=python, platform=platform)
    request = Request(
        image=resolved.image,
        python=python,
        platform=platform,
        provided=tuple(each.name for each in resolved.packages),
        rules=resolved.rules,
        projects=tuple((each.name, each.build) for each in resolved.packages if each.build),
    )
    made = base_build(image.base, root, platform) if isinstance(image.base, Dockerfile) else None
    return _Wanted(request=request, packages=resolved.packages, base_build=made, root=root)


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
            ) from None  # its text has it all
        facts = store.inspect(reference)
    if facts is None:
        raise ImageNotFoundError(
            f"The engine pulled {reference!r} but does not have it under that name. Give it a tag."
        )
    pinned, digest = _pinned(reference, facts)
    return Base(reference=pinned, digest=digest, facts=facts)


def _pinned(reference: str, facts: ImageFacts) -> tuple[str, str]:
    """The base by digest if its own registry gave one, and the digest; an image made on this engine has its id only.

    An engine that keeps images in containerd gives every image a digest, which then is also its id. The builder would
    ask a registry for it, and where it has not come from one there is none, so such a base goes by its tag.
    """
    name = _repository(reference)
    for known in facts.repo_digests:
        repository, _, digest = known.partition("@")
        if _full_name(repository) == _full_name(name):
            return (reference if digest == facts.id else f"{name}@{digest}"), digest
    return reference, facts.id


def _repository(reference: str) -> str:
    """A reference without tag and digest."""
    name = reference.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def _full_name(repository: str) -> str:
    """A repository with the registry and the folder that Docker leaves out."""
    first, slash, _ = repository.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return repository.removeprefix("index.").replace(
            "docker.io/", "docker.io/library/", int(repository.count("/") == 1)
        )
    return f"docker.io/{repository}" if slash else f"docker.io/library/{repository}"


def ensure(
    plan: Plan,
    store: EngineImages,
    report: Report,
    *,
    docker_host: str | SshHost | None = None,
    cache: SharedCache | None = None,
) -> ImageFacts:
    """Make the engine have the image of a plan, and return its facts. Another image that has the tag is replaced.

    Args:
        plan: from `plan_for`.
        store: the images of the engine.
        report: receives progress, see `skyward.builder.events`.
        docker_host: address of that engine, as DOCKER_HOST has it, or the machine that has it; None for what the docker
            command takes by itself.
        cache: where a build takes layers of other builders from, and leaves its own.

    Raises:
        BuildError: the build failed.
        ImageError: nothing can be built on the base that a Dockerfile made.
        ImageNotFoundError: the builder cannot get the base.
        EngineError: no docker command here can build.
        ConfigError: a secret has no value here, or this machine's settings for package sources are wrong.
    """
    facts = store.inspect(plan.tag)
    if facts and is_known(plan.tag, facts):
        return facts
    started = perf_counter()
    with _single_flight(plan, report) as other:
        facts = store.inspect(plan.tag)
        if not facts or not is_known(plan.tag, facts):
            write(_builder(plan), json.dumps({"pid": os.getpid(), "tag": plan.tag}))
            return _build(plan, store, report, docker_host, cache)
    if other:
        line = f"{plan.tag} was built by {other}; waited {perf_counter() - started:.1f} s for it"
        report(Event(kind="waited", line=line, by=other))
    return facts


def _build(
    plan: Plan, store: EngineImages, report: Report, docker_host: str | SshHost | None, cache: SharedCache | None
) -> ImageFacts:
    # where nothing is to build, none of it is loaded
    from skyward.builder.docker.build import build, build_base, secret_values

    secrets = secret_values(plan.image.secrets)  # whatever is missing is said before anything is made
    host = docker_host or os.environ.get("DOCKER_HOST")
    started, before = perf_counter(), store.inspect(plan.tag)
    ask = partial(store.inspect, plan.base)  # something that a frozen engine does not answer
    if plan.base_build and store.inspect(plan.base) is None:
        report(note(f"building the base {plan.base} from {plan.base_build.dockerfile}"))
        build_base(plan, report, host, secrets, ask)
    if plan.base_build:
        plan = _settled(plan, plan.base_build, store)
    if told := replaced_python(plan):
        report(note(told))
    report(note(f"building {plan.tag} from {plan.base}"))
    build(plan, report, host, secrets, cache, ask)
    made = store.inspect(plan.tag)
    if made is None:
        raise BuildError(
            f"The build of {plan.tag} ended well, but the engine does not have the image. The docker command "
            f"and skyward may use different engines: docker_host is {docker_host!r}; set DOCKER_HOST for both."
        )
    if before and (before.content or before.id) != (made.content or made.id):
        report(note(f"{plan.tag} was another image on the engine ({before.id[:19]}); the built one takes its place"))
    note_content(plan.tag, made.content, made.id)
    report(note(f"built {plan.tag} in {perf_counter() - started:.1f} s"))
    return made


def _settled(plan: Plan, made: BaseBuild, store: EngineImages) -> Plan:
    """The plan of an image whose base, made from a Dockerfile, is there now."""
    facts = store.inspect(plan.base)
    if facts is None:
        raise BuildError(f"The base {plan.base} was built, but the engine does not have it. Repeat it.")
    given = facts_of_base(plan.base, facts, store, plan.platform)
    check_base(f"from {made.dockerfile}", given, plan.python)
    return settled(plan, given)


@contextmanager
def _single_flight(plan: Plan, report: Report) -> Iterator[str]:
    """Let one process of this user build an image while others wait. Gives that process in words, "" for none."""
    from filelock import FileLock, Timeout

    other, folder = "", cache_folder()
    if folder is None:  # two processes may then build the same, of which the builder makes one
        yield other
        return
    # part of the identity only: lock files stay behind, and so cannot become more than 4096
    lock = FileLock(folder / f"build-{plan.identity[:3]}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report(note(f"{_other(plan)} builds {plan.tag}; waiting for it"))
        lock.acquire()
        other = _other(plan)  # which may be one that has waited, too
    except (OSError, NotImplementedError) as error:  # a full disk, or one that knows no locks
        gone_without(error)
        yield other
        return
    try:
        yield other
    finally:
        lock.release()


def _builder(plan: Plan) -> Path:
    """The file that says which process builds."""
    return cache_path(f"build-{plan.identity[:3]}.json")


def _other(plan: Plan) -> str:
    """The process that builds an image, or built it last, as far as it has said who it is."""
    try:
        found = json.loads(read(_builder(plan)) or "{}")
        return f"another process (pid {int(found['pid'])})" if found["tag"] == plan.tag else "another process"
    except (ValueError, KeyError, TypeError):
        return "another process"
