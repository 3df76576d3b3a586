"""The instructions of a Dockerfile, one function for each group of them, in their order in the file.

A RUN is one command, `step.sh NAME ARGUMENT...`, with its inputs as mounts; the scripts are in `scripts/`. Every
instruction conforms to Dockerfile 1.2, so that engines from 20.10 on build it. Settings of one site (CA bundle, index
settings, mirrors) are not part of the text: each step reads an optional secret, whose value BuildKit keeps out of
layers and cache keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from skyward.image.lock import Group, Lock, Tier, tier_of, unlocked_installs
from skyward.image.plan import BaseFacts, Copied, Layer, origin_of, origins_of
from skyward.model.image import Image, local_path, requirement_name
from skyward.model.instance import BAKED_DIR
from skyward.model.rights import ACCOUNT, ACCOUNT_ID, HOME, WORK_DIR

UV = "0.13.8"  # scripts/uv.txt has its hashes; it is requirements/uv/uv.txt in the build context
_NEWLINES = {"\n": "SKYWARD_LF", "\r": "SKYWARD_CR"}  # build arguments, as ENV in a Dockerfile cannot contain them
TIME = 315532800  # the time of all files made by steps; see scripts/step.sh
MOUNT_POINTS_FILE = "mount-points.tar"  # in the build context
SCRIPTS = "steps"  # folder of the build context with the scripts
INSTALL = "/run/steps/step.sh install"

_TMPFS = "--mount=type=tmpfs,target=/run"
_SCRIPTS = f"--mount=type=bind,source={SCRIPTS},target=/run/steps"
_SITE = "--mount=type=secret,id=skyward_site,target=/run/skyward/site.sh"
_BUILD_ENV = "--mount=type=bind,source=build-env.sh,target=/run/skyward/build-env.sh"
_UV = "--mount=type=bind,from=uv,source=/opt/uv,target=/run/uv"
_TIER_NOTES: Mapping[Tier, str] = {
    "cuda": " (CUDA)",
    "framework": " (framework)",
    "large": " (large)",
    "medium": " (medium)",
    "source": " (built here)",
    "light": "",
}
_USER = "your image"
_OWN = "skyward itself"


def files(image: Image) -> Iterator[tuple[str, str]]:
    """Yield the environment file that these steps need in the build context, besides scripts and requirements."""
    if image.build_env:
        yield "build-env.sh", "".join(f"export {name}={_word(value)}\n" for name, value in image.build_env.items())


def base_stage(base: str, origin: str, given: BaseFacts | None, stage: str = "python") -> list[Layer]:
    """Return the first layers; later ones install as root with /bin/sh, whatever user and shell the base names."""
    layers = [_layer(f"FROM {base} AS {stage}", "base", origin, stage)]
    if given and given.user_in_the_end:
        layers.append(_layer("USER 0:0", "the user of what follows", _OWN, stage))
    if given and given.shell:
        layers.append(_layer('SHELL ["/bin/sh", "-c"]', "the shell of what follows", _OWN, stage))
    return layers


def python_venv(python: str, platform: str, given: BaseFacts | None) -> list[Layer]:
    """Return the layers for the wanted Python in /opt/venv, which is installed unless the base has it."""
    brings = needs_uv_first(given, python)
    mounts = [_UV, *_apt_caches(platform)] if brings else []
    words = ["python", python, *(["bring"] if brings else [])]
    return [
        _run(words, *mounts, name=f"Python {python} in /opt/venv", origin=_OWN, stage="python"),
        _layer("ENV PATH=/opt/venv/bin:$PATH VIRTUAL_ENV=/opt/venv", "PATH", _OWN, "python"),
    ]


def uv_stage(image: Image, base: str, given: BaseFacts | None, python: str) -> list[Layer]:
    """Return a temporary stage with uv, which is mounted where it is needed. See `needs_uv_first`."""
    first = needs_uv_first(given, python)
    if not image.pip and not first:
        return []
    origin = "skyward itself, to bring Python" if first else "skyward itself, to install your pip requirements"
    start = base_stage(base, _OWN, given, "uv") if first else [_layer("FROM python AS uv", "uv", _OWN, "uv")]
    mount = "--mount=type=bind,source=requirements/uv,target=/run/requirements"
    install = _run(["uv"], mount, name=f"uv {UV}", origin=origin, stage="uv")
    # Buildah mounts a stage as it is before a cached last step: https://github.com/containers/buildah/issues/4375
    return [*start, install, _layer("LABEL skyward.stage=uv", "the last step of the stage", _OWN, "uv")]


def needs_uv_first(given: BaseFacts | None, python: str) -> bool:
    """Return whether Python itself must be installed, as the base does not have that version."""
    return given is not None and given.lacks(python)


def mount_points() -> list[Layer]:
    """Return a layer of empty files at the builders' mount points.

    ADD preserves the times in the archive. See `skyward.builder.docker.build`, which makes it.
    """
    return [_layer(f"ADD {MOUNT_POINTS_FILE} /", "mount points of builders", _OWN, "python")]


def gives_python(image: Image) -> bool:
    """Return whether the interpreter may come from Debian packages, which are then installed first."""
    return any(name.startswith("python") for name in image.apt)


def apt(image: Image, platform: str, stage: str) -> list[Layer]:
    """Return a layer of Debian packages, without their caches and files that differ from build to build."""
    if not image.apt:
        return []
    name, origin = f"apt {' '.join(image.apt)}", origins_of(image, "apt", tuple(image.apt))
    mounts = (*_env_mounts(image), *_apt_caches(platform))
    return [_run(["apt", *image.apt], *mounts, name=name, origin=origin, stage=stage)]


def _apt_caches(platform: str) -> list[str]:
    cache = f"id=skyward-apt-{platform.replace('/', '-')}"
    return [f"--mount=type=cache,{cache}-{kind},target=/var/{kind}/apt,sharing=locked" for kind in ("cache", "lib")]


def image_stage() -> list[Layer]:
    """Return the start of the stage of the image itself."""
    return [_layer("FROM python AS image", "image", _OWN)]


def requirements(image: Image, platform: str, lock: Lock | None, built: str) -> dict[Tier, list[Layer]]:
    """Return the layers of each tier of the locked packages.

    `built` names the cache of built packages; see `_package_caches`.
    """
    if not image.pip:
        return {}
    if lock is None:
        groups = [(Group(tier, tier), sources) for tier, sources in unlocked_installs(image).items()]
    else:
        groups = [(group, group.installs) for group in lock.groups]
    layers: dict[Tier, list[Layer]] = {}
    for group, sources in groups:
        words = [f"{source.file}={source.index}" if source.is_scoped else source.file for source in sources]
        entries = _group_entries(image, lock, group)
        name = f"pip {_short(_group_words(entries, group))}{_TIER_NOTES[group.tier]}"
        mounts = (
            f"--mount=type=bind,source=requirements/{group.name},target=/run/requirements",
            *_package_caches(platform, built if any(source.package for source in sources) else ""),
        )
        origin = origins_of(image, "pip", entries)
        layer = _run(["install", *_target(lock), *words], *_env_mounts(image), _UV, *mounts, name=name, origin=origin)
        layers.setdefault(group.tier, []).append(layer)
    return layers


def local_packages(
    image: Image, platform: str, packages: tuple[Copied, ...], lock: Lock | None, built: str
) -> list[Layer]:
    """Return a layer of wheels and projects from this machine's files; their dependencies are locked packages."""
    others = tuple(package for package in packages if not package.is_project)
    entries = sorted(package.entry for package in others)
    return [_from_files(image, platform, others, lock, built, f"pip {' '.join(entries)}")] if others else []


