"""The instructions of a Dockerfile, one function for each group of them, in the order in which they stand there.

Every instruction stays within Dockerfile 1.2, so that engines from 20.10 on build it. What belongs to one site (CA
bundle, index settings, mirrors) is no part of the text: each step that may use the network reads an optional secret,
whose value BuildKit keeps out of layers and cache keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from skyward.image.base import BaseFacts
from skyward.image.lock import Group, Install, Lock, Tier, build_file, index_id, tier_of, unlocked_installs
from skyward.image.mount_points import MOUNT_POINTS_FILE
from skyward.image.origins import origin_of, origins_of
from skyward.image.plan import Copied, Layer
from skyward.image.python import APT_LEFTOVERS, PYTHON_FILE, UV_SCRIPT, UV_SCRIPT_FILE, VENV, VENV_FILE, python_script
from skyward.model.image import Image, local_path, requirement_name
from skyward.model.rights import ACCOUNT, ACCOUNT_ID, HOME, WORK_DIR

UV = "0.13.8"
UV_FILE = "uv.txt"
# The wheels that PyPI has of this version: glibc and musl on x86-64, both on arm64, newer glibc there, riscv64.
UV_REQUIREMENT = f"uv=={UV}" + "".join(
    f" --hash=sha256:{digest}"
    for digest in (
        "e18a57b8b352eb7c8feb317b9f6f533c8f0ad9673fd6cf34bbe3cf1a9f6a8984",
        "29451c60f5e8b07403e0a175d5229efc36b0289b34143ff4aaa499a5dd52553a",
        "0b3e8b1a4f5e405e31e2ff33de8af4744831e9f7338539671efbd8c3c94e791d",
        "5337c30bb893b4f9ce0ceb921ba2da0d13f649da644f40ad3bef84083bef0203",
        "bfcaada3989c7716ad4b58673cd1413fad4fdc6b2e446f9553db0ef18da20850",
        "b26fe533dc6153787e40443b7d9428ed41349127bff36a954ec82c48be01ded9",
    )
)
NEWLINES = {"\n": "SKYWARD_LF", "\r": "SKYWARD_CR"}  # the Dockerfile has no way to write them in ENV: build arguments
CODE = "/opt/code"

TIME = 315532800  # the time of whatever a step makes (1980, where the times in zip files begin)

STEP_FILE = "step.sh"
# Begins every step, and defines what ends it. Two builds make the same bytes: no time of day in Python's bytecode, no
# random order, and one time on all that is newer than a mark; the clocks of files tick every few milliseconds. Python
# does not compare the bytecode of packages with their source: where a command changes a source, it is removed.
STEP = f"""\
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
: > /run/skyward/begun
sleep 0.02
export SOURCE_DATE_EPOCH={TIME} PYTHONHASHSEED=0
for settings in site.sh build-env.sh; do
    [ ! -r "/run/skyward/$settings" ] || . "/run/skyward/$settings"
