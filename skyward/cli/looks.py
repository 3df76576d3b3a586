"""Modes of `skyward build` other than building: check, print the Dockerfile, explain changes, eject.

`--eject DIR` writes a Dockerfile and its context, for `docker build` or `podman build` without skyward. `--check-base`
shows the facts of an image that matter for a base, and how skyward would use it as one.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skyward.builder.explain import explain, memory_of, recall
from skyward.builder.store import is_known
from skyward.cli.build import ABSENT, EXISTS, UNKNOWN, BuildTarget, Found, Wanted
from skyward.cli.output import Output
from skyward.errors import ConfigError, EngineError, ImageError
from skyward.image import BaseFacts, Interpreter, Plan
from skyward.model.image_fields import local_minor

if TYPE_CHECKING:
    from skyward.builder.store import EngineImages

_DROPPED = "leaves its entry point out, as that does not run the command that it is given"


def check(wanted: Wanted, target: BuildTarget, output: Output) -> int:
    """Report whether an image exists, without building anything."""
    try:
        with output.listening(wanted.name):
            plan = target.plan(wanted)
        state, reason, image_id = _state(plan, target)
    except (EngineError, ImageError) as error:
        output.check(wanted.name, "", "unknown", str(error))
        return UNKNOWN
    output.check(wanted.name, plan.tag, state, reason)
    if image_id:
        target.found.append(Found(wanted.declared, plan, image_id, is_used=False))
    return {"exists": EXISTS, "absent": ABSENT}.get(state, UNKNOWN)


def _state(plan: Plan, target: BuildTarget) -> tuple[str, str, str]:
    """Return the state of an image, the reason if it is unknown, and its id if the engine has it."""
    reference = target.reference(plan)
    if reference is None:
        facts = target.engine.inspect(plan.tag)
        return ("exists", "", facts.id) if facts and is_known(plan.tag, facts) else ("absent", "", "")
    from skyward.builder.registry import existence
    from skyward.builder.registry.existence import Absent, Exists

    found = existence.check(reference, platform=plan.platform, trust_s=0)
    if isinstance(found, Exists):
        return "exists", found.reference, ""
    return ("absent", "", "") if isinstance(found, Absent) else ("unknown", f"{found.reason} {found.remedy}", "")


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
    """Show what differs from the last build of this file here, and which layers must be rebuilt."""
    with output.listening(wanted.name):
        plan = target.plan(wanted)
    last = recall(wanted.key(plan))
    exists = is_known(plan.tag, target.engine.inspect(plan.tag))
    found = explain(plan, memory_of(plan) if exists else last)  # an existing image has no changes
    output.explanation(wanted.name, plan, last.tag if last else None, found, exists=exists)
    return EXISTS


def eject(wanted: Wanted, target: BuildTarget, output: Output, folder: Path) -> int:
    """Write the files of one image.

    Raises:
        ConfigError: the directory is not empty, or the image starts from a Dockerfile.
    """
    from skyward.builder.docker.build import write_context
    from skyward.builder.files.copied import with_usual_modes

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--eject writes into a new or an empty folder, and {folder} is neither.")
    with output.listening(wanted.name):
        plan = target.plan(wanted)
    words = _build_words(target)
    if plan.base_build:
        raise ConfigError(
            f"{wanted.name} starts from what {plan.base_build.dockerfile} makes, which --eject does not write. Build "
            f"that with `{shlex.join(words).removeprefix('DOCKER_BUILDKIT=1 ')}` first, and name its image as base."
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_context(folder, plan)
    with_usual_modes(folder)
    command = build_command(plan, folder, words)
    file = folder / "Dockerfile"
    file.write_text(f"# Build it here with: {command}\n{file.read_text(encoding='utf-8')}", encoding="utf-8")
    output.ejected(wanted.name, str(folder), command)
    return 0


def _build_words(target: BuildTarget) -> list[str]:
    """Return the first words of a build command: Podman's if it builds on the target's engine, else docker's."""
    from skyward.builder.docker.command import answer, find_command

    podman = os.environ.get("SKYWARD_DOCKER_CLI") or shutil.which("podman")
    if podman is None or not answer(podman, "--version").startswith(("podman ", "buildah ")):
        return ["DOCKER_BUILDKIT=1", "docker", "build"]  # without asking an engine
    try:
        command = find_command(docker_host=target.images.url)
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


def show_base(reference: str, store: EngineImages, platform: str, *, as_json: bool) -> int:
    """Print the properties of an image, pulling it if the engine does not have it.

    Raises:
        ImageNotFoundError: it does not exist.
        ImageError: nothing can be built on it; its properties are printed all the same.
        EngineError: the engine refuses.
    """
    from skyward.builder.base import facts_of_base, why_no_account, why_unfit
    from skyward.builder.plans import resolve_base

    base, python = resolve_base(reference, store), local_minor()
    assert base.facts
    given = facts_of_base(reference, base.facts, store, platform)
    reason = why_unfit(given, python) or why_no_account(given)
    does = [] if reason else _does(given, python)
    if as_json:
        about = {"event": "base", "image": reference, "id": base.facts.id, "platform": platform, **asdict(given)}
        click.echo(json.dumps({**about, "does": does, "fit": not reason}))
    else:
        _print_base(reference, platform, given, does)
    if reason:
        raise ImageError(f"{reference} cannot be a base. {reason}")
    return 0


def _print_base(reference: str, platform: str, given: BaseFacts, does: list[str]) -> None:
    libc = given.libc or "no C library that is known"
    rows = [
        ("image", f"{reference} ({platform})"),
        ("system", ", ".join(filter(None, [given.system or "not named", libc, "apt" if given.apt else "no apt"]))),
        *(("Python", _python(each)) for each in given.pythons),
        *([] if given.pythons else [("Python", "none")]),
        ("user", given.user or "none, which is root"),
        ("entry point", json.dumps(given.entrypoint) if given.entrypoint else "none"),
        ("CUDA", given.cuda or "none"),
        *(("ONBUILD", line) for line in given.onbuild),
        *([("lacks", ", ".join(given.missing))] if given.missing else []),
        *(("skyward", line) for line in does),
    ]
    last = ""
    for name, text in rows:
        click.echo(f"{name if name != last else '':<12} {text}")
        last = name


def _python(found: Interpreter) -> str:
    of = f", of the virtual environment {found.environment}" if found.environment else ""
    return f"{found.version or 'of a version that its files do not tell'}: {found.path}{of}"


def _does(given: BaseFacts, python: str) -> list[str]:
    """Return sentences that say how an image built on this base is made and run."""
    from skyward.builder.packages.lock import why_too_old
    from skyward.model.rights import ACCOUNT

    if given.lacks(python):
        lost = "; packages of its own Python are not seen" if given.pythons else ""
        does = [f"brings Python {python}, this client's version, with uv or apt{lost}"]
    else:
        first = next(each for each in given.pythons if each.version in (python, ""))
        if first.environment == "/opt/venv":
            does = [f"installs packages into {first.environment}"]
        else:
            does = [f"makes /opt/venv of {first.path}, whose packages stay importable"]
    if reason := why_too_old(given.libc):
        does.append(f"refuses to install packages: {reason}")
    does.append(f"runs nodes as {given.user_in_the_end or f'the user {ACCOUNT}, or as yours'}")
    if given.entrypoint:
        does.append("starts nodes through its entry point" if given.runs_commands else _DROPPED)
    if given.healthcheck:
        does.append("turns its health check off, which is for another program")
    return does
