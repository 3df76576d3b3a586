"""Adding files to an image in a registry: one layer, a new configuration and a new manifest; nothing is built.

Neither an engine nor the image's other layers are touched. The new files, compressed, and three small documents are
uploaded.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from skyward.builder.registry import existence
from skyward.builder.registry.client import RegistryClient, encoded, sha256
from skyward.builder.registry.manifests import ImageManifest, find_image
from skyward.builder.registry.reference import Reference, parse_reference
from skyward.errors import ConfigError, ImageNotFoundError, RegistryError

_LAYER_TYPES = {
    "application/vnd.oci.image.manifest.v1+json": "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.docker.distribution.manifest.v2+json": "application/vnd.docker.image.rootfs.diff.tar.gzip",
}


@dataclass(frozen=True, slots=True)
class BakedFile:
    """A file of the new layer.

    Attributes:
        path: relative to the directory that the layer is for.
        content: its bytes.
        executable: whether it may be run.
    """

    path: str
    content: bytes = field(repr=False)
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """An image with one layer more.

    Attributes:
        reference: `repository@digest`, which nodes run.
        digest: of its manifest.
        layer_bytes: of the new layer.
        is_new: False if the registry had this very image under that tag already.
    """

    reference: str
    digest: str
    layer_bytes: int
    is_new: bool


def append(
    source: str,
    target: str,
    files: Iterable[BakedFile],
    *,
    into: str,
    platform: str,
    labels: Mapping[str, str] | None = None,
) -> Appended:
    """Put files on top of an image in a registry, and give the result a tag there.

    The same files on the same image give the same digest, wherever and whenever.

    Args:
        source: an image of the registry.
        target: repository of the same registry, and the tag.
        files: in any order; their owner is root, their date the epoch.
        into: absolute path of the directory they are in.
        platform: such as "linux/amd64".
        labels: put on the image, in addition to what it has.

    Raises:
        ConfigError: a reference or a path is wrong, or source and target are in two registries.
        ImageNotFoundError: the registry has no such source.
        RegistryError: the registry cannot be reached or refuses.
    """
    origin, goal = parse_reference(source), parse_reference(target)
    if origin.registry != goal.registry or goal.digest:
        raise ConfigError(
            f"Files cannot be put on {source!r} to make {target!r}: the target must be a tag in the same registry."
        )
    layer = layer_tar(files, into)
    packed = _gzip(layer)
    with RegistryClient(origin) as reading:
        image = find_image(reading, origin.wanted, platform)
    if image is None:
        raise ImageNotFoundError(f"The registry has no image {source} for {platform}; push it there first.")
    settings = _config(image, sha256(layer), into, labels or {})
    config = encoded(settings)
    manifest = encoded(_manifest(image, config, packed))
    with RegistryClient(goal, "pull,push", also_from=origin.repository) as client:
        digest = sha256(manifest)
        is_new = client.digest_of(goal.tag) != digest
        if is_new:
            _take_over(client, image, origin, goal)
            if not client.has_blob(sha256(packed)):
                client.put_blob(packed)
            client.put_blob(config)
            client.put_manifest(goal.tag, image.media_type, manifest)
    existence.remember(goal, platform, digest, digest, replace(image, config=settings).content)
    return Appended(reference=f"{goal.name}@{digest}", digest=digest, layer_bytes=len(packed), is_new=is_new)


def layer_tar(files: Iterable[BakedFile], into: str) -> bytes:
    """The files as a tar archive that depends on nothing but their paths, contents and being executable.

    Directories are in it from `into` down: what an engine makes of missing ones only root may enter.

    Raises:
        ConfigError: a path leads out of the directory, or there twice.
    """
    root = PurePosixPath(into)
    if not root.is_absolute() or ".." in root.parts or root == PurePosixPath("/"):
        raise ConfigError(f"Files are put into a directory given by its absolute path, not into {into!r}.")
    members: dict[PurePosixPath, BakedFile | None] = {root: None}
    for file in files:
        path = root / file.path
        if PurePosixPath(file.path).is_absolute() or ".." in path.parts or path == root:
            raise ConfigError(f"The file {file.path!r} would lie outside of {into}.")
        if path in members:
            raise ConfigError(f"The file {file.path!r} is given twice, or is a directory of another.")
        members[path] = file
        for parent in path.parents:
            if not parent.is_relative_to(root):
                break
            if members.setdefault(parent, None) is not None:
                raise ConfigError(f"The file {members[parent]!r} is a directory of {file.path!r} too.")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, member in sorted(members.items()):
            archive.addfile(_member(path, member), io.BytesIO(member.content if member else b""))
    return out.getvalue()


def _member(path: PurePosixPath, file: BakedFile | None) -> tarfile.TarInfo:
    info = tarfile.TarInfo(str(path.relative_to("/")))  # time, owner and names are zero and empty in a new one
    if file is None:
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    else:
        info.size, info.mode = len(file.content), 0o755 if file.executable else 0o644
    return info


def _gzip(data: bytes) -> bytes:
    """Compressed with a header that holds no time and no name."""
    out = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0, compresslevel=6) as file:
        file.write(data)
    return out.getvalue()


def _config(image: ImageManifest, content: str, into: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """The configuration with the new layer in it; its date stays, so that it depends on nothing but content."""
    config = dict(image.config)
    rootfs, settings = dict(config["rootfs"]), dict(config.get("config") or {})
    rootfs["diff_ids"] = [*rootfs["diff_ids"], content]
    settings["Labels"] = {**(settings.get("Labels") or {}), **labels}
    entry = {"created": config.get("created", "1970-01-01T00:00:00Z"), "created_by": f"skyward: code in {into}"}
    return config | {"rootfs": rootfs, "config": settings, "history": [*(config.get("history") or ()), entry]}


def _manifest(image: ImageManifest, config: bytes, layer: bytes) -> dict[str, Any]:
    new = {"mediaType": _LAYER_TYPES[image.media_type], "size": len(layer), "digest": sha256(layer)}
    described = {**image.document["config"], "size": len(config), "digest": sha256(config)}
    return {**image.document, "config": described, "layers": [*image.document["layers"], new]}


def _take_over(client: RegistryClient, image: ImageManifest, origin: Reference, goal: Reference) -> None:
    """Mount the image's layers in the target's repository; nothing is uploaded."""
    if origin.repository == goal.repository:
        return
    for _, blob, _ in image.layers:
        if not client.has_blob(blob) and not client.mount_blob(blob, origin.repository):
            raise RegistryError(
                f"The registry {goal.registry} does not let {goal.repository} use the layers of {origin.repository}.",
                f"Push the image to {goal.name} first, or put the files on it in its own repository.",
            )
