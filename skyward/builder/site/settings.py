"""The site's settings, for uv here and for builds: a script that each step reads from a secret mount.

It contains the site's CA bundle, package sources with their credentials, mirrors and time limits. BuildKit keeps the
value of a secret out of layers, history and cache keys; the script writes only below a tmpfs. Folders of this machine
are not in it: the files that a build needs of them are placed into its context (`place_files`).

The trusted CA certificates are those of the first of `SSL_CERT_FILE`, `REQUESTS_CA_BUNDLE`, `PIP_CERT`,
`CURL_CA_BUNDLE` and pip's option `cert` that is set; else the system's own. Each names a file of certificates in PEM
form, or a directory of such files.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from skyward.builder.folders import home as home_folder
from skyward.builder.site.indexes import (
    Indexes,
    folder_of,
    host_indexes,
    is_public,
    mirrors,
    passed_on,
    pip_option,
    with_password,
)
from skyward.errors import ConfigError
from skyward.image import Plan
from skyward.image.lock import Sources, index_id
from skyward.model.image import Image, package_name

_PLACE = "/run/skyward"
_NO_INDEX = "none"  # stands for an index whose mirror is a folder
_ENDINGS = (".whl", ".tar.gz", ".zip")
_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE")
_CERTIFICATE = re.compile(
    r"-----BEGIN (?:TRUSTED )?CERTIFICATE-----.+?-----END (?:TRUSTED )?CERTIFICATE-----", re.DOTALL
)

_PIN = re.compile(r"^(\S+?)==(\S+)((?:[\s\\]+--hash=\S+)*)", re.MULTILINE)  # of a requirements file


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The settings of this machine that builds need.

    Attributes:
        ca: the CA certificates to trust (PEM); empty for those of the base image.
        indexes: package sources.
        mirrors: pairs of an index URL and its replacement.
        netrc: file of logins by host (see netrc(5)); only those of package sources are used.
        variables: further variables of package tools, such as time limits.
    """

    ca: str = ""
    indexes: Indexes = field(default_factory=Indexes)
    mirrors: tuple[tuple[str, str], ...] = ()
    netrc: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    def place(self, index: str) -> str:
        """Return the address of an index at this site: that of its mirror, if there is one."""
        return dict(self.mirrors).get(index.rstrip("/"), index)

    @property
    def sources(self) -> Iterator[str]:
        """All its package sources."""
        default = [self.indexes.default] if self.indexes.default else []
        yield from map(self.place, (*self.indexes.extra, *default))
        yield from (*self.indexes.find_links, *(mirror for _, mirror in self.mirrors))


def read_site(environ: Mapping[str, str] = os.environ, home: Path | None = None) -> Site:
    """Read the site from this machine's environment and configuration files.

    Raises:
        ConfigError: a setting names a file that is missing or unreadable; a keyring does not answer.
    """
    home = home or home_folder()
    indexes, mapped = host_indexes(environ, home), mirrors(environ)
    if indexes.keyring:
        known = indexes.default and with_password(indexes.default)
        indexes = replace(indexes, default=known, extra=tuple(map(with_password, indexes.extra)))
        mapped = {url: with_password(used) for url, used in mapped.items()}
    # the key "default" in the site's map is used if no index is named
    return Site(
        ca=_certificates(environ, home),
        indexes=replace(indexes, default=indexes.default or mapped.pop("default", None)),
        mirrors=tuple(sorted(mapped.items())),
        netrc=Path(environ.get("NETRC") or home / ".netrc"),
        variables=passed_on(environ, home),
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
        scoped: for each index that the image names, by its URL, where uv finds it at this site.
    """

    files: dict[str, str]
    variables: dict[str, str]
    more: dict[str, str]
    scoped: dict[str, dict[str, str]]


def uv_settings(site: Site, image: Image, *, folders: bool = True) -> UvSettings:
    """Return the settings of uv and pip, with or without the folders of this machine."""
    indexes = site.indexes
    default = site.place(indexes.default) if indexes.default else None
    extra, links = tuple(map(site.place, indexes.extra)), indexes.find_links
    if not folders:
        is_folder = default is not None and folder_of(default) is not None
        extra, links = (tuple(each for each in given if folder_of(each) is None) for given in (extra, links))
        default, indexes = (None, replace(indexes, no_index=True)) if is_folder and not extra else (default, indexes)
        default = None if is_folder else default
    indexes = replace(indexes, default=default, extra=extra, find_links=links)
    files = {"uv.toml": _uv_toml(indexes), "pip.conf": _pip_conf(indexes)}
    variables = {"UV_CONFIG_FILE": "uv.toml", "PIP_CONFIG_FILE": "pip.conf"}
    if site.ca:
        files["ca.pem"] = site.ca
        names = (*_CA_VARIABLES, "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "AWS_CA_BUNDLE")
        variables |= dict.fromkeys(names, "ca.pem")
    scoped = {index.url: _index(site.place(index.url)) for index in image.pip_indexes}
    urls = [each["url"] for each in scoped.values()]
    if logins := _logins(site.netrc, [*files.values(), *urls, *site.variables.values()]):
        files["netrc"] = logins
        variables["NETRC"] = "netrc"
    more = dict(site.variables)
    if indexes.insecure_hosts:  # the file is not read for scoped indexes
        more["UV_INSECURE_HOST"] = " ".join(indexes.insecure_hosts)
    return UvSettings(files=files, variables=variables, more=more, scoped=scoped)


def site_script(site: Site, plan: Plan) -> str:
    """Return the script for a plan's build."""
    site = with_sources(site, plan.lock.sources) if plan.lock else site
    settings = uv_settings(site, plan.image, folders=False)
    files, variables = dict(settings.files), dict(settings.variables)
    if site.ca:
        files["apt.conf"] = f'Acquire::https::CAInfo "{_PLACE}/ca.pem";\n'
        variables["APT_CONFIG"] = "apt.conf"
    moved = {url: used["url"] for url, used in settings.scoped.items() if url != used["url"]}
    places = {url: used if folder_of(used) is None else _NO_INDEX for url, used in moved.items()}
    more = settings.more | {f"SKYWARD_INDEX_{index_id(url)}": used for url, used in places.items()}
    lines = [f"export {name}={_PLACE}/{file}" for name, file in variables.items()]
    lines += [f"cat > {_PLACE}/{name} <<'SKYWARD_END'\n{text.rstrip()}\nSKYWARD_END" for name, text in files.items()]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in more.items()]
    return "\n".join(lines) + "\n"


