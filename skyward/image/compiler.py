"""`compile`: an image to its plan. The order of layers, the instructions, the identity.

Every instruction stays within Dockerfile 1.2, so that engines from 20.10 on build it. What belongs to one site (CA
bundle, index settings, mirrors) is no part of the text: each step that may use the network reads an optional secret,
whose value BuildKit keeps out of layers and cache keys.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from types import MappingProxyType

from skyward.errors import ConfigError
from skyward.image.origins import origin_of, origins_of
from skyward.image.plan import Layer, Plan
from skyward.image.requirements import requirements_file, unlisted
from skyward.model.image import Image

EPOCH = 1  # raised when the same description has to become a different image
UV = "0.13.8"
NEWLINES = {"\n": "SKYWARD_LF", "\r": "SKYWARD_CR"}  # the Dockerfile has no way to write them in ENV: build arguments
REQUIREMENTS = "requirements/pyproject.toml"

# the site's script may write only below the tmpfs, so nothing of it reaches a layer
_SITE = ("--mount=type=secret,id=skyward_site", "--mount=type=tmpfs,target=/run/skyward")
_ENTER = "[ ! -r /run/secrets/skyward_site ] || . /run/secrets/skyward_site"
_USER = "your image"
_OWN = "skyward itself"


def default_base(python: str) -> str:
    """The official slim image of a Python version."""
    return f"python:{python}-slim"


def compile(  # noqa: A001 - it is what the room does
    image: Image, *, python: str, platform: str, base: str, base_digest: str, runner_digest: str
) -> Plan:
    """The plan of an image.

    Args:
        image: the description, plugins applied.
        python: minor version of the client, such as "3.11"; the image gets the same.
        platform: OCI platform of the nodes, used unless the image names one.
        base: reference for FROM, pinned by digest where a registry knows it.
        base_digest: digest of the base; decides the identity in place of the reference.
        runner_digest: digest of the runner's files, see `skyward.build.runner`.

    Raises:
        ConfigError: the image asks for a Python version other than the client's.
    """
    if image.python not in ("auto", python):
        raise ConfigError(
            f"Image: python={image.python!r}, but this client runs Python {python}. Functions travel as bytecode, "
            f"which differs between minor versions: run the client on {image.python}, or leave python='auto'."
        )
    platform = image.platform or platform
    layers = [
        *_python_stage(base, python),
        *_uv_stage(image),
        *_apt(image, platform),
        *_requirements(image, platform),
        *_runner(),
        *_commands(image),
        *_env(image),
    ]
    files = ((REQUIREMENTS, requirements_file(image, python=python)),) if image.pip else ()
    decisive = [layer.text for layer in layers if not layer.text.startswith("FROM ")]
    key = [
        "skyward.image",
        EPOCH,
        platform,
        python,
        base_digest,
        runner_digest,
        decisive,
        list(files),
        [*image.env.items()],
    ]
    identity = hashlib.sha256(json.dumps(key, separators=(",", ":")).encode()).hexdigest()
    labels = {"skyward.base": base_digest, "skyward.image": identity, "skyward.python": python}
    layers.append(
        _layer("LABEL " + " ".join(f"{name}={_quoted(text)}" for name, text in labels.items()), "labels", _OWN)
    )
    numbered = tuple(_numbered(layers))
    return Plan(
        image=image,
        python=python,
        platform=platform,
        base=base,
        dockerfile=_render(numbered, image),
        layers=numbered,
        files=files,
        build_args=tuple((name, char) for char, name in NEWLINES.items() if any(char in v for v in image.env.values())),
        identity=identity,
        tag=f"skyward:sky-{EPOCH}-{identity[:16]}",
        labels=MappingProxyType(labels),
    )


def _layer(text: str, name: str, origin: str, stage: str = "image") -> Layer:
    return Layer(stage=stage, step=None, name=name, text=text, origin=origin)


def _run(script: str, *mounts: str, name: str, origin: str, stage: str = "image") -> Layer:
    """A RUN of our own: one line per command, each of which must succeed."""
    flags = " \\\n    ".join((*mounts, *_SITE))
    body = " \\\n    ".join(f"{line};" for line in (_ENTER, *script.strip().splitlines())).removesuffix(";")
    return _layer(f"RUN {flags} \\\n    set -e; {body}", name, origin, stage)


def _python_stage(base: str, python: str) -> list[Layer]:
    """The base with the wanted Python in /opt/venv: made there unless the base brings it."""
    check = (
        '/opt/venv/bin/python -c \'import sys; found = "%d.%d" % sys.version_info[:2]; '
        f'sys.exit(found != "{python}" and "skyward: the base has Python " + found + ", wanted is {python}")\''
    )
    make = (
        f'[ -x /opt/venv/bin/python ] || "$(command -v python{python} || command -v python3 || echo python)"'
        " -m venv --system-site-packages /opt/venv"
    )
    return [
        _layer(f"FROM {base} AS python", "base", "your base" if base else _OWN, "python"),
        _layer("ENV PATH=/opt/venv/bin:$PATH VIRTUAL_ENV=/opt/venv", "PATH", _OWN, "python"),
        _layer(f"RUN set -e; {make}; \\\n    {check}", f"Python {python} in /opt/venv", _OWN, "python"),
    ]


def _uv_stage(image: Image) -> list[Layer]:
    """A stage with uv that is thrown away: it is mounted where it is needed."""
    if not image.pip:
        return []
    script = f"python -m pip install --quiet --no-cache-dir --root-user-action=ignore --target /opt/uv uv=={UV}"
    return [
        _layer("FROM python AS uv", "uv", _OWN, "uv"),
        _run(script, name=f"uv {UV}", origin="skyward itself, to install your pip requirements", stage="uv"),
    ]


def _apt(image: Image, platform: str) -> list[Layer]:
    start = _layer("FROM python AS image", "image", _OWN)
    if not image.apt:
        return [start]
    cache = f"id=skyward-apt-{platform.replace('/', '-')}"
    mounts = [f"--mount=type=cache,{cache}-{kind},target=/var/{kind}/apt,sharing=locked" for kind in ("cache", "lib")]
    script = f"""
