"""The site's settings for a build, as one shell script that each step reads from a secret mount.

It contains the site's CA bundle, package sources with their credentials, mirrors and time limits. BuildKit keeps the
value of a secret out of layers, history and cache keys; the script writes only below a tmpfs.

The trusted CA certificates follow one rule for builds and registries: those of the first of `SSL_CERT_FILE`,
`REQUESTS_CA_BUNDLE`, `PIP_CERT`, `CURL_CA_BUNDLE` and pip's option `cert` that is set; else the system's own bundle.
Each names a file of certificates in PEM form, or a directory of such files.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from skyward.builder.folders import home as home_folder
from skyward.builder.site.indexes import (
    PYTHON_MIRROR,
    Indexes,
    folder_of,
    host_indexes,
    is_public,
    mirrors,
    pip_option,
    python_builds,
    with_password,
)
from skyward.errors import ConfigError
from skyward.image import Plan
from skyward.image.lock import Sources, index_id
from skyward.model.image import Image

_DEFAULT = "default"  # key in the site's map: used if no index is named
_PLACE = "/run/skyward"
_MAX_SECRET = 500 * 1024  # BuildKit's limit
CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE")
_CERTIFICATE = re.compile(
    r"-----BEGIN (?:TRUSTED )?CERTIFICATE-----.+?-----END (?:TRUSTED )?CERTIFICATE-----", re.DOTALL
)
_log = logging.getLogger(__name__)
_said: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The settings of this machine that builds need.

    Attributes:
        ca: the CA certificates to trust (PEM); empty for those of the base image.
        indexes: package sources.
        mirrors: pairs of an index URL and its replacement.
        netrc: file of logins by host (see netrc(5)); only those of package sources are used.
        python: uv's sources of Python itself, by the names of its variables.
        timeout_s: how long a package download may be silent; None for the tools' own limit.
    """

    ca: str = ""
    indexes: Indexes = field(default_factory=Indexes)
    mirrors: tuple[tuple[str, str], ...] = ()
    netrc: Path | None = None
    python: Mapping[str, str] = field(default_factory=dict)
    timeout_s: int | None = None


def read_site(environ: Mapping[str, str] = os.environ, home: Path | None = None, folder: Path | None = None) -> Site:
    """Read the site from this machine's environment and configuration files.

    Raises:
        ConfigError: a setting names a file that is missing or unreadable; a keyring does not answer.
    """
    home = home or home_folder()
    timeout = (
        environ.get("UV_HTTP_TIMEOUT") or pip_option("timeout", environ, home) or environ.get("PIP_DEFAULT_TIMEOUT")
    )
    bundle = ca_bundle(environ, home)
    indexes, mapped = host_indexes(environ, home), mirrors(environ, folder or Path.cwd())
    if indexes.keyring:
        indexes, mapped = _with_passwords(indexes), {url: with_password(used) for url, used in mapped.items()}
    return Site(
        ca=certificates(bundle.path, bundle.origin) if bundle else "",
        indexes=replace(indexes, default=indexes.default or mapped.pop(_DEFAULT, None)),
        mirrors=tuple(sorted(mapped.items())),
        netrc=Path(environ.get("NETRC") or home / ".netrc"),
        python=python_builds(environ, home),
        timeout_s=int(float(timeout)) if timeout and re.fullmatch(r"\d+(\.\d+)?", timeout) else None,
    )


def _with_passwords(indexes: Indexes) -> Indexes:
    return replace(
        indexes,
        default=indexes.default and with_password(indexes.default),
        extra=tuple(map(with_password, indexes.extra)),
        find_links=tuple(map(with_password, indexes.find_links)),
    )


def without_folders(site: Site) -> Site:
    """Return the site for a build on another machine, which cannot reach the folders served on this one."""
    indexes = replace(
        site.indexes,
        default=next((source for source in [site.indexes.default] if source and folder_of(source) is None), None),
        extra=tuple(source for source in site.indexes.extra if folder_of(source) is None),
        find_links=tuple(source for source in site.indexes.find_links if folder_of(source) is None),
    )
    return replace(
        site,
        indexes=indexes,
        mirrors=tuple(m for m in site.mirrors if folder_of(m[1]) is None),
        python={name: value for name, value in site.python.items() if name != PYTHON_MIRROR or not folder_of(value)},
    )