def project(image: Image, platform: str, packages: tuple[Copied, ...], lock: Lock | None, built: str) -> list[Layer]:
    """Return the layer of the project of the image, which is separate because its code changes most."""
    own = tuple(package for package in packages if package.is_project)
    return [_from_files(image, platform, own, lock, built, f"project {own[0].target}")] if own else []


def _from_files(
    image: Image, platform: str, packages: tuple[Copied, ...], lock: Lock | None, built: str, name: str
) -> Layer:
    projects = [package.target for package in packages if package.folder == f"local/{package.target}"]
    wheels = [package.target for package in packages if package.target not in projects]
    # builds write beside the sources; the result is discarded
    mounts = [f"--mount=type=bind,source={each.folder},target=/run/{each.folder},readwrite" for each in packages]
    if projects:
        mounts.append("--mount=type=bind,source=requirements/local,target=/run/requirements")
    mounts += _package_caches(platform, built if projects else "")
    origin = origins_of(image, "pip", tuple(sorted(package.entry for package in packages)))
    words = ["local", *_target(lock), *wheels, *projects]
    return _run(words, *_env_mounts(image), _UV, *mounts, name=name, origin=origin)


def runner() -> list[Layer]:
    """Return the layer of the runner, in the client's version, and of its user with writable directories."""
    words = ["runner", ACCOUNT, str(ACCOUNT_ID), HOME, WORK_DIR]
    return [_run(words, "--mount=type=bind,source=runner,target=/run/runner", name="the runner", origin=_OWN)]


