"""The image whose one process holds the namespaces of a pod: a program of some bytes that only waits."""

import hashlib
import io
import json
import platform
import struct
import tarfile
from pathlib import Path

from scripts.engine.console import SetupError

NAME = "skyward/pause:1"
# by processor: the machine's number in ELF, its name in images, and the program
_PROGRAMS = {
    # mov eax, 34 (pause); syscall; jmp to the start
    "x86_64": (62, "amd64", bytes.fromhex("b8220000000f05ebf7")),
    # mov x0..x3, 0; mov x8, 73 (ppoll); svc 0; b to the start
    "aarch64": (183, "arm64", bytes.fromhex("000080d2010080d2020080d2030080d2280980d2010000d4faffff17")),
}
_BASE, _HEADERS = 0x400000, 64 + 56


def write(path: Path) -> None:
    """Write the image as `ctr image import` takes it.

    Raises:
        SetupError: there is no program for this machine's processor.
    """
    try:
        machine, architecture, code = _PROGRAMS[platform.machine()]
    except KeyError:
        raise SetupError(f"there is no pause image for processors of the kind {platform.machine()}.") from None
    layer = _tar({"pause": _elf(machine, code)}, mode=0o755)
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"]}]
    files = {
        "layer.tar": layer,
        "config.json": json.dumps(config).encode(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    path.write_bytes(_tar(files, mode=0o644))


def _elf(machine: int, code: bytes) -> bytes:
    """A program without sections: one segment that is read and run, headers included."""
    size = _HEADERS + len(code)
    ident = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    header = struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, _BASE + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return ident + header + segment + code


def _tar(files: dict[str, bytes], *, mode: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