def with_sources(site: Site, sources: Sources) -> Site:
    """Return the site with the indexes of requirements files, which are asked first. PyPI stays last.

    A file that names PyPI means the public packages, for which a site may have a mirror.
    """
    own = site.indexes
    named = [source for source in (*sources.extra, sources.default) if source and not is_public(source)]
    is_replaced = sources.default and not any(map(is_public, (*sources.extra, sources.default)))
    default = sources.default if is_replaced else own.default
    extra = (*(source for source in named if source != default), *own.extra)
    links = (*own.find_links, *sources.find_links)
    return replace(site, indexes=replace(own, default=default, extra=tuple(dict.fromkeys(extra)), find_links=links))


@dataclass(frozen=True, slots=True, kw_only=True)
class UvSettings:
    """The site's settings for package tools, as files to write and variables to set.

    Attributes:
        files: texts by file name.
        variables: names of these files by environment variable.
        more: further environment variables.
        scoped: URL at this site for each index that the image names, by its URL.
    """

    files: dict[str, str]
    variables: dict[str, str]
    more: dict[str, str]
    scoped: dict[str, str]


def uv_settings(site: Site, image: Image, serve: Callable[[Path], str]) -> UvSettings:
    """Return the settings of uv and pip; `serve` returns the URLs of local folders.

    Raises:
        ConfigError: a mirror is a folder that does not exist.
    """
    address = partial(_address, dict(site.mirrors), serve)
    files = {"uv.toml": _uv_toml(site.indexes, address), "pip.conf": _pip_conf(site.indexes, address)}
    variables = {"UV_CONFIG_FILE": "uv.toml", "PIP_CONFIG_FILE": "pip.conf"}
    if site.ca:
        files["ca.pem"] = site.ca
        names = (*CA_VARIABLES, "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "AWS_CA_BUNDLE")
        variables |= dict.fromkeys(names, "ca.pem")
    scoped = {index.url: address(index.url) for index in image.pip_indexes}
    python = {name: address(value) if name == PYTHON_MIRROR else value for name, value in site.python.items()}
    if logins := _logins(site.netrc, [*files.values(), *scoped.values(), *python.values()]):
        files["netrc"] = logins
        variables["NETRC"] = "netrc"
    more = python
    if site.indexes.insecure_hosts:  # the file is not read for scoped indexes
        more["UV_INSECURE_HOST"] = " ".join(site.indexes.insecure_hosts)
    if site.timeout_s:
        more |= dict.fromkeys(("UV_HTTP_TIMEOUT", "PIP_DEFAULT_TIMEOUT"), str(site.timeout_s))
    return UvSettings(files=files, variables=variables, more=more, scoped=scoped)


def site_script(site: Site, plan: Plan, serve: Callable[[Path], str]) -> str:
    """Return the script for a plan's build; `serve` returns the URLs that replace local folders.

    Raises:
        ConfigError: a mirror is a folder that does not exist, or the script exceeds the size limit of a secret.
    """
    settings = uv_settings(with_sources(site, plan.lock.sources) if plan.lock else site, plan.image, serve)
    files, variables = dict(settings.files), dict(settings.variables)
    if site.ca:
        files["apt.conf"] = f'Acquire::https::CAInfo "{_PLACE}/ca.pem";\n'
        variables["APT_CONFIG"] = "apt.conf"
    more = settings.more | {
        f"SKYWARD_INDEX_{index_id(url)}": used for url, used in settings.scoped.items() if url != used
    }
    lines = [f"export {name}={_PLACE}/{file}" for name, file in variables.items()]
    lines += [f"cat > {_PLACE}/{name} <<'SKYWARD_END'\n{text.rstrip()}\nSKYWARD_END" for name, text in files.items()]
    # folders are served on the loopback interface, which proxies do not reach
    lines += [f'export {name}="127.0.0.1,localhost${{{name}:+,${name}}}"' for name in ("NO_PROXY", "no_proxy")]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in more.items()]
    script = "\n".join(lines) + "\n"
    size = len(script.encode())
    if size > _MAX_SECRET:
        raise ConfigError(
            f"The CA bundle and index settings of this machine come to {size >> 10} KB; a build takes at most "
            f"{_MAX_SECRET >> 10} KB. Point SSL_CERT_FILE to a bundle with fewer certificates."
        )
    return script


