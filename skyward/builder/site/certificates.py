"""The CA certificates to trust, by one rule for builds and for registries.

The first of these that is set: `SSL_CERT_FILE`, `REQUESTS_CA_BUNDLE`, `PIP_CERT`, `CURL_CA_BUNDLE`, pip's option
`cert`; else the system's own bundle. Each names a file of certificates in PEM form, or a directory of such files.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from skyward.builder.cache import home as home_folder
from skyward.builder.site.indexes import pip_option
from skyward.errors import ConfigError

CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE")
_CERTIFICATE = re.compile(
    r"-----BEGIN (?:TRUSTED )?CERTIFICATE-----.+?-----END (?:TRUSTED )?CERTIFICATE-----", re.DOTALL
)
_log = logging.getLogger(__name__)
_said: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Certificates to trust.

    Attributes:
        path: the file or directory they are in.
        origin: what named it, such as "SSL_CERT_FILE".
        unused: what else is set and names other certificates, in words; "" for nothing.
    """

    path: Path
    origin: str
    unused: str = ""

    def __str__(self) -> str:
        """For messages: the file, what named it, and what is not used."""
        return f"{self.path} (named by {self.origin}{f'; not used: {self.unused}' if self.unused else ''})"


def ca_bundle(environ: Mapping[str, str] = os.environ, home: Path | None = None) -> Bundle | None:
    """The bundle that is trusted; None where nothing is set and the system has none. Says once what else is set.

    Raises:
        ConfigError: the first that is set names nothing that can be read, or nothing with a certificate in it.
    """
    named = {name: environ[name] for name in CA_VARIABLES if environ.get(name)}
    cert = pip_option("cert", environ, home or home_folder())
    if cert and cert not in named.values():
        named["pip's option cert"] = cert
    if not named:
        system = ssl.get_default_verify_paths()
        place = system.cafile or system.capath
        return Bundle(path=Path(place), origin="the system's OpenSSL") if place else None
    (origin, file), *others = named.items()
    wanted = certificates(Path(file), origin)
    unused = ", ".join(f"{name}={other}" for name, other in others if _differs(wanted, Path(other)))
    if unused and unused not in _said:
        _said.add(unused)
        _log.warning("The CA certificates of %s=%s are trusted; those of %s are not used.", origin, file, unused)
    return Bundle(path=Path(file), origin=origin, unused=unused)


def certificates(bundle: Path, origin: str) -> str:
    """The certificates of a bundle, without the comments between them.

    Raises:
        ConfigError: it cannot be read, or holds none.
    """
    try:
        blocks = _blocks(bundle)
    except OSError as error:
        raise ConfigError(
            f"{origin} names {shlex.quote(str(bundle))} as CA bundle, which cannot be read: {error.strerror}. "
            "Correct or unset it."
        ) from None
    if not blocks:
        raise ConfigError(f"The CA bundle {bundle} holds no certificate in PEM form; {origin} names it.")
    return "\n".join(blocks) + "\n"


def _blocks(bundle: Path) -> list[str]:
    if not bundle.is_dir():
        return _CERTIFICATE.findall(bundle.read_text(encoding="utf-8", errors="replace"))
    # each is there several times: under its name, under the hash that OpenSSL looks for, in a file of all
    found = (block for path in sorted(bundle.iterdir()) if path.is_file() for block in _blocks(path))
    return list(dict.fromkeys(found))


def _differs(text: str, other: Path) -> bool:
    try:
        return "\n".join(_blocks(other)) + "\n" != text
    except OSError:  # it is not used, so that it cannot be read is no error; that it is not used is said
        return True
