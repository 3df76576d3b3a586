"""What the script of `skyward.builder.base` prints in a container of a base."""

from __future__ import annotations

_DEBIAN = {
    "apt": [""],
    "system": ["Debian GNU/Linux 12 (bookworm)"],
    "libc": ["glibc 2.36"],
    "python": ["3.11 /usr/bin/python3"],
}


def printed(**facts: list[str]) -> str:
    """The output in a Debian with a Python of its own; facts that are given replace its own."""
    pairs = [(name, value) for name, values in (_DEBIAN | facts).items() for value in values]
    return "".join(f"\r\nskyward: {name} {value}\r\n" for name, value in pairs)