def commands(image: Image) -> list[Layer]:
    """Return the user's commands in JSON form, which neither Dockerfile nor shell quoting can alter."""
    layers = []
    mounts = [*_env_mounts(image), *(f"--mount=type=secret,id={name},required=true" for name in image.secrets)]
    for number, command in enumerate(image.run, start=1):
        words = json.dumps(["/bin/sh", f"/run/{SCRIPTS}/step.sh", "run", command], ensure_ascii=False)
        origin = f"{origin_of(image, 'run', command)} (command {number} of {len(image.run)})"
        layers.append(_run(words, *mounts, name=f"run {_short(command)}", origin=origin))
    return layers


def code(image: Image, copied: Copied | None) -> list[Layer]:
    """Return a layer of local code, if the image bakes it in."""
    if copied is None:
        return []
    origin = f"your bake=True, includes={list(image.includes)!r}"
    mount = f"--mount=type=bind,source={copied.folder},target=/run/code"
    return [_run(["code", BAKED_DIR], mount, name="local code", origin=origin)]


def start(given: BaseFacts | None) -> list[Layer]:
    """Return how nodes start: as the base's user, and through the base's entry point if that runs other programs."""
    if given is None:
        return []
    layers = []
    if user := given.user_in_the_end:
        layers.append(_layer(f"USER {user}", "the base's user", "your base"))
    elif given.home:
        layers.append(_layer(f"ENV HOME={HOME}", "the home of the nodes' user: the base's is root's", _OWN))
    if not given.runs_commands:
        layers.append(_layer("ENTRYPOINT []", "no entry point: the base's runs no other program", _OWN))
    if given.healthcheck:
        layers.append(_layer("HEALTHCHECK NONE", "no health check: the base's is for another program", _OWN))
    if given.stop_signal:
        layers.append(_layer("STOPSIGNAL SIGTERM", "the signal that asks nodes to end", _OWN))
    return layers


def env(image: Image, copied: Copied | None) -> list[Layer]:
    """Return the environment of the nodes, and Python's module paths: the runner's first, the base's last."""
    pairs = [f"{name}={quoted(value)}" for name, value in sorted(image.env.items()) if name != "PYTHONPATH"]
    layers = [_layer(f"ARG {name}", "newlines in env", _USER) for name, _ in newlines(image)]
    # the runner must stay importable whatever path the user or the base adds
    own = [quoted(image.env["PYTHONPATH"])[1:-1]] if image.env.get("PYTHONPATH") else []
    paths = ":".join(["/opt/skyward", *own, *([BAKED_DIR] if copied else [])])
    layers.append(_layer(f'ENV PYTHONPATH="{paths}${{PYTHONPATH:+:$PYTHONPATH}}"', "the paths of modules", _OWN))
    if pairs:
        layers.append(_layer("ENV " + " \\\n    ".join(pairs), "env", _USER))
    return layers


