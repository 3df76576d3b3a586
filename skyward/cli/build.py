"""`skyward build`: compiles, builds and pushes images before any pool needs them; or inspects them without building.

Code that only finds an image loads nothing that builds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import click

from skyward.builder.events import Event, Report, note
from skyward.builder.explain import remember
from skyward.builder.plans import ensure, plan_for
from skyward.builder.store import EngineImages, is_known
from skyward.cli.output import Output, Result
from skyward.cli.sources import ProgramCommand, declared_in, split
from skyward.engine import EngineAddress, Images, find_engine
from skyward.errors import ConfigError, EngineError, EngineMissingError, ProviderError
from skyward.image import Plan
from skyward.model.image import Image
from skyward.model.image_fields import local_minor, platform_of

if TYPE_CHECKING:
    from skyward.builder.registry.pushing import SharedCache
    from skyward.builder.sources.declared import Declared
    from skyward.model.ssh import SshHost


EXISTS, ABSENT, UNKNOWN = 0, 1, 3


@dataclass(frozen=True, slots=True)
class Wanted:
    """A requested image.

    Attributes:
        name: for people, such as "train.py:IMAGE".
        declared: its declaration.
    """

    name: str
    declared: Declared


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTarget:
    """How to build: on which engine, for which platform, where to push and how, whether to look for newer packages."""

    engine: EngineImages
    is_here: bool
    platform: str | None
    push: str | None
    zstd: bool
    upgrade: bool

    def platform_for(self, wanted: Wanted) -> str:
        """Return the platform that was requested or declared, else that of the engine's machine."""
        architecture = wanted.declared.architecture
        if self.platform is None and architecture is None and not self.is_here:
            return self.engine.images.platform()
        return self.platform or platform_of(architecture)

    def image_for(self, wanted: Wanted) -> Image:
        """Return the image, including what its plugins add."""
        declared = wanted.declared
        if self.platform:
            declared = replace(declared, image=replace(declared.image, platform=self.platform))
        if not declared.plugins and not declared.images:
            return declared.image
        from skyward.plugins.registry import declared_image  # takes longer to load than all of click

        return declared_image(declared, platform=self.platform_for(wanted), python=local_minor())

    def plan(self, wanted: Wanted) -> Plan:
        """Compile against the base on the engine and the locked requirements."""
        return plan_for(
            self.image_for(wanted),
            self.engine,
            python=local_minor(),
            platform=self.platform_for(wanted),
            root=wanted.declared.root,
            upgrade=self.upgrade,
        )

    def reference(self, plan: Plan) -> str | None:
        """Return the image's name in the registry; None if it is not to be pushed."""
        if not self.push:
            return None
        from skyward.builder.registry.reference import with_tag

        return with_tag(self.push, plan.tag.rpartition(":")[2])


Act = Callable[[Wanted, BuildTarget, Output], int]


@click.command(cls=ProgramCommand)
@click.argument("sources", nargs=-1, required=True, metavar="FILE...")
@click.option("--push", metavar="REPOSITORY", help="Push the image there, such as registry.example.com/team/skyward.")
@click.option(
    "--zstd", is_flag=True, help="Compress what is pushed with zstd: quicker to unpack, for Docker 23 or newer."
)
@click.option("--platform", metavar="PLATFORM", help="Of the nodes, such as linux/arm64. [default: the engine's]")
@click.option(
    "--on",
    metavar="ADDRESS",
    help="Build with the Docker of another machine: ssh://user@host[?key=FILE&known_hosts=FILE].",
)
@click.option("--print", "mode", flag_value="print", help="Show the Dockerfile and who asked for what. Builds nothing.")
@click.option("--explain", "mode", flag_value="explain", help="Show what changed since the last build. Builds nothing.")
@click.option(
    "--check", "mode", flag_value="check", help="Exit with 0 if the images exist, 1 if not, 3 if that is unknown."
)
@click.option("--eject", metavar="DIR", help="Write a Dockerfile and its context that build without skyward.")
@click.option("--group", "groups", multiple=True, metavar="NAME", help="A dependency group of a project, to add.")
@click.option("--extra", "extras", multiple=True, metavar="NAME", help="An extra of a project, to add.")
@click.option("--package", metavar="NAME", help="A member of a project's workspace, in place of the project.")
@click.option("--upgrade", is_flag=True, help="Look for newer packages and a newer base, within what is asked for.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, one object per line.")
def command(
    sources: tuple[str, ...],
    arguments: tuple[str, ...] | None,
    push: str | None,
    zstd: bool,
    platform: str | None,
    on: str | None,
    mode: str | None,
    eject: str | None,
    groups: tuple[str, ...],
    extras: tuple[str, ...],
    package: str | None,
    upgrade: bool,
    as_json: bool,
) -> int:
    """Build images before a pool needs them.

    A FILE is an image in TOML, a directory with a Python project, or a Python program or notebook. A program's own
    code runs, as `python FILE ARGUMENTS` would, until it opens a pool, whose image is built; the pool is not created.
    A program that binds images, or functions with @sky.pool, at its top level is imported instead, and all of these are
    built; FILE:NAME builds one of them. With -- it is run in any case.
    """
    if zstd and not push:
        raise ConfigError("--zstd compresses what is pushed to a registry; it requires --push.")
    choice = {"groups": groups, "extras": extras, "package": package}
    if any(choice.values()) and not any(Path(source).is_dir() for source in sources):
        raise ConfigError("--group, --extra and --package choose what of a project is installed; name its directory.")
    output = Output(as_json=as_json)
    with output.errors(), ExitStack() as stack:
        try:
            place, builder = stack.enter_context(_engine_on(on)) if on else (find_engine(), None)
        except EngineError as error:
            if mode != "check":
                raise
            for source in sources:
                output.check(source, "", "unknown", str(error))
            return UNKNOWN
        images = stack.enter_context(closing(Images(place)))
        target = BuildTarget(
            engine=EngineImages(images, builder=builder),
            is_here=not on,
            platform=platform,
            push=push,
            zstd=zstd,
            upgrade=upgrade,
        )
        wanted = [
            Wanted(source if declared.where == source else f"{split(source)[0]}:{declared.name}", declared)
            for source in sources
            for declared in declared_in(source, arguments, output, choice)
        ]
        act = _acting(mode, eject, wanted)
        return max([act(each, target, output) for each in wanted], default=EXISTS)


