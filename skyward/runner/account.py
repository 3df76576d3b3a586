"""The user of a node's programs, where the engine was not told of their privileges or does not know their user."""

from __future__ import annotations

import ctypes
import os
import pwd

from skyward.model.rights import ACCOUNT, HOME

_PR_SET_NO_NEW_PRIVS = 38


def gain_no_privileges() -> None:
    """Let neither this process nor any it starts gain privileges by the programs it runs: prctl(2), for good.

    Raises:
        OSError: the kernel refuses.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS) failed")


def account_variables() -> dict[str, str]:
    """Name and home for a user that the image has only a number for, which many libraries look up; else nothing."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return {"HOME": HOME, "USER": ACCOUNT, "LOGNAME": ACCOUNT}
    return {}