done
end_step() {{
    find / -xdev \\( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path '/etc/host*' \\
        -o -path /etc/resolv.conf \\) -prune -o -newer /run/skyward/begun -exec touch -h -d @{TIME} {{}} +
}}
drop_stale_bytecode() {{
    find / -xdev \\( -path /proc -o -path /sys -o -path /dev -o -path /run \\) -prune \\
        -o -name '*.py' -cnewer /run/skyward/begun -print | while IFS= read -r source; do
        name=${{source##*/}}
        for compiled in "${{source%/*}}/__pycache__/${{name%.py}}".*.pyc; do
            [ "$compiled" -nt /run/skyward/begun ] || rm -f "$compiled"
        done
    done
}}
"""

# Everything a step is given is mounted below a tmpfs, so that neither it nor its mount points come into the layer.
_GIVEN = "/run/skyward"
_SITE = (
    "--mount=type=tmpfs,target=/run",
    f"--mount=type=bind,source={STEP_FILE},target={_GIVEN}/{STEP_FILE}",
    f"--mount=type=secret,id=skyward_site,target={_GIVEN}/site.sh",
)
_BUILD_ENV = f"--mount=type=bind,source=build-env.sh,target={_GIVEN}/build-env.sh"
_BEGIN, _END = f". {_GIVEN}/{STEP_FILE}", "end_step"
_TIER_NOTES: Mapping[Tier, str] = {
    "cuda": " (CUDA)",
    "framework": " (framework)",
    "large": " (large)",
    "medium": " (medium)",
    "source": " (built here)",
    "light": "",
}
# uv notes in a package when the files that it came from last changed, which no setting prevents; only uv reads it
_FORGET_TIMES = (
    "find /opt/venv -name uv_cache.json -newer /run/skyward/begun -exec "
    'sh -c \'rm "$1"; sed -i /uv_cache.json/d "${1%/*}/RECORD"\' - {} \\;'
)
_USER = "your image"
_OWN = "skyward itself"


def files(image: Image, python: str, given: BaseFacts | None) -> Iterator[tuple[str, str]]:
    """The files that the steps below need in the build context."""
    if image.build_env:
        yield "build-env.sh", build_env_file(image)
    brings = needs_uv_first(given, python)
    yield from ((STEP_FILE, STEP), (PYTHON_FILE, python_script(python, brings=brings)), (VENV_FILE, VENV))
    if image.pip or brings:
        yield from ((UV_SCRIPT_FILE, UV_SCRIPT), (UV_FILE, f"{UV_REQUIREMENT}\n"))


def base_stage(base: str, origin: str, given: BaseFacts | None, stage: str = "python") -> list[Layer]:
    """Where everything starts from; what follows installs as root with /bin/sh, whatever the base names for either."""
    layers = [_layer(f"FROM {base} AS {stage}", "base", origin, stage)]
    if given and given.user_in_the_end:
        layers.append(_layer("USER root", "the user of what follows", _OWN, stage))
    if given and given.shell:
        layers.append(_layer('SHELL ["/bin/sh", "-c"]', "the shell of what follows", _OWN, stage))
    return layers


def python_venv(python: str, platform: str, given: BaseFacts | None) -> list[Layer]:
    """The wanted Python in /opt/venv: made there unless the base brings it."""
    files = [f"--mount=type=bind,source={file},target={_GIVEN}/{file}" for file in (PYTHON_FILE, VENV_FILE)]
    if needs_uv_first(given, python):
        files += ["--mount=type=bind,from=uv,source=/opt/uv,target=/run/uv", *_apt_caches(platform)]
    name = f"Python {python} in /opt/venv"
    return [
        _run([f"sh {_GIVEN}/{PYTHON_FILE}"], *files, name=name, origin=_OWN, stage="python"),
        _layer("ENV PATH=/opt/venv/bin:$PATH VIRTUAL_ENV=/opt/venv", "PATH", _OWN, "python"),
    ]


def uv_stage(image: Image, base: str, given: BaseFacts | None, python: str) -> list[Layer]:
    """A stage with uv that is thrown away: it is mounted where it is needed. See `needs_uv_first`."""
    first = needs_uv_first(given, python)
    if not image.pip and not first:
        return []
    origin = "skyward itself, to bring Python" if first else "skyward itself, to install your pip requirements"
    start = base_stage(base, _OWN, given, "uv") if first else [_layer("FROM python AS uv", "uv", _OWN, "uv")]
    mounts = [f"--mount=type=bind,source={file},target={_GIVEN}/{file}" for file in (UV_SCRIPT_FILE, UV_FILE)]
    return [*start, _run([f"sh {_GIVEN}/{UV_SCRIPT_FILE}"], *mounts, name=f"uv {UV}", origin=origin, stage="uv")]


def needs_uv_first(given: BaseFacts | None, python: str) -> bool:
    """Whether Python itself has to be brought, as the base has none of that version."""
    return given is not None and given.lacks(python)


def mount_points() -> list[Layer]:
    """Empty files where builders mount theirs.

    ADD keeps the times that the archive has. See `skyward.image.mount_points`.
    """
    return [_layer(f"ADD {MOUNT_POINTS_FILE} /", "mount points of builders", _OWN, "python")]


def gives_python(image: Image) -> bool:
    """Whether the interpreter may come from Debian packages, which are then installed before everything else."""
    return any(name.startswith("python") for name in image.apt)


def apt(image: Image, platform: str, stage: str) -> list[Layer]:
    """Debian packages. What they leave that differs from build to build, and their caches, stay out of the layer."""
    if not image.apt:
        return []
    packages = tuple(image.apt)
    script = [
        f"echo '#clear DPkg::Post-Invoke; #clear APT::Update::Post-Invoke;' > {_GIVEN}/keep-archives",
        f"apt-get -c {_GIVEN}/keep-archives update -qq",
        f"DEBIAN_FRONTEND=noninteractive apt-get -c {_GIVEN}/keep-archives install -y -qq --no-install-recommends "
        + " ".join(packages),
        f"rm -rf {APT_LEFTOVERS}",
    ]
    name, origin = f"apt {' '.join(packages)}", origins_of(image, "apt", packages)
    mounts = _apt_caches(platform)
    return [_run(script, *mounts, name=name, origin=origin, stage=stage, env=image.build_env)]


def _apt_caches(platform: str) -> list[str]:
    cache = f"id=skyward-apt-{platform.replace('/', '-')}"
    return [f"--mount=type=cache,{cache}-{kind},target=/var/{kind}/apt,sharing=locked" for kind in ("cache", "lib")]


def image_stage() -> list[Layer]:
    """The image itself, from here on."""
    return [_layer("FROM python AS image", "image", _OWN)]


def requirements(image: Image, platform: str, lock: Lock | None, built: str) -> dict[Tier, list[Layer]]:
    """The layers of each tier of the locked packages.

    `built` names the cache of what is built: see `_uv_run`.
    """
    if not image.pip:
        return {}
    if lock is None:
        groups = [(Group(tier, tier), sources) for tier, sources in unlocked_installs(image).items()]
    else:
        groups = [(group, group.installs) for group in lock.groups]
    layers: dict[Tier, list[Layer]] = {}
    for group, sources in groups:
        files = [name for source in sources for name in (source.file, source.build_file) if name]
        mounts = [f"--mount=type=bind,source=requirements/{group.name}/{name},target={_GIVEN}/{name}" for name in files]
        installs = [_install(source, lock) for source in sources if not source.package]
        builds = [_build(source, lock) for source in sources if source.package]
        entries = _group_entries(image, lock, group)
        name = f"pip {_short(_group_words(entries, group))}{_TIER_NOTES[group.tier]}"
        layer = _uv_run(image, platform, installs, builds, *mounts, name=name, entries=entries, built=built)
        layers.setdefault(group.tier, []).append(layer)
    return layers


def local_packages(
    image: Image, platform: str, packages: tuple[Copied, ...], lock: Lock | None, built: str
) -> list[Layer]:
    """Wheels and projects from this machine's files. Their needs are among the locked packages."""
    others = tuple(package for package in packages if not package.is_project)
    entries = sorted(package.entry for package in others)
    return [_from_files(image, platform, others, lock, built, f"pip {' '.join(entries)}")] if others else []


def project(image: Image, platform: str, packages: tuple[Copied, ...], lock: Lock | None, built: str) -> list[Layer]:
    """The project that the image is for, in a layer of its own: its code is what changes most."""
    own = tuple(package for package in packages if package.is_project)
    return [_from_files(image, platform, own, lock, built, f"project {own[0].target}")] if own else []


def _from_files(
    image: Image, platform: str, packages: tuple[Copied, ...], lock: Lock | None, built: str, name: str
) -> Layer:
    projects = [package.target for package in packages if package.folder == f"local/{package.target}"]
    wheels = [_word(f"/run/local/{package.target}") for package in packages if package.target not in projects]
    # builds write beside the sources, where it is thrown away; uv would take an old build of the same path for this one
    mounts = [f"--mount=type=bind,source={each.folder},target=/run/{each.folder},readwrite" for each in packages]
    mounts += [
        f"--mount=type=bind,source=requirements/{file},target={_GIVEN}/{file}" for file in map(build_file, projects)
    ]
    installs = [f"{_pip(lock)} --refresh {' '.join(wheels)}"] if wheels else []
    known = dict(lock.projects) if lock else {}
    builds = []
    for each in projects:
        taken = Install(each, build=tuple((part.index, part.name) for part in known.get(each, ()) if part.index))
        builds.append(f"{_building(taken, lock)} --refresh {_word(f'/run/local/{each}')}")
    (builds or installs).append(_FORGET_TIMES)
    entries = tuple(sorted(package.entry for package in packages))
    return _uv_run(image, platform, installs, builds, *mounts, name=name, entries=entries, built=built)


def runner() -> list[Layer]:
    """The runner, of the client's own version, and the user that it runs as with directories that it can write to.

    What only clients load goes without bytecode, half of the layer. All is readable by everybody, whatever the modes of
    the client's files: a later `chown` or `chmod` would copy what it touches into another layer.
    """
    client = "/opt/skyward/skyward/(build|cli|engine|image|pool|providers)/"
    compile_all = "/opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash"
    copy = [
        "rm -rf /opt/skyward",  # of a base that is such an image itself
        "cp -r /run/runner /opt/skyward",
        f"{compile_all} -x '{client}' /opt/skyward",
        "chmod -R a+rX /opt/skyward",
        *_account(),
    ]
    return [_run(copy, "--mount=type=bind,source=runner,target=/run/runner", name="the runner", origin=_OWN)]


def commands(image: Image) -> list[Layer]:
    """The user's commands in JSON form, which neither Dockerfile nor shell quoting can alter."""
    layers = []
    secrets = [f"--mount=type=secret,id={name},required=true" for name in image.secrets]
    env = [_BUILD_ENV] if image.build_env else []
    script = f'{_BEGIN}; /bin/sh -ec "$0"; drop_stale_bytecode; {_END}'
    flags = " ".join((*_SITE, *env, *secrets))
    for number, command in enumerate(image.run, start=1):
        words = json.dumps(["/bin/sh", "-ec", script, command], ensure_ascii=False)
        origin = f"{origin_of(image, 'run', command)} (command {number} of {len(image.run)})"
        layers.append(_layer(f"RUN {flags} {words}", f"run {_short(command)}", origin))
    return layers


def code(image: Image, copied: Copied | None) -> list[Layer]:
    """Local code, where the image asks for it to be baked in."""
    if copied is None:
        return []
    origin = f"your bake=True, includes={list(image.includes)!r}"
    mount = f"--mount=type=bind,source={copied.folder},target=/run/code"
    script = [f"mkdir -p {CODE}", f"cp -r /run/code/. {CODE}", f"chmod -R a+rX {CODE}"]
    return [_run(script, mount, name="local code", origin=origin)]


def start(given: BaseFacts | None) -> list[Layer]:
    """How nodes start: as the user that the base names, and by what it starts programs with, if that starts others."""
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
    """The environment of the nodes, and the paths that Python finds modules in: the runner's, then the base's last."""
    pairs = [f"{name}={quoted(value)}" for name, value in sorted(image.env.items()) if name != "PYTHONPATH"]
    needed = [name for char, name in NEWLINES.items() if any(char in value for value in image.env.values())]
    layers = [_layer(f"ARG {name}", "newlines in env", _USER) for name in needed]
    # the runner must stay importable whatever path the user or the base adds
    own = [quoted(image.env["PYTHONPATH"])[1:-1]] if image.env.get("PYTHONPATH") else []
    paths = ":".join(["/opt/skyward", *own, *([CODE] if copied else [])])
    layers.append(_layer(f'ENV PYTHONPATH="{paths}${{PYTHONPATH:+:$PYTHONPATH}}"', "the paths of modules", _OWN))
    if pairs:
        layers.append(_layer("ENV " + " \\\n    ".join(pairs), "env", _USER))
    return layers


def labels(facts: Mapping[str, str]) -> list[Layer]:
    """What the image says of itself."""
    return [_layer("LABEL " + " ".join(f"{name}={quoted(text)}" for name, text in facts.items()), "labels", _OWN)]


def build_env_file(image: Image) -> str:
    """The environment of build steps, as a shell reads it."""
    return "".join(f"export {name}={_word(value)}\n" for name, value in image.build_env.items())


def _account() -> list[str]:
    """The user of nodes, its home, and a place to work: theirs, and of whichever other user a node is started as.

    Written by hand: not every base has useradd, which besides leaves backups and logs that differ between builds.
    """
    line = f"{ACCOUNT}:x:{ACCOUNT_ID}:"
    return [
        f"grep -q '^[^:]*:[^:]*:{ACCOUNT_ID}:' /etc/group || echo '{line}' >>/etc/group",
        f"grep -q '^[^:]*:[^:]*:{ACCOUNT_ID}:' /etc/passwd || echo '{line}{ACCOUNT_ID}::{HOME}:/bin/sh' >>/etc/passwd",
        f"mkdir -p {HOME} {WORK_DIR}",
        f"chmod 1777 {HOME} {WORK_DIR}",
        '[ "$PWD" = / ] || chmod a+rwx .',
        # and the way to it, where it is below a home of root's
        'above=$PWD; while [ "$above" ]; do find "$above" -maxdepth 0 ! -perm -001 -exec chmod a+x {} +; '
        "above=${above%/*}; done",
        f"touch -d @{TIME} /etc",  # it comes into the layer with the files above, and the builder has changed it before
    ]


def quoted(value: str) -> str:
    """A value as a Dockerfile word."""
    text = re.sub(r'([\\"$])', r"\\\1", value)
    for char, name in NEWLINES.items():
        text = text.replace(char, f"${{{name}}}")
    return f'"{text}"'


def _layer(text: str, name: str, origin: str, stage: str = "image") -> Layer:
    return Layer(stage=stage, step=None, name=name, text=text, origin=origin)


def _run(
    script: Sequence[str],
    *mounts: str,
    name: str,
    origin: str,
    stage: str = "image",
    env: Mapping[str, str] | None = None,
) -> Layer:
    """A RUN of our own, of commands each of which must succeed."""
    flags = " \\\n    ".join((*_SITE, *([_BUILD_ENV] if env else []), *mounts))
    lines = [_BEGIN, *script, _END]
    body = "; \\\n    ".join(lines)
    return _layer(f"RUN {flags} \\\n    set -e; {body}", name, origin, stage)


def _uv_run(
    image: Image,
    platform: str,
    installs: list[str],
    builds: list[str],
    *mounts: str,
    name: str,
    entries: tuple[str, ...],
    built: str,
) -> Layer:
    """A RUN that installs packages with uv, whose caches are mounts.

    All images share the cache of wheels. A package that is built comes out as compilers, headers, variables and the
    build's own requirements make it: `built` names a cache for base, apt and variables, in which there is a folder for
    what is really installed and for the requirements. What compilers write for debuggers holds the random names of
    uv's folders, so it is left out unless the image's CPPFLAGS ask for it. (CFLAGS of ours would
    take the place of those that Python was built with, optimization included.)
    """
    tool = "--mount=type=bind,from=uv,source=/opt/uv,target=/run/uv"
    name_of = platform.replace("/", "-")
    caches = [f"--mount=type=cache,id=skyward-uv-{name_of},target=/run/cache/uv"]
    script = [
        "export UV_CACHE_DIR=/run/cache/uv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_PYTHON=/opt/venv/bin/python",
        "export PYC_INVALIDATION_MODE=UNCHECKED_HASH",  # importing torch takes 13 % less time
        *installs,
    ]
    if builds:
        caches.append(f"--mount=type=cache,id=skyward-built-{name_of}-{built},target=/run/cache/built")
        script.append('export CPPFLAGS="-g0 ${CPPFLAGS-}" TMPDIR=/run/cache/built/tmp')
        script += ['mkdir -p "$TMPDIR"', *builds]
    origin = origins_of(image, "pip", entries)
    return _run(script, tool, *mounts, *caches, name=name, origin=origin, env=image.build_env)


def _pip(lock: Lock | None) -> str:
    """The first words of an install: what was locked for one platform is chosen for the same, as tags of wheels go.

    Hashes and commits decide what is installed, so that it may come from whichever of the site's indexes has it: a lock
    of the user's may have been made where they were asked in another order.
    """
    target = f" --python-platform {lock.target}" if lock and lock.target else ""
    words = "--no-progress --compile-bytecode --no-deps --index-strategy unsafe-best-match"
    return f"/run/uv/bin/uv pip install {words}{target}"


def _install(source: Install, lock: Lock | None) -> str:
    """The command for the wheels of one requirements file."""
    words = f"{_pip(lock)} --require-hashes -r {_GIVEN}/{source.file}"
    if not source.index:
        return words
    # a package's one source is the index that the image names for it, wherever this site finds that
    return (
        f'{_find(source.index)}; env -u UV_CONFIG_FILE {words} --no-config --default-index "${_variable(source.index)}"'
    )


def _build(source: Install, lock: Lock | None) -> str:
    """The command for a package that is built; a commit of a repository has no hash but its own."""
    hashes = {package.name: package.hashes for package in lock.packages} if lock else {}
    words = f"{_building(source, lock)} --no-binary {source.package}"
    return f"{words}{' --require-hashes' if hashes.get(source.package) else ''} -r {_GIVEN}/{source.file}"


def _building(source: Install, lock: Lock | None) -> str:
    """The first words for a package that is built, with exactly the packages that the lock has for that.

    What the image takes from one index is found at the page which that index has of it, as other packages come from
    the site's own indexes.
    """
    scoped = [(source.index, source.package)] if source.index else []
    pages = sorted({*scoped, *source.build})
    before = "".join(f"{_find(index)}; " for index in sorted({index for index, _ in pages}))
    links = "".join(f' --find-links "${{{_variable(index)}%/}}/{name}/"' for index, name in pages)
    file = f"{_GIVEN}/{source.build_file}"
    state = f"$(cat /var/lib/dpkg/status {file} 2>/dev/null | sha256sum | cut -c-16)"
    words = f"{_pip(lock)} --preview-features build-dependency-hashes --require-build-hashes"
    return f'{before}UV_CACHE_DIR="/run/cache/built/{state}" {words} --build-constraints {file}{links}'


def _find(index: str) -> str:
    """Sets the variable with the address of an index to what the image says, unless this site has another."""
    return f'[ -n "${{{_variable(index)}:-}}" ] || {_variable(index)}={_word(index)}'


def _variable(index: str) -> str:
    return f"SKYWARD_INDEX_{index_id(index)}"


def _group_entries(image: Image, lock: Lock | None, group: Group) -> tuple[str, ...]:
    """The requirements that ask for a layer: those that name a package in it, else all of them."""
    entries = tuple(entry for entry in image.pip if local_path(entry) is None) or tuple(image.pip)
    known = {package.name: each.name for each in lock.groups for package in each.packages} if lock else {}
    names = {entry: requirement_name(entry) for entry in entries}
    direct = tuple(entry for entry, name in names.items() if known.get(name, tier_of(name)) == group.name)
    return direct or entries


def _group_words(entries: tuple[str, ...], group: Group) -> str:
    """What a layer holds, in words: what was asked for; of large packages and parts, what that came to."""
    if group.packages and (group.tier in ("cuda", "framework", "large") or group.name != group.tier):
        return " ".join(package.pin.partition(" @ ")[0] for package in group.packages)
    return " ".join(entries)


def _word(text: str) -> str:
    """A text as a word of the shell. Not `shlex.quote`: the same on every version of Python."""
    return text if re.fullmatch(r"[\w./:=@%+,-]+", text, re.ASCII) else "'" + text.replace("'", "'\"'\"'") + "'"


def _short(command: str) -> str:
    line = command.strip().splitlines()[0]
    return line if len(line) <= 60 else f"{line[:57]}..."
