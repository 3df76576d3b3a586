"""Modes of `skyward build` other than building: check, print the Dockerfile, explain changes, eject.

`--eject DIR` writes a Dockerfile and its context, for `docker build` or `podman build` without skyward.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from skyward.builder.explain import explain, memories, memory_of
from skyward.builder.store import is_known
from skyward.cli.build import ABSENT, EXISTS, UNKNOWN, BuildTarget, Wanted
from skyward.cli.output import Output
from skyward.cli.sources import split
from skyward.errors import ConfigError, EngineError, ImageError
from skyward.image import Plan
from skyward.model.image import Dockerfile
from skyward.model.image_fields import local_minor


def check(wanted: Wanted, target: BuildTarget, output: Output) -> int:
    """Report whether an image exists, without building anything."""
    try:
        with output.listening(wanted.name) as target.engine.report:
            plan = target.plan(wanted)
        state, reason = _state(plan, target)
    except (EngineError, ImageError) as error:
        output.check(wanted.name, "", "unknown", str(error))
        return UNKNOWN
    output.check(wanted.name, plan.tag, state, reason)
    return {"exists": EXISTS, "absent": ABSENT}.get(state, UNKNOWN)


def _state(plan: Plan, target: BuildTarget) -> tuple[str, str]:
    """Return the state of an image, and the reason if it is unknown."""
    reference = target.reference(plan)
    if reference is None:
        return ("exists" if is_known(plan.tag, target.engine.inspect(plan.tag)) else "absent"), ""
    from skyward.builder.registry.pushing import digest_of
    from skyward.builder.registry.reference import parse_reference

    digest = digest_of(reference, target.engine.images)
    return ("exists", f"{parse_reference(reference).name}@{digest}") if digest else ("absent", "")


def show_dockerfile(wanted: Wanted, target: BuildTarget, output: Output) -> int:
    """Show the Dockerfile, each instruction with its origin, without asking engine, index or registry."""
    from skyward.builder.plans import draft_for

    plan = draft_for(
        target.image_for(wanted), python=local_minor(), platform=target.platform_for(wanted), root=wanted.declared.root
    )
    output.dockerfile(wanted.name, _annotated(plan, wanted.name))
    return EXISTS


def _annotated(plan: Plan, name: str) -> str:
    lines = [f"# {name} for {plan.platform}: each instruction after who asked for it"]
    for layer in plan.layers:
        if layer.text.startswith("LABEL "):  # labels hold the identity, which depends on base and lock
            continue
        about = " ".join(f"{layer.name}: asked for by {layer.origin}".split())
        lines += ["", f"# {about}", layer.text]
    return "\n".join(lines) + "\n"


def show_changes(wanted: Wanted, target: BuildTarget, output: Output) -> int:
    """Show what differs from the last build here, and which layers must be rebuilt."""
    with output.listening(wanted.name) as target.engine.report:
        plan = target.plan(wanted)
    exists = is_known(plan.tag, target.engine.inspect(plan.tag))
    known = [memory_of(plan)] if exists else memories()  # an existing image has no changes
    found = explain(plan, known, str(Path(split(wanted.name)[0]).absolute()))
    output.explanation(wanted.name, plan, found, exists=exists)
    return EXISTS


def eject(wanted: Wanted, target: BuildTarget, output: Output, folder: Path) -> int:
    """Write the files of one image.

    Raises:
        ConfigError: the directory is not empty, or the image starts from a Dockerfile.
    """
    from skyward.builder.docker.build import write_context

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--eject writes into a new or an empty folder, and {folder} is neither.")
    words = _build_words()
    if isinstance(base := target.image_for(wanted).base, Dockerfile):
        raise ConfigError(
            f"{wanted.name} starts from what {base} makes, which --eject does not write. Build that with "
            f"`{shlex.join(words).removeprefix('DOCKER_BUILDKIT=1 ')}` first, and name its image as base."
        )
    with output.listening(wanted.name) as target.engine.report:
        plan = target.plan(wanted)
    folder.mkdir(parents=True, exist_ok=True)
    write_context(folder, plan)
    command = build_command(plan, folder, words)
    file = folder / "Dockerfile"
    file.write_text(f"# Build it here with: {command}\n{file.read_text(encoding='utf-8')}", encoding="utf-8")
    output.ejected(wanted.name, str(folder), command)
    return 0


def _build_words() -> list[str]:
    """Return the first words of a build command: Podman's if it would build here, else docker's."""
    from skyward.builder.docker.command import find_command

    try:
        command = find_command()
    except EngineError:  # nothing on this machine can build; another one may
        command = None
    if command is None or not command.is_podman:
        return ["DOCKER_BUILDKIT=1", "docker", "build"]
    return [Path(command.words[0]).name, *command.words[1:]]


def build_command(plan: Plan, folder: Path, begin: Sequence[str]) -> str:
    """Return the command that builds the written files, for bash: its quoting can express newlines in `env`.

    Secrets are read from files named after them.
    """
    words = [*begin, "--platform", plan.platform]
    words += [word for name in plan.image.secrets for word in ("--secret", f"id={name},type=file,src={name}")]
    arguments = [f"--build-arg {name}=$'{char.encode('unicode_escape').decode()}'" for name, char in plan.build_args]
    name = folder.resolve().name.lower() or "image"
    return " ".join([shlex.join(words), *arguments, shlex.join(["--tag", name, "."])])