def _address(mirrors: Mapping[str, str], serve: Callable[[Path], str], source: str) -> str:
    """Return the URL at which builds find a package source: that of its mirror, or of a served folder."""
    mirror = mirrors.get(source.rstrip("/"), source)
    folder = folder_of(mirror)
    if folder is None:
        return mirror
    if mirror != source and not folder.is_dir():
        raise ConfigError(
            f"The site's index map replaces {source} by the folder {folder}, which does not exist. Correct "
            "SKYWARD_INDEXES or [tool.skyward.indexes]."
        )
    return serve(folder)


def _uv_toml(indexes: Indexes, address: Callable[[str], str]) -> str:
    import tomli_w

    settings: dict[str, Any] = {}
    if indexes.find_links:
        settings["find-links"] = [address(source) for source in indexes.find_links]
    if indexes.insecure_hosts:
        settings["allow-insecure-host"] = list(indexes.insecure_hosts)
    if indexes.no_index:
        settings["no-index"] = True
    if indexes.strategy:
        settings["index-strategy"] = indexes.strategy
    listed: list[dict[str, Any]] = [{"url": address(source)} for source in indexes.extra]
    if indexes.default:
        listed.append({"url": address(indexes.default), "default": True})
    if listed:
        settings["index"] = listed
    return tomli_w.dumps(settings)


def _pip_conf(indexes: Indexes, address: Callable[[str], str]) -> str:
    lines = ["[global]"]
    if indexes.default:
        lines.append(f"index-url = {address(indexes.default)}")
    lists = {"extra-index-url": indexes.extra, "find-links": indexes.find_links}
    for name, sources in lists.items():
        if sources:
            lines.append(f"{name} = {' '.join(address(source) for source in sources)}")
    if indexes.insecure_hosts:
        lines.append(f"trusted-host = {' '.join(indexes.insecure_hosts)}")
    if indexes.no_index:
        lines.append("no-index = true")
    return "\n".join(lines)


def _logins(file: Path | None, texts: Iterable[str]) -> str:
    """Return netrc entries for the hosts in the URLs of these texts."""
    if file is None or not file.is_file():
        return ""
    try:
        known = netrc(str(file))
    except (NetrcParseError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}.") from None
    hosts = {urlsplit(url).hostname for text in texts for url in re.findall(r"https?://[^\s\"']+", text)}
    found = [(host, known.hosts[host]) for host in sorted(filter(None, hosts)) if host in known.hosts]
    return "".join(f"machine {host} login {login} password {password}\n" for host, (login, _, password) in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Certificates to trust.

    Attributes:
        path: the file or directory that contains them.
        origin: the setting that names it, such as "SSL_CERT_FILE".
        unused: other settings that name different certificates, as text; "" if there are none.
    """

    path: Path
    origin: str
    unused: str = ""

    def __str__(self) -> str:
        """Describe for messages the file, the setting that names it, and the unused settings."""
        return f"{self.path} (named by {self.origin}{f'; not used: {self.unused}' if self.unused else ''})"


def ca_bundle(environ: Mapping[str, str] = os.environ, home: Path | None = None) -> Bundle | None:
    """Return the trusted bundle; None if nothing is set and the system has none. Logs once which settings are not used.

    Raises:
        ConfigError: the first setting names nothing readable, or nothing that contains a certificate.
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
    """Return the certificates of a bundle, without the comments between them.

    Raises:
        ConfigError: it cannot be read, or contains none.
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
    # directories list each several times: by name, by the hash that OpenSSL looks for, and in a combined file
    found = (block for path in sorted(bundle.iterdir()) if path.is_file() for block in _blocks(path))
    return list(dict.fromkeys(found))


def _differs(text: str, other: Path) -> bool:
    try:
        return "\n".join(_blocks(other)) + "\n" != text
    except OSError:  # an unused file that cannot be read is not an error, but it is reported as unused
        return True
