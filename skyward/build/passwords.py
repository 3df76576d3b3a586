"""Passwords of package indexes from this machine's keyring, for those whose address names a user and no password.

As uv and pip do it with their provider "subprocess": `keyring get ADDRESS USER`, then `keyring get HOST USER`. Asked
here, since the steps of a build have no keyring.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from urllib.parse import quote, unquote, urlsplit

from skyward.errors import ConfigError

_LIMIT_S = 60  # a keyring may ask its owner for leave


def with_password(url: str) -> str:
    """A URL with the password that the keyring has for its user; as it is if it names none, or has a password.

    Raises:
        ConfigError: there is no keyring command, or it does not answer.
    """
    parts = urlsplit(url)
    if not parts.username or parts.password is not None or not parts.hostname:
        return url
    user, place = unquote(parts.username), parts.netloc.rpartition("@")[2]
    for service in (parts._replace(netloc=place).geturl(), place):
        if password := _ask(service, user):
            login = f"{parts.username}:{quote(password, safe='')}"
            return parts._replace(netloc=f"{login}@{place}").geturl()
    return url


def _ask(service: str, user: str) -> str:
    """What the keyring has; "" for nothing."""
    command = shutil.which("keyring")
    words = [*([command] if command else [sys.executable, "-m", "keyring"]), "get", service, user]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_LIMIT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = "it did not answer" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        raise ConfigError(f"The keyring was to be asked for the password of {user!r} at {service}: {reason}.") from None
    if "No module named" in done.stderr:
        raise ConfigError(
            f"This machine's settings of pip or uv take the password of {user!r} at {service} from a keyring, but "
            "there is no `keyring` command. Install it, or put the password into ~/.netrc."
        )
    return done.stdout.rstrip("\n") if done.returncode == 0 else ""