def place_files(site: Site, plan: Plan, requirements: Path) -> None:
    """Put the package files that a build installs from folders of this machine beside its requirement files.

    They are hard links where possible: wheels of frameworks have hundreds of megabytes.
    """
    from skyward.builder.files.copied import sha256_of

    site = with_sources(site, plan.lock.sources) if plan.lock else site
    folders = [folder for source in dict.fromkeys(site.sources) if (folder := folder_of(source))]
    loose = [file for folder in folders for file in _package_files(folder)]
    for file in requirements.rglob("*.txt"):
        for name, version, hashes in _PIN.findall(file.read_text(encoding="utf-8")):
            start = package_name(f"{name}-{version}-")
            for found in (*loose, *(each for folder in folders for each in _listed(folder / name))):
                target = file.parent / found.name
                if package_name(found.name).startswith(start) and sha256_of(found) in hashes and not target.exists():
                    _link(found, target)


def _package_files(folder: Path) -> list[Path]:
    """Return the wheels and source packages in a folder."""
    with suppress(OSError):
        return [path for path in folder.iterdir() if path.name.endswith(_ENDINGS)]
    return []


def _listed(folder: Path) -> list[Path]:
    """Return the files of one package in a folder that is an index (PEP 503): those in it, and those it links to."""
    page = folder / "index.html"
    links = re.findall(r'href="([^"#]+)', page.read_text(encoding="utf-8")) if page.is_file() else []
    found = [Path(os.path.normpath(folder / unquote(link.removeprefix("file://")))) for link in links]
    return _package_files(folder) + [path for path in found if path.name.endswith(_ENDINGS) and path.is_file()]


def _link(source: Path, target: Path) -> None:
    usual = source.stat().st_mode & 0o777 == 0o644  # a build context has these modes; those of a link are the file's
    with suppress(OSError):
        if usual:
            target.hardlink_to(source.resolve())
            return
    shutil.copyfile(source, target)


def _index(source: str) -> dict[str, str]:
    """Return uv's table of an index: a URL, or a folder with files or with one folder for each package."""
    folder = folder_of(source)
    if folder is None:
        return {"url": source}
    return {"url": folder.as_uri()} | ({"format": "flat"} if _package_files(folder) else {})


def _uv_toml(indexes: Indexes) -> str:
    import tomli_w

    links = [each for each in indexes.find_links if (folder := folder_of(each)) is None or folder.is_dir()]
    settings: dict[str, Any] = {
        "find-links": links,
        "allow-insecure-host": list(indexes.insecure_hosts),
        "no-index": indexes.no_index,
        "index-strategy": indexes.strategy,
        "index": [_index(each) for each in indexes.extra],
    }
    if indexes.default:
        settings["index"].append(_index(indexes.default) | {"default": True})
    return tomli_w.dumps({name: value for name, value in settings.items() if value})


def _pip_conf(indexes: Indexes) -> str:
    settings = {
        "index-url": indexes.default or "",
        "extra-index-url": " ".join(indexes.extra),
        "find-links": " ".join(indexes.find_links),
        "trusted-host": " ".join(indexes.insecure_hosts),
        "no-index": "true" if indexes.no_index else "",
    }
    return "\n".join(["[global]", *(f"{name} = {value}" for name, value in settings.items() if value)])


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


def _certificates(environ: Mapping[str, str], home: Path) -> str:
    """Return the trusted certificates, without the comments between them; "" if nothing is set and the system has none.

    Raises:
        ConfigError: they cannot be read, or there are none in the place that is set.
    """
    named = {name: environ.get(name) for name in _CA_VARIABLES} | {
        "pip's option cert": pip_option("cert", environ, home)
    }
    system = ssl.get_default_verify_paths()
    places = {**named, "the system's OpenSSL": system.cafile or system.capath}
    origin, place = next(((origin, place) for origin, place in places.items() if place), ("", ""))
    if not place:
        return ""
    bundle = Path(place)
    try:
        # directories list each several times: by name, by the hash that OpenSSL looks for, and in a combined file
        files = [path for path in sorted(bundle.iterdir()) if path.is_file()] if bundle.is_dir() else [bundle]
        texts = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    except OSError as error:
        raise ConfigError(f"{origin} names {bundle}, which cannot be read: {error.strerror}.") from None
    blocks = dict.fromkeys(block for text in texts for block in _CERTIFICATE.findall(text))
    if not blocks:
        raise ConfigError(f"The CA bundle {bundle} ({origin}) has no certificate in PEM form.")
    return "\n".join(blocks) + "\n"
