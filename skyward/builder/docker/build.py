"""One build: its context in a temporary folder, secrets, the docker command, its progress and its exit status.

The value of the secret NAME is that of the environment variable NAME, or the content of the file named by
SKYWARD_SECRET_NAME_FILE (with the name in capitals, and '_' for '-' and '.'). It is read when a build needs it.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from skyward.builder.docker.command import BuildCommand, Folders, find_command, run, run_there
from skyward.builder.docker.output import Progress, base_failure, build_failure
from skyward.builder.events import Report
from skyward.builder.files.copied import copy_to, digest_of, runner_files, with_usual_modes
from skyward.builder.folders import scratch_folder, why_not_writable
from skyward.builder.registry.auth import Logins, config_folder, login, logins_for
from skyward.builder.registry.reference import parse_reference
from skyward.builder.site.settings import Site, place_files, read_site, site_script
from skyward.errors import ConfigError
from skyward.image import TIME, Plan, steps
from skyward.model.ssh import SshHost

if TYPE_CHECKING:
    from skyward.builder.registry.pushing import SharedCache
    from skyward.builder.store import EngineImages

_SCRIPTS = Path(str(steps.__file__)).with_name("scripts")
# registries in a Dockerfile, and whatever looks like one
_REGISTRY = re.compile(r"(?<![\w./-])([\w-]+(?:\.[\w-]+)+(?::\d+)?|[\w-]+:\d+)/\w")
_MOUNTED = re.compile(r"^(    --mount=type=bind,source=)([^,\n]+)", re.MULTILINE)  # of a step; commands begin with "["
_MOUNT_POINTS = (
    ("etc", tarfile.DIRTYPE, 0o755),
    ("etc/hosts", tarfile.REGTYPE, 0o644),
    ("etc/resolv.conf", tarfile.REGTYPE, 0o644),
)
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")


def build(
    plan: Plan,
    report: Report,
    store: EngineImages,
    secrets: Mapping[str, bytes],
    cache: SharedCache | None = None,
) -> None:
    """Build a plan's image on the engine of a store; no other part of the build is left anywhere.

    With an address such as `ssh://user@host`, that machine's docker command builds, and none is needed here.

    Args:
        plan: the plan of the image.
        report: receives progress.
        store: the images of the engine that builds; it is asked while the build is silent.
        secrets: values of the image's secrets.
        cache: source of layers that this engine lacks, and destination of new ones.

    Raises:
        BuildError: a step failed, or the engine became unreachable.
        ImageNotFoundError: the builder cannot get the base.
        EngineError: no docker command here can build.
        ConfigError: this machine's settings for package sources are wrong.
    """
    progress, site = Progress(plan.layers, report, secrets.values()), read_site()
    given = {"skyward_site": site_script(site, plan).encode(), **secrets}
    logins = logins_for([parse_reference(plan.base).registry, *([cache.place.registry] if cache else [])])
    words = ["--platform", plan.platform, "--tag", plan.tag]
    words += [word for name, value in plan.build_args for word in ("--build-arg", f"{name}={value}")]
    with scratch_folder("build") as folder:
        write_context(folder / "context", plan, site)
        alive, shared = partial(store.inspect, plan.base), cache.words if cache else []
        code = _run(words, progress, store.builder, folder, Folders(folder / "context"), given, logins, alive, shared)
    if code:
        raise build_failure(plan, progress, code)


def build_base(
    file: Path,
    context: Path,
    tag: str,
    target: str | None,
    platform: str,
    secrets: Collection[str],
    store: EngineImages,
) -> None:
    """Build an image from the user's Dockerfile.

    Args:
        file: the Dockerfile.
        context: the directory whose files it may copy.
        tag: name of the image.
        target: the stage to build; None for the last.
        platform: its platform.
        secrets: names of secrets that it may read, if they have a value.
        store: the images of the engine that builds.

    Raises:
        The same errors as `build`.
    """
    values: dict[str, bytes] = {}
    for name in secrets:
        with suppress(ConfigError):
            values |= secret_values([name])
    progress = Progress((), store.report, values.values(), f"building the base {tag} from {file}")
    words = ["--platform", platform, "--tag", tag, *(("--target", target) if target else ())]
    logins = logins_for(set(_REGISTRY.findall(file.read_text(encoding="utf-8", errors="replace"))))
    with scratch_folder("build") as folder:
        alive = partial(store.inspect, tag)
        code = _run(words, progress, store.builder, folder, Folders(context, file), values, logins, alive)
    if code:
        raise base_failure(str(file), progress, code)


def _run(
    words: Sequence[str],
    progress: Progress,
    builder: str | SshHost | None,
    folder: Path,
    given: Folders,
    secrets: Mapping[str, bytes],
    logins: Logins,
    alive: Callable[[], object],
    shared: Sequence[str] = (),
) -> int:
    """Run a build, here or on the machine of an SSH address, and return its exit status.

    `logins` are for the registries of images and layers that the builder pulls, `shared` are its options for layers in
    a registry. The path of the context is unique, and its files keep their modification times: builders keep received
    files, and fetch only files whose size or time has changed.
    """
    words, host = ["--progress=plain", "--network=host", *words], builder or os.environ.get("DOCKER_HOST")
    if isinstance(host, SshHost):
        return run_there(host, [*words, *shared], progress, given, secrets=secrets, logins=logins)
    command = find_command(docker_host=host)
    is_podman = command.is_podman
    if is_podman:
        shared = ()  # its format of caches is another
    with login(logins) as known, handed_over(secrets, folder, in_files=is_podman and os.geteuid() != 0) as passed:
        environment = {**_environment(command, host, folder), **known}
        # with values from the environment; these names leave no trace in the image
        proxies = [f"--build-arg={name}" for each in _PROXIES for name in (each, each.lower()) if os.environ.get(name)]
        words = [*command.words, *proxies, *passed, *shared, *words, *given.words]
        return run(words, progress, folder=folder, environment=environment, alive=alive, is_podman=is_podman)


def write_context(folder: Path, plan: Plan, site: Site | None = None) -> None:
    """Write the build context of a plan: its Dockerfile and every file it copies or mounts.

    With `site`, also the package files that it installs from folders of this machine.
    """
    files = {"Dockerfile": plan.dockerfile.encode()}
    files |= {path: text.encode() for path, text in plan.files}
    files |= {f"{steps.SCRIPTS}/{path.name}": path.read_bytes() for path in _SCRIPTS.iterdir() if path.is_file()}
    files["requirements/uv/uv.txt"] = files.pop(f"{steps.SCRIPTS}/uv.txt")
    files[steps.MOUNT_POINTS_FILE] = mount_points_archive()
    files |= {f"runner/{path}": content for path, content in runner_files()}
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    for copied in plan.copied:
        copy_to(folder, copied)
    if site is not None:
        place_files(site, plan, folder / "requirements")
    with_usual_modes(folder)
    _name_by_content(folder)


def mount_points_archive() -> bytes:
    """Return an archive of empty files at the builders' mount points, all with one time.

    If a base lacks them, builders before Docker 23 create and remove them for each step, which changes the time of /etc
    in every layer, so that no two builds are the same: https://github.com/moby/buildkit/issues/3148
    """
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, kind, mode in _MOUNT_POINTS:
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.mtime = kind, mode, TIME
            archive.addfile(member)
    return made.getvalue()


def _name_by_content(folder: Path) -> None:
    """Add digests to the names of mounted files, in a context and in its Dockerfile.

    Buildah reuses a cached step if the instruction is the same, whatever the mounted files contain
    (https://github.com/containers/buildah/issues/5400).
    """
    dockerfile = folder / "Dockerfile"
    names: dict[str, str] = {}

    def named(found: re.Match[str]) -> str:
        source = found[2]
        if source not in names:
            path = folder / source
            files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
            digest = digest_of(tuple((each.relative_to(path).as_posix(), str(each)) for each in files))
            names[source] = f"{source}-{digest[:16]}"
            path.rename(folder / names[source])
        return found[1] + names[source]

    dockerfile.write_bytes(_MOUNTED.sub(named, dockerfile.read_bytes().decode()).encode())


def _environment(command: BuildCommand, docker_host: str | None, folder: Path) -> dict[str, str]:
    """Return the environment of a build, on the engine's own builder: others lack its images and its network."""
    environment = {**os.environ, "DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
    environment |= {"BUILDX_BUILDER": "default"} | ({"DOCKER_HOST": docker_host} if docker_host else {})
    # buildx keeps its state beside Docker's configuration, and builds nothing if it cannot write there
    if not command.is_podman and "BUILDX_CONFIG" not in environment and why_not_writable(config_folder()):
        environment["BUILDX_CONFIG"] = str(folder / "buildx")
    return environment


def secret_values(names: Iterable[str], environ: Mapping[str, str] = os.environ) -> dict[str, bytes]:
    """Return the value of each secret.

    Raises:
        ConfigError: one of them is not set, or its file cannot be read.
    """
    found = {}
    for name in names:
        variable = f"SKYWARD_SECRET_{name.upper().replace('-', '_').replace('.', '_')}_FILE"
        if file := environ.get(variable):
            try:
                found[name] = Path(file).expanduser().read_bytes()
            except OSError as error:
                raise ConfigError(
                    f"{variable} names {file!r} for the secret {name!r}, but it cannot be read: {error.strerror}."
                ) from None
        elif name in environ:
            found[name] = environ[name].encode("utf-8", "surrogateescape")
        else:
            raise ConfigError(
                f"The image's build reads the secret {name!r}, which has no value here. Set the environment variable "
                f"{name}, or {variable} to a file that holds it."
            )
    return found


@contextmanager
def handed_over(values: Mapping[str, bytes], folder: Path, *, in_files: bool = False) -> Iterator[list[str]]:
    """Yield build options that pass secrets, valid during a `with` block.

    The docker command opens them in this process's memory (memfd_create), so they are on no disk and disappear with the
    process even if it is killed. Variables do not suffice, as one holds at most 128 KiB. On systems without such
    memory, and for rootless Podman, which may not open files of other processes, they are files in a private folder.
    """
    with ExitStack() as stack:
        words: list[str] = []
        for name, value in values.items():
            source = (not in_files and _in_memory(value, stack)) or _in_file(name, value, folder)
            words += ["--secret", f"id={name},type=file,src={source}"]
        yield words


def _in_memory(value: bytes, stack: ExitStack) -> str | None:
    """Return a path to a value in this process's memory; None if that is not supported."""
    if not hasattr(os, "memfd_create"):  # macOS
        return None
    file = stack.enter_context(os.fdopen(os.memfd_create("skyward-secret"), "wb"))
    file.write(value)
    file.flush()
    # by process number, not /proc/self: a docker command that is a wrapper may close inherited files
    path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
    return path if Path(path).exists() else None


def _in_file(name: str, value: bytes, folder: Path) -> str:
    (folder / "secrets").mkdir(mode=0o700, exist_ok=True)
    path = folder / "secrets" / name
    path.touch(mode=0o600)
    path.write_bytes(value)
    return f"secrets/{name}"
