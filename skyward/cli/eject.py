"""`skyward build --eject DIR`: an image as a Dockerfile and its context, which `docker build` alone builds."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from skyward.builder.docker.build import write_context
from skyward.builder.files.copied import with_usual_modes
from skyward.errors import ConfigError
from skyward.image import Plan

if TYPE_CHECKING:
    from skyward.cli.build import BuildTarget, Wanted
    from skyward.cli.output import Output


def eject(wanted: Wanted, target: BuildTarget, output: Output, folder: Path) -> int:
    """Write the files of one image.

    Raises:
        ConfigError: the folder has files already, or the image starts from a Dockerfile.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--eject writes into a new or an empty folder, and {folder} is neither.")
    with output.listening(wanted.name):
        plan = target.plan(wanted)
    if plan.base_build:
        raise ConfigError(
            f"{wanted.name} starts from what {plan.base_build.dockerfile} makes, which --eject does not write. Build "
            "that with `docker build` first, and name its image as base."
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_context(folder, plan)
    with_usual_modes(folder)
    command = build_command(plan, folder)
    file = folder / "Dockerfile"
    file.write_text(f"# Build it here with: {command}\n{file.read_text(encoding='utf-8')}", encoding="utf-8")
    output.ejected(wanted.name, str(folder), command)
    return 0


def build_command(plan: Plan, folder: Path) -> str:
    """The command that builds what was written, for bash: it can write the newlines that values of `env` have.

    Secrets are read from files of their names.
    """
    words = ["DOCKER_BUILDKIT=1", "docker", "build", "--platform", plan.platform]
    words += [word for name in plan.image.secrets for word in ("--secret", f"id={name},type=file,src={name}")]
    arguments = [f"--build-arg {name}=$'{char.encode('unicode_escape').decode()}'" for name, char in plan.build_args]
    name = folder.resolve().name.lower() or "image"
    return " ".join([shlex.join(words), *arguments, shlex.join(["--tag", name, "."])])
