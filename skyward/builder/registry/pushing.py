"""Images in registries, through an engine: it looks for them, and pushes them; buildx pushes those with zstd.

Besides an image's own tag, a push sets a second one, `cache-<architecture>`, which moves from build to build: builders
without layers take those that others have pushed. Builders that can store the layers of every step under it do so while
they build; for the others it is the last pushed image, whose configuration lists the layer of each step.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass

from skyward.builder.docker.command import answer, find_command
from skyward.builder.events import Report, note, paced
from skyward.builder.folders import scratch_folder
from skyward.builder.registry.auth import ensure_repository, is_ecr, login, logins_for, registry_login
from skyward.builder.registry.reference import Reference, parse_reference
from skyward.builder.store import known_contents, note_content
from skyward.engine import Images
from skyward.engine.failures import registry_failure
from skyward.errors import ConfigError, EngineError, RegistryError

_OUTPUT = "type=image,push=true,compression=zstd,force-compression=true,oci-mediatypes=true"
_WHOLE = "mode=max,image-manifest=true,oci-mediatypes=true,ignore-error=true"


def digest_of(target: str, engine: Images) -> str | None:
    """Return the digest of an image in its registry; None if the registry does not have it.

    Raises:
        ConfigError: the target is not the name of an image.
        RegistryError: the registry cannot be reached or refuses.
    """
    reference = parse_reference(target)
    return engine.registry_digest(str(reference), registry_login(reference.registry))


def find(image: str, target: str, engine: Images, report: Report) -> str | None:
    """Return `repository@digest` of the image of one of skyward's tags; another image under its name counts as absent.

    If nothing is recorded for the tag (see `skyward.builder.store`), the registry's image is recorded: clients that
    have not built an image accept it from anybody who may push to the repository.

    Args:
        image: tag of the image on engines.
        target: its name in the registry, with a tag.
        engine: asks the registry.
        report: receives a message about another image.

    Raises:
        ConfigError: the target is not the name of an image.
        RegistryError: the registry cannot be reached or refuses.
    """
    digest, known = digest_of(target, engine), known_contents(image)
    if digest is None:
        return None
    if known and digest not in known:
        report(
            note(f"{target} is an image in the registry that is not known here ({digest[:19]}); ours takes its place")
        )
        return None
    note_content(image, digest)
    return f"{parse_reference(target).name}@{digest}"


def push(image: str, target: str, *, engine: Images, report: Report) -> str:
    """Push an image of an engine and return its `repository@digest`; on the engine it keeps the target as a name.

    Args:
        image: its tag on the engine.
        target: the destination, with a tag.
        engine: the engine that has the image and reaches the registry.
        report: receives progress.

    Raises:
        ConfigError: the target is not the name of an image, or has a digest.
        ImageNotFoundError: the engine does not have the image.
        RegistryError: the registry cannot be reached or refuses; credentials are unavailable.
        EngineError: the engine does not answer.
    """
    reference = _prepare(target, report)
    auth = registry_login(reference.registry)
    digest = engine.push(image, str(reference), auth, paced(report, f"pushing {reference}"))
    return _pushed(image, reference, digest)


def _prepare(target: str, report: Report) -> Reference:
    """Return the reference to push to, after creating its repository if the registry requires that."""
    reference = parse_reference(target)
    if reference.digest:
        raise ConfigError(f"An image cannot be pushed to {target!r}: its digest follows from its content. Give a tag.")
    if is_ecr(reference.registry):
        ensure_repository(reference)
    report(note(f"pushing {reference}"))
    return reference


def _pushed(image: str, reference: Reference, digest: str) -> str:
    note_content(image, digest)
    return f"{reference.name}@{digest}"


def push_zstd(image: str, target: str, *, report: Report, docker_host: str | None = None) -> str:
    """Push an image of an engine with layers compressed by zstd, and return its `repository@digest`.

    Args:
        image: its tag on the engine.
        target: the destination, with a tag.
        report: receives progress.
        docker_host: address of the engine; None for the docker command's default.

    Raises:
        ConfigError: the target is not the name of an image, or has a digest.
        EngineError: there is no buildx here, or the engine does not support zstd.
        RegistryError: the registry cannot be reached or refuses.
    """
    environment = {**os.environ, **({"DOCKER_HOST": docker_host} if docker_host else {})}
    command = find_command(environment)
    if not answer(command.words[0], "buildx", "version"):
        raise EngineError(
            f"Compressing layers with zstd needs the docker command with its buildx plugin; {command.words[0]} has "
            "none. Install buildx, or push with gzip."
        )
    reference = _prepare(target, report)
    with scratch_folder("build") as folder, login(logins_for([reference.registry])) as known:
        words = [command.words[0], "buildx", "build", "--builder", "default", "--progress=plain", "--provenance=false"]
        words += ["--metadata-file", str(folder / "made.json"), "--output", f"{_OUTPUT},name={reference}", "-"]
        done = subprocess.run(
            words, input=f"FROM {image}\n", env=environment | known, capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = "\n".join(done.stderr.strip().splitlines()[-5:]) or "nothing"
            raise registry_failure(f"push {reference} with zstd", str(reference), docker_host or "default", said)
        made = json.loads((folder / "made.json").read_text())
    return _pushed(image, reference, made["containerimage.digest"])


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCache:
    """The registry cache of a build, which layers are read from and written to.

    Attributes:
        place: the repository, with the tag of the cache.
        is_there: whether the registry already has it.
        is_whole: whether the builder stores all of its layers there; else they are part of the pushed image.
    """

    place: Reference
    is_there: bool
    is_whole: bool

    @property
    def words(self) -> list[str]:
        """Options of a build, supported by old docker commands and by buildx."""
        found = ["--cache-from", str(self.place)] if self.is_there else []
        if self.is_whole:
            return [*found, "--cache-to", f"type=registry,ref={self.place},{_WHOLE}"]
        return [*found, "--build-arg", "BUILDKIT_INLINE_CACHE=1"]

    def leave(self, image: str, engine: Images, report: Report) -> None:
        """Let builds elsewhere start from the layers of a pushed image; if the registry refuses, only report that."""
        if self.is_whole:
            return
        try:
            engine.push(image, str(self.place), registry_login(self.place.registry))
            engine.remove(str(self.place))
        except RegistryError as error:
            report(note(f"builds elsewhere start without the layers of this image: {error.reason}"))


def shared_cache(target: str, platform: str, engine: Images) -> SharedCache:
    """Return the cache of the repository that an image will be pushed to.

    Args:
        target: the destination of the image.
        platform: platform of the image, such as "linux/amd64".
        engine: the engine that builds it. If it keeps images in containerd, it can store the layers of all steps.

    Raises:
        RegistryError: the registry cannot be reached or refuses.
    """
    reference = parse_reference(target)
    tag = "cache-" + "-".join(platform.split("/")[1:])
    place = Reference(registry=reference.registry, repository=reference.repository, tag=tag)
    is_there = digest_of(str(place), engine) is not None
    return SharedCache(place=place, is_there=is_there, is_whole=engine.in_containerd())
