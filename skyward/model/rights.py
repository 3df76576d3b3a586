"""`Rights`: the user that the programs in a node's container run as, and the capabilities that they can have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from skyward.errors import ConfigError

ACCOUNT = "skyward"  # the user that every image has
ACCOUNT_ID = 10001  # its user and group id: neither a system account nor one that distributions assign to people
HOME = "/home/skyward"
WORK_DIR = "/work"  # where functions run in images that set no working directory

DEFAULT: Literal["default"] = "default"
_USER = re.compile(r"[A-Za-z0-9_][\w.-]*(:[A-Za-z0-9_][\w.-]*)?", re.ASCII)
_CAPABILITY = re.compile(r"[A-Z]+(_[A-Z]+)*")


@dataclass(frozen=True, slots=True)
class Rights:
    """Permissions of the programs in a node's container.

    Attributes:
        user: name or number of the user that they run as, optionally with its group ("app", "1000", "1000:100"); None
            for the image's own, or an unprivileged one if the image sets none.
        privileges: capabilities that they can have, such as ("SYS_PTRACE",): root has them, other users obtain them
            through programs installed for that purpose (sudo). None by default, and then no program can gain any.
            "default" for the engine's default set.

    Raises:
        ConfigError: a value is wrong.
    """

    user: str | None = None
    privileges: tuple[str, ...] | Literal["default"] = ()

    @classmethod
    def of(cls, provider: str, user: object, privileges: object) -> Rights:
        """Return the rights that a caller of a provider's class asks for; `provider` is the class name, for errors."""
        if user is not None and not (isinstance(user, str) and _USER.fullmatch(user)):
            raise ConfigError(
                f"{provider}: user is a string, the name or number of a user in the image, with its group if wanted "
                f"('app', '1000:100'); found {user!r}."
            )
        return cls(user, _privileges(provider, privileges))


def _privileges(provider: str, given: object) -> tuple[str, ...] | Literal["default"]:
    if given == DEFAULT:
        return DEFAULT
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(each, str) for each in given):
        raise ConfigError(
            f"{provider}: privileges is a list of capabilities, such as ['SYS_PTRACE'], or 'default' for those that "
            f"the engine gives by itself; found {given!r}."
        )
    names = dict.fromkeys(each.upper().removeprefix("CAP_") for each in given)
    for name in names:
        if not _CAPABILITY.fullmatch(name):
            raise ConfigError(f"{provider}: privileges names {name!r}, which is not a capability of Linux.")
    return tuple(names)
