"""`compile`: from an image to its plan: the order of its layers, its text, its identity.

The identity is the hash of everything that determines an image's content, in one canonical form. It excludes names of
bases, mirrors of indexes, values of secrets, labels, origins, and paths and times of this machine. Texts are used
unchanged: normalising their Unicode would assign two contents the same name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from skyward.errors import ConfigError
from skyward.image import steps
from skyward.image.lock import BELOW_APT, TIERS, Lock, tier_files
from skyward.image.plan import BaseFacts, Copied, Layer, Plan, origin_of
from skyward.model.image import Image

EPOCH = 6  # raised when the same description has to result in a different image


def default_base(python: str) -> str:
    """Return the official slim image of a Python version."""
    return f"python:{python}-slim"


def check_python(image: Image, python: str) -> None:
    """Check that the image uses the client's Python.

    Raises:
        ConfigError: it requires another version.
    """
    if image.python not in ("auto", python):
        raise ConfigError(
            f"Image: python={image.python!r}, but this client runs Python {python}. Functions travel as bytecode, "
            f"which differs between minor versions: run the client on {image.python}, or leave python='auto'."
        )


def compile(  # noqa: A001 - it is what the package does
    image: Image,
    *,
    python: str,
    platform: str,
    base: str,
    base_digest: str,
    runner_digest: str,
    lock: Lock | None = None,
    packages: tuple[Copied, ...] = (),
    code: Copied | None = None,
    given: BaseFacts | None = None,
) -> Plan:
    """Compile the plan of an image.

    Args:
        image: the description, plugins applied, with all its requirements in `pip`.
        python: minor version of the client, such as "3.11"; the image gets the same.
        platform: OCI platform of the nodes, used unless the image names one.
        base: reference for FROM, pinned by digest if a registry knows it.
        base_digest: digest of the base; replaces the reference in the identity.
        runner_digest: digest of the runner's files; see `skyward.builder.files.copied`.
        lock: the locked requirements. With None, text and layers are those of a lock of the packages that the image
            lists, with sizes estimated from names alone; such a plan can be read but not built.
        packages: local wheels and projects.
        code: local code to bake in; None to send it.
        given: facts about the base; None if not yet known: such a plan has the image's name, but must not be built.

    Raises:
        ConfigError: the image requires a Python version other than the client's.
    """
    check_python(image, python)
    platform = image.platform or platform
    # builds are cached for what may affect them
    built = digest_of([steps.UV, base_digest, python, image.apt, dict(image.build_env)])[:16]
    project = steps.project(image, platform, packages, lock, built)
    base_origin = origin_of(image, "base", str(image.base)) if image.base else "skyward itself, or SKYWARD_BASE"
    uv = steps.uv_stage(image, base, given, python)
    first = steps.needs_uv_first(given, python)
    apt_first = steps.gives_python(image)
    packaged = steps.requirements(image, platform, lock, built)
    layers = [  # those that change rarely come first
        *(uv if first else ()),
        *steps.base_stage(base, base_origin, given),
        *steps.mount_points(),
        *(steps.apt(image, platform, "python") if apt_first else ()),
        *steps.python_venv(python, platform, given),
        *(() if first else uv),
        *steps.image_stage(),
        *(layer for tier in BELOW_APT for layer in packaged.get(tier, ())),
        *(() if apt_first else steps.apt(image, platform, "image")),
        *(layer for tier in TIERS if tier not in BELOW_APT for layer in packaged.get(tier, ())),
        *steps.local_packages(image, platform, packages, lock, built),
        *(project if image.run else ()),  # before commands, which run when everything is installed
        *steps.commands(image),
        *steps.runner(),
        *(() if image.run else project),
        *steps.code(image, code),
        *steps.env(image, code),
        *steps.start(given),
    ]
    files = (*steps.files(image), *(tier_files(lock) if lock else ()))
    # the split of the lock into layers is not one of them
    content: dict[str, Any] = {
        "epoch": EPOCH,
        "platform": platform,
        "python": python,
        "base": base_digest,
        "runner": runner_digest,
        "apt": image.apt,
        "pip": [package.line for package in lock.packages] if lock else image.pip,
        "built with": _built_with(lock),
        "uv": steps.UV if image.pip else None,
        "pip_indexes": [[index.url, index.packages] for index in image.pip_indexes],
        "local packages": [[package.target, package.digest] for package in packages],
        "build_env": dict(image.build_env),
        "run": image.run,
        "secrets": image.secrets if image.run else (),
        "code": code.digest if code else None,
        "env": dict(image.env),
    }
    inputs = {name: canonical(value) for name, value in content.items() if value not in (None, (), [], {})}
    identity = identity_of(inputs)
    labels = {"skyward.base": base_digest, "skyward.image": identity, "skyward.python": python}
    numbered = tuple(_numbered([*layers, *steps.labels(labels)], given))
    return Plan(
        image=image,
        python=python,
        platform=platform,
        base=base,
        dockerfile=_render(numbered, image),
        layers=numbered,
        files=files,
        copied=(*packages, *((code,) if code else ())),
        build_args=steps.newlines(image),
        lock=lock,
        given=given,
        inputs=tuple(sorted(inputs.items())),
        identity=identity,
        tag=f"skyward:sky-{EPOCH}-{identity[:16]}",
        labels=MappingProxyType(labels),
    )


def _built_with(lock: Lock | None) -> list[list[Any]]:
    """Return the build requirements of each package that is built; packages without any are left out."""
    given = [(package.name, package.build) for package in lock.packages] if lock else []
    given += lock.projects if lock else ()
    return [[name, [each.line for each in build]] for name, build in sorted(given) if build]


def _numbered(layers: list[Layer], given: BaseFacts | None) -> list[Layer]:
    """Number the steps of each stage as BuildKit does: steps that run or copy count, and the base if it is pulled."""
    counts: dict[str, int] = {}
    numbered = []
    for layer in layers:
        kind = layer.text.split(maxsplit=2)
        if kind[0] in ("RUN", "COPY", "ADD") or (kind[0] == "FROM" and kind[1] != "python"):
            counts[layer.stage] = counts.get(layer.stage, 0) + 1
            layer = replace(layer, step=counts[layer.stage])
        if kind[0] == "FROM" and given and kind[1] != "python":
            added = [line.split()[0].upper() for line in given.onbuild]
            counts[layer.stage] += sum(word in ("RUN", "COPY", "ADD") for word in added)
        numbered.append(layer)
    return numbered


def _render(layers: tuple[Layer, ...], image: Image) -> str:
    """Return the Dockerfile, with the image's requirements in a comment before they are installed."""
    lines = [
        "# Compiled by skyward from a description of the image; change that, not this file.",
        "# A step is a script of steps/, in the environment that steps/step.sh gives to it.",
    ]
    asked = [f"# {entry}" for entry in image.pip]
    asked += [f"# {', '.join(index.packages)} from {index.url} only" for index in image.pip_indexes]
    for layer in layers:
        if layer.text.startswith("FROM "):
            lines.append("")
        if layer.stage == "image" and steps.INSTALL in layer.text:
            lines, asked = [*lines, *asked], []
        lines.append(layer.text)
    return "\n".join(lines) + "\n"


def canonical(value: Any) -> str:
    """Return JSON with sorted keys and no spaces, so that equal values are equal texts on every machine and Python."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def identity_of(inputs: Mapping[str, str]) -> str:
    """Return the SHA-256 (hex) of named inputs in canonical form."""
    return digest_of(["skyward.image", [[name, text] for name, text in sorted(inputs.items())]])


def digest_of(value: Any) -> str:
    """Return the SHA-256 (hex) of a value's canonical form."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()
