"""Local files that are copied into an image: local packages to install, code to bake in, and the runner.

The runner consists of the sources of this package and of the client's cloudpickle. They are copied rather than
installed, so that client and nodes have the same version of both without a download.

The digest of a set of files is part of the image's name.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from skyward.builder.files.included import included_files
from skyward.builder.packages.local import LocalPackage
from skyward.errors import BuildError, ConfigError, ImageError
from skyward.image import Copied
from skyward.model.image import Image

Files = tuple[tuple[str, str], ...]  # pairs of target path and local path
_PACKAGES = ("cloudpickle", "skyward")
# not needed on nodes, and would enlarge every image
_NOT_ON_NODES = ("skyward/cli/", "skyward/testing/", "skyward/__main__.py")


def package_files(packages: Iterable[LocalPackage]) -> tuple[Copied, ...]:
    """Return the files of each local package that a build needs.

    Raises:
        ConfigError: a file cannot be read.
    """
    found = []
    for package in sorted(packages, key=lambda each: each.name):
        files = tuple(sorted((name, os.path.realpath(path)) for name, path in package.files))
        target = package.name if package.path.is_dir() else f"{package.name}/{package.path.name}"
        found.append(
            Copied(
                folder=f"local/{package.name}",
                digest=digest_of(files),
                target=target,
                is_project=package.is_project,
                entry=package.entry,
                files=files,
            )
        )
    return tuple(found)


def code_files(image: Image, root: Path) -> Copied | None:
    """Return the local code of an image to bake in; None if there is none. Code to be sent is only checked.

    Raises:
        ConfigError: a path does not exist, a file cannot be read or is refused; see `included_files`.
    """
    found = included_files(image.includes, image.excludes, root) if image.includes else {}
    if not (image.bake and found):
        return None
    files = tuple((name, os.path.realpath(path)) for name, path in found.items())
    return Copied(folder="code", digest=digest_of(files), files=files)


def copy_to(context: Path, copied: Copied) -> None:
    """Copy files into a build context.

    Raises:
        BuildError: the files have changed since the image was named.
    """
    folder = context / copied.folder
    folder.mkdir(parents=True)
    placed = []
    for name, source in copied.files:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
        placed.append((name, str(target)))
    if digest_of(tuple(placed)) != copied.digest:
        raise BuildError(
            f"The files that go into {copied.folder!r} of the image changed while it was being prepared: "
            f"{', '.join(source for _, source in copied.files[:3])} ... Run it again once they are quiet."
        )


def with_usual_modes(folder: Path) -> None:
    """Make a build context readable for everybody, whatever the umask and modes here, of which digests contain
    only the executable bit.

    The images built from it have one name and so one content, and run as other users than the client's.
    """
    for place, _, names in os.walk(folder):
        Path(place).chmod(0o755)
        for path in (Path(place, name) for name in names):
            mode = path.lstat().st_mode & 0o777
            usual = 0o755 if mode & 0o111 else 0o644
            if not path.is_symlink() and mode != usual:
                path.chmod(usual)


@lru_cache(maxsize=1)
def runner_files() -> tuple[tuple[str, bytes], ...]:
    """Return path below /opt/skyward and content of every file, sorted by path. Read once per process."""
    files = (file for package in _PACKAGES for file in _sources(package))
    return tuple(sorted(file for file in files if not file[0].startswith(_NOT_ON_NODES)))


@lru_cache(maxsize=1)
def runner_digest() -> str:
    """Return the SHA-256 (hex) of paths and contents of the runner's files."""
    whole = hashlib.sha256()
    for path, content in runner_files():
        whole.update(f"{path}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return whole.hexdigest()


def _sources(package: str) -> Iterator[tuple[str, bytes]]:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImageError(f"The package {package!r} goes into every image, but is not installed as files here.")
    root = Path(spec.submodule_search_locations[0])
    for path in (each for each in root.rglob("*") if each.suffix in (".py", ".sh")):
        yield f"{package}/{path.relative_to(root).as_posix()}", path.read_bytes()


def digest_of(files: Files) -> str:
    """Return the SHA-256 (hex) of paths, contents and executability of files.

    Raises:
        ConfigError: a file cannot be read.
    """
    whole = hashlib.sha256(b"skyward.files\n")
    for name, source in files:
        path = name.encode("utf-8", "surrogateescape")
        try:
            kind = b"program" if Path(source).stat().st_mode & 0o111 else b"file"
            content = sha256_of(Path(source))
        except OSError as error:
            raise ConfigError(f"{source} goes into the image, but cannot be read: {error.strerror}.") from None
        whole.update(b"%s %d %s %s\n" % (kind, len(path), path, content.encode()))
    return whole.hexdigest()


def sha256_of(path: Path) -> str:
    """Return the SHA-256 (hex) of a file.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