def _acting(mode: str | None, folder: str | None, wanted: list[Wanted]) -> Act:
    """Return the action for each image."""
    if mode is None and not folder:
        return _build
    from skyward.cli import looks  # not needed for builds

    if not folder:
        return {"print": looks.show_dockerfile, "explain": looks.show_changes, "check": looks.check}[str(mode)]
    if len(wanted) > 1:
        names = ", ".join(each.name for each in wanted)
        raise ConfigError(f"--eject writes one image, and {len(wanted)} are declared: {names}.")
    return partial(looks.eject, folder=Path(folder))


@contextmanager
def _engine_on(address: str) -> Iterator[tuple[EngineAddress, SshHost]]:
    """Yield the engine of a machine, through an SSH connection, and the machine, whose docker command builds.

    Raises:
        EngineMissingError: the machine cannot be reached, or has no engine that this user may use.
    """
    from skyward.nodes.run_directory import private_directory
    from skyward.nodes.ssh_host import Machine
    from skyward.providers.at import ssh_at
    from skyward.ssh.preflight import check_host

    (host,) = ssh_at(address).hosts
    with ExitStack() as stack:
        try:
            machine = Machine(host, "none", stack.enter_context(private_directory()) / "m", 60)
            stack.callback(machine.connection.kill)  # its watchdog has changed nothing, and exits
            findings = [each for each in check_host(machine.name, machine.open(), 0, None) if each.what == "engine"]
            place, builder = machine.engine_address, machine.connection.through
        except ProviderError as error:
            raise EngineMissingError(f"The Docker engine on {host.url} cannot be reached. {error}") from error
        if findings:
            raise EngineMissingError(f"The Docker engine on {host.url} cannot be used. {findings[0].text}")
        yield place, builder


def _build(wanted: Wanted, target: BuildTarget, output: Output) -> int:
    """Build an image that does not exist anywhere, and push it if it is not in the registry."""
    with output.listening(wanted.name) as report:
        target.engine.report = report
        plan = target.plan(wanted)
        result = Result.of(plan)
        reference = target.reference(plan)
        if reference is None:
            _on_engine(plan, target, result, report, None)
        else:
            _to_registry(plan, target, result, report, reference)
    remember(plan, str(Path(wanted.name).absolute()))
    output.result(wanted.name, result)
    return EXISTS


def _to_registry(plan: Plan, target: BuildTarget, result: Result, report: Report, reference: str) -> None:
    """Build and push an image unless the registry has it; layers that others have built and pushed are reused."""
    from skyward.builder.registry.pushing import find, push, push_zstd, shared_cache

    images = target.engine.images
    result.reference = find(plan.tag, reference, images, report)
    if result.reference:
        return
    cache = shared_cache(reference, plan.platform, images)
    _on_engine(plan, target, result, report, cache)
    if target.zstd:
        result.reference = push_zstd(plan.tag, reference, report=report, docker_host=images.address.socket_url)
    else:
        result.reference = push(plan.tag, reference, engine=images, report=report)
    if result.built:
        cache.leave(plan.tag, images, report)
    report(note(f"pushed {result.reference}"))


def _on_engine(plan: Plan, target: BuildTarget, result: Result, report: Report, cache: SharedCache | None) -> None:
    """Ensure that the engine has the image; a single request if it has."""
    facts = target.engine.inspect(plan.tag)
    if facts is None or not is_known(plan.tag, facts):

        def follow(event: Event) -> None:
            result.follow(event)
            report(event)

        started = perf_counter()
        facts = ensure(plan, target.engine, follow, cache=cache)
        result.built, result.seconds = True, perf_counter() - started
    result.id, result.size = facts.id, facts.size
