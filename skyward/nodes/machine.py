"""Checks, before anything is built, that this machine can run the containers that a pool asks for."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
from pathlib import Path

from skyward.engine import Engine
from skyward.errors import ProviderError
from skyward.model.targets import platform_of

_ENTRY = 0x400000
# per platform its number in the ELF format, and machine code that ends a process with exit status 0
_EXITS = {
    "linux/amd64": (62, bytes.fromhex("31ff b83c000000 0f05")),
    "linux/arm64": (183, bytes.fromhex("000080d2 a80b80d2 010000d4")),
}


def check_cpus(engine: Engine, cpus: float) -> None:
    """Raise ProviderError if the engine's machine has fewer processors than each node is to have."""
    present = int(engine.info.get("NCPU") or 0)
    if present and cpus > present:
        raise ProviderError(
            f"The pool asks for {cpus:g} CPUs on each node; the machine of the Docker engine at {engine.url} has "
            f"{present}. Ask for fewer with cpu=, or use a machine that has them."
        )


def check_memory(engine: Engine, memory_gb: float) -> None:
    """Raise ProviderError if the engine's machine has less memory (GiB) than each node is to have."""
    present = int(engine.info.get("MemTotal") or 0) / 1024**3
    if present and memory_gb > present:
        raise ProviderError(
            f"The pool asks for {memory_gb:,.4g} GiB of memory on each node; the machine of the Docker engine at "
            f"{engine.url} has {present:.4g}. Ask for less with memory=, or use a machine that has it."
        )


def check_platform(platform: str) -> None:
    """Raise ProviderError if this machine runs no programs of a platform, by itself or by emulation."""
    own = platform_of(None)
    if platform == own or runs(platform) is not False:
        return
    raise ProviderError(
        f"The pool asks for nodes of {platform}, and this machine runs programs of {own} only. Leave out architecture= "
        "and Image(platform=...), use a provider that has such machines, or install their emulation here (the packages "
        "qemu-user-static and binfmt-support of Debian and Ubuntu)."
    )


def runs(platform: str) -> bool | None:
    """Whether the kernel starts a program of a platform; None where that cannot be tried.

    What is registered with binfmt_misc cannot be read everywhere, least of all in containers: so it is tried.
    """
    if platform not in _EXITS or not hasattr(os, "memfd_create"):  # which is Linux' alone
        return None
    file = os.memfd_create("exit")
    try:
        os.write(file, _program(*_EXITS[platform]))
        return subprocess.run([str(Path(f"/proc/self/fd/{file}"))], pass_fds=[file], check=False).returncode == 0
    except OSError as error:
        return False if error.errno == errno.ENOEXEC else None
    finally:
        os.close(file)


def _program(machine: int, code: bytes) -> bytes:
    """An ELF file of one segment, which is loaded and run from its start."""
    size, begin = 120 + len(code), _ENTRY + 120
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    head = struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, begin, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _ENTRY, _ENTRY, size, size, 0x1000)
    return ident + head + segment + code
