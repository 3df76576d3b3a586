"""Plans to read, not to build: compiled without asking an engine, a registry or a package index."""

from __future__ import annotations

import os
from pathlib import Path

from skyward.builder.bases.dockerfile import base_build
from skyward.builder.files.copied import code_files, package_files
from skyward.builder.files.runner import runner_digest
from skyward.builder.packages.requirements import resolve_files
from skyward.image import Plan, check_python, compile, default_base  # noqa: A004 - the compiler's own name
from skyward.model.image import Dockerfile, Image


def draft_for(image: Image, *, python: str, platform: str, root: Path) -> Plan:
    """Compile an image from the base as it is named, its requirements not locked.

    Raises:
        ConfigError: the image asks for another Python version, or a file it names is missing or wrong.
    """
    check_python(image, python)
    platform = image.platform or platform
    resolved = resolve_files(image, root, python=python, platform=platform)
    image = resolved.image
    made = base_build(image.base, root, platform) if isinstance(image.base, Dockerfile) else None
    named = str(image.base) if image.base else os.environ.get("SKYWARD_BASE") or default_base(python)
    return compile(
        image,
        python=python,
        platform=platform,
        base=made.tag if made else named,
        base_digest="",
        runner_digest=runner_digest(),
        packages=package_files(resolved.packages),
        code=code_files(image, root),
        base_build=made,
    )