rm -f /etc/apt/apt.conf.d/docker-clean
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends {" ".join(image.apt)}
"""
    packages = tuple(image.apt)
    return [start, _run(script, *mounts, name=f"apt {' '.join(packages)}", origin=origins_of(image, "apt", packages))]


def _requirements(image: Image, platform: str) -> list[Layer]:
    if not image.pip:
        return []
    cache = f"id=skyward-uv-{platform.replace('/', '-')}"
    mounts = (
        "--mount=type=bind,from=uv,source=/opt/uv,target=/opt/uv",
        "--mount=type=bind,source=requirements,target=/run/requirements",
        f"--mount=type=cache,{cache},target=/var/cache/uv",
    )
    script = f"""
export UV_CACHE_DIR=/var/cache/uv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_PYTHON=/opt/venv/bin/python
wanted="${{SKYWARD_REQUIREMENTS:-/run/{REQUIREMENTS}}}"
extras=""
{_asked_extras(image)}
/opt/uv/bin/uv pip install --no-progress --compile-bytecode $extras -r "$wanted"
"""
    lines = "\n".join(line for line in script.splitlines() if line)
    entries = tuple(image.pip)
    return [_run(lines, *mounts, name=f"pip {' '.join(entries)}", origin=origins_of(image, "pip", entries))]


def _asked_extras(image: Image) -> str:
    """Shell lines that find which of the scoped packages nobody listed are needed after all."""
    names = unlisted(image)
    if not names:
        return ""
    return (
        'needed="$(/opt/uv/bin/uv pip compile --quiet --no-header --no-annotate "$wanted")"\n'
        f"for name in {' '.join(names)}; do"
        ' if echo "$needed" | grep -q "^$name=="; then extras="$extras --extra $name"; fi; done'
    )


def _runner() -> list[Layer]:
    script = "RUN /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/skyward"
    return [
        _layer("COPY runner /opt/skyward", "the runner", _OWN),
        _layer(script, "the runner's bytecode", _OWN),
        _layer("ENV PYTHONPATH=/opt/skyward", "the runner's path", _OWN),
    ]


def _commands(image: Image) -> list[Layer]:
    """The user's commands in JSON form, which neither Dockerfile nor shell quoting can alter."""
    layers = []
    for number, command in enumerate(image.run, start=1):
        words = json.dumps(["/bin/sh", "-ec", f"{_ENTER}\n{command}"], ensure_ascii=False)
        origin = f"{origin_of(image, 'run', command)} (command {number} of {len(image.run)})"
        layers.append(_layer(f"RUN {' '.join(_SITE)} {words}", f"run {_short(command)}", origin))
    return layers


def _env(image: Image) -> list[Layer]:
    if not image.env:
        return []
    needed = [name for char, name in NEWLINES.items() if any(char in value for value in image.env.values())]
    args = [_layer(f"ARG {name}", "newlines in env", _USER) for name in needed]
    # the runner must stay importable whatever path the user adds
    paths = {"PYTHONPATH": f"/opt/skyward:{image.env['PYTHONPATH']}"} if "PYTHONPATH" in image.env else {}
    pairs = [f"{name}={_quoted(paths.get(name, value))}" for name, value in image.env.items()]
    return [*args, _layer("ENV " + " \\\n    ".join(pairs), "env", _USER)]


def _quoted(value: str) -> str:
    """A value as a Dockerfile word."""
    text = re.sub(r'([\\"$])', r"\\\1", value)
    for char, name in NEWLINES.items():
        text = text.replace(char, f"${{{name}}}")
    return f'"{text}"'


def _short(command: str) -> str:
    line = command.strip().splitlines()[0]
    return line if len(line) <= 60 else f"{line[:57]}..."


def _numbered(layers: list[Layer]) -> list[Layer]:
    """Number the steps of each stage as BuildKit does: what runs or copies counts, and the base where it is pulled."""
    counts: dict[str, int] = {}
    numbered = []
    for layer in layers:
        kind = layer.text.split(maxsplit=2)
        if kind[0] in ("RUN", "COPY") or (kind[0] == "FROM" and layer.stage == "python"):
            counts[layer.stage] = counts.get(layer.stage, 0) + 1
            layer = replace(layer, step=counts[layer.stage])
        numbered.append(layer)
    return numbered


def _render(layers: tuple[Layer, ...], image: Image) -> str:
    """The Dockerfile, with what each generated step is for in a comment."""
    lines = ["# Compiled by skyward from a description of the image; change that, not this file."]
    for layer in layers:
        if layer.text.startswith("FROM "):
            lines.append("")
        if layer.name.startswith("pip "):
            lines += [f"# {entry}" for entry in image.pip]
            lines += [f"# {', '.join(index.packages)} from {index.url} only" for index in image.pip_indexes]
        lines.append(layer.text)
    return "\n".join(lines) + "\n"