def newlines(image: Image) -> tuple[tuple[str, str], ...]:
    """Return the names and values of the build arguments for newlines in the environment of the nodes."""
    values = image.env.values()
    return tuple((name, char) for char, name in _NEWLINES.items() if any(char in value for value in values))


def labels(facts: Mapping[str, str]) -> list[Layer]:
    """Return the labels of the image."""
    return [_layer("LABEL " + " ".join(f"{name}={quoted(text)}" for name, text in facts.items()), "labels", _OWN)]


def quoted(value: str) -> str:
    """Quote a value as a Dockerfile word."""
    text = re.sub(r'([\\"$])', r"\\\1", value)
    for char, name in _NEWLINES.items():
        text = text.replace(char, f"${{{name}}}")
    return f'"{text}"'


def _layer(text: str, name: str, origin: str, stage: str = "image") -> Layer:
    return Layer(stage=stage, step=None, name=name, text=text, origin=origin)


def _run(command: list[str] | str, *mounts: str, name: str, origin: str, stage: str = "image") -> Layer:
    """Return a RUN of one of skyward's scripts with its arguments, or of a command in JSON form."""
    if isinstance(command, list):
        command = f"sh /run/steps/step.sh {' '.join(map(_word, command))}"
    return _layer(" \\\n    ".join((f"RUN {_TMPFS}", _SCRIPTS, _SITE, *mounts, command)), name, origin, stage)


def _env_mounts(image: Image) -> list[str]:
    return [_BUILD_ENV] if image.build_env else []


def _package_caches(platform: str, built: str) -> list[str]:
    """Return uv's caches: one of wheels for all images, and one of built packages, named `built`; see `uv_pip.sh`."""
    name = platform.replace("/", "-")
    caches = [f"--mount=type=cache,id=skyward-uv-{name},target=/run/cache/uv"]
    return [*caches, f"--mount=type=cache,id=skyward-built-{name}-{built},target=/run/cache/built"] if built else caches


def _target(lock: Lock | None) -> list[str]:
    """Return the option that selects wheels for the platform of the lock."""
    return ["--python-platform", lock.target] if lock and lock.target else []


def _group_entries(image: Image, lock: Lock | None, group: Group) -> tuple[str, ...]:
    """Return the requirements behind a layer: those that name a package in it, else all of them."""
    entries = tuple(entry for entry in image.pip if local_path(entry) is None) or tuple(image.pip)
    known = {package.name: each.name for each in lock.groups for package in each.packages} if lock else {}
    names = {entry: requirement_name(entry) for entry in entries}
    direct = tuple(entry for entry, name in names.items() if known.get(name, tier_of(name)) == group.name)
    return direct or entries


def _group_words(entries: tuple[str, ...], group: Group) -> str:
    """Describe a layer by its requirements; large packages and parts by the packages themselves."""
    if group.packages and (group.tier in ("cuda", "framework", "large") or group.name != group.tier):
        return " ".join(package.pin.partition(" @ ")[0] for package in group.packages)
    return " ".join(entries)


def _word(text: str) -> str:
    """Quote a string as a word of the shell. Unlike `shlex.quote`, the same on every version of Python."""
    return text if re.fullmatch(r"[\w./:=@%+,-]+", text, re.ASCII) else "'" + text.replace("'", "'\"'\"'") + "'"


def _short(command: str) -> str:
    line = command.strip().splitlines()[0]
    return line if len(line) <= 60 else f"{line[:57]}..."
