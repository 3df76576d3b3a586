"""Small wheels and source archives for tests: packages of one module that says its version."""

from __future__ import annotations

import gzip
import io
import tarfile
from hashlib import sha256
from pathlib import Path
from zipfile import ZipFile, ZipInfo


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    *requires: str,
    tag: str = "py3-none-any",
    extras: tuple[str, ...] = (),
    padding: int = 0,
) -> Path:
    """Write a wheel with so many bytes more; the same arguments give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-{tag}.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Provides-Extra: {each}\n" for each in extras)
    files = {
        f"{name}.py": f"version = {version!r}\n" + "#" * padding,
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {each}\n" for each in requires),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{info}/RECORD": f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
    }
    with ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(ZipInfo(file, (1980, 1, 1, 0, 0, 0)), text)
    return path


def make_index(folder: Path) -> str:
    """Turn a folder of wheels into an index (PEP 503) and return its URL."""
    for wheel in sorted(folder.glob("*.whl")):
        place = folder / wheel.name.split("-")[0].replace("_", "-").lower()
        place.mkdir(exist_ok=True)
        wheel.rename(place / wheel.name)
        digests = {each.name: sha256(each.read_bytes()).hexdigest() for each in sorted(place.glob("*.whl"))}
        links = "".join(f'<a href="{name}#sha256={digest}">{name}</a>' for name, digest in digests.items())
        (place / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    return folder.as_uri()


def make_sdist(folder: Path, name: str, version: str, files: dict[str, str], *requires: str) -> Path:
    """Write a source archive with these files, whose metadata can be read without building it; the same bytes again."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}.tar.gz"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    texts = {**files, "PKG-INFO": f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n{needs}"}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for file, text in texts.items():
            member = tarfile.TarInfo(f"{name}-{version}/{file}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    return path
