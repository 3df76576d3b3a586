"""The values of an image's secrets, read when a build needs them and given to the docker command in memory.

The secret NAME is the environment variable NAME, or the content of the file that SKYWARD_SECRET_NAME_FILE names (its
name in capitals, with '_' for '-' and '.').
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from skyward.errors import ConfigError


def secret_values(names: Iterable[str], environ: Mapping[str, str] = os.environ) -> dict[str, bytes]:
    """Each secret's value.

    Raises:
        ConfigError: one of them is not set, or its file cannot be read.
    """
    return {name: _value(name, environ) for name in names}


def _value(name: str, environ: Mapping[str, str]) -> bytes:
    variable = f"SKYWARD_SECRET_{name.upper().replace('-', '_').replace('.', '_')}_FILE"
    if file := environ.get(variable):
        try:
            return Path(file).expanduser().read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{variable} names {file!r} for the secret {name!r}, but it cannot be read: {error.strerror}."
            ) from None
    if name in environ:
        return environ[name].encode("utf-8", "surrogateescape")
    raise ConfigError(
        f"The image's build reads the secret {name!r}, which has no value here. Set the environment variable {name}, "
        f"or {variable} to a file that holds it."
    )


@contextmanager
def handed_over(values: Mapping[str, bytes], folder: Path, *, is_rootless_podman: bool = False) -> Iterator[list[str]]:
    """Options of a build that give it secrets, for the time of a `with` block.

    The docker command opens them in the memory of this process (memfd_create), so that they are on no disk and gone
    with the process, also where it is killed. Variables would not do: one of them holds at most 128 KiB. Where the
    system has no such memory, they are files in a folder.

    Args:
        values: of the secrets, by name.
        folder: private to the build.
        is_rootless_podman: whether the command runs in a user namespace of its own, from which the kernel lets nobody
            open the files of a process outside it. It gets files in the folder as well.
    """
    with ExitStack() as stack:
        words: list[str] = []
        for name, value in values.items():
            in_memory = None if is_rootless_podman else _in_memory(value, stack)
            source = in_memory or _in_file(name, value, folder)
            words += ["--secret", f"id={name},type=file,src={source}"]
        yield words


def _in_memory(value: bytes, stack: ExitStack) -> str | None:
    """A path that leads to a value in this process's memory; None where there is none."""
    if not hasattr(os, "memfd_create"):  # macOS
        return None
    file = stack.enter_context(os.fdopen(os.memfd_create("skyward-secret"), "wb"))
    file.write(value)
    file.flush()
    # by process number, not /proc/self: a docker command that is a wrapper may close what it inherits
    path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
    return path if Path(path).exists() else None


def _in_file(name: str, value: bytes, folder: Path) -> str:
    (folder / "secrets").mkdir(mode=0o700, exist_ok=True)
    path = folder / "secrets" / name
    path.touch(mode=0o600)
    path.write_bytes(value)
    return f"secrets/{name}"
