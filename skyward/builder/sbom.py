"""The bill of materials of an image (SPDX): its lock, local packages, base, and the packages that dpkg lists.

The format is SPDX 2.3 in JSON (https://spdx.github.io/spdx-spec/v2.3/). The same image results in the same bytes: times
are those of the image, and the document's name is the image's identity. Licences are not examined.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from skyward._version import __version__
from skyward.builder.folders import cache_path, read, write
from skyward.builder.store import EngineImages
from skyward.image import TIME, Package, Plan

MEDIA_TYPE = "application/spdx+json"
_UNKNOWN = "NOASSERTION"
_IMAGE = "SPDXRef-Image"


def sbom(plan: Plan, image: str, store: EngineImages) -> bytes:
    """Create the document for an image on an engine.

    Args:
        plan: the plan it was built from.
        image: its name on the engine.
        store: the images of that engine.

    Raises:
        EngineError: the engine refuses, or does not have the image.
    """
    with store.files(image) as files:
        status, system = (files.read(path) or b"" for path in ("/var/lib/dpkg/status", "/etc/os-release"))
    base = _base(plan)
    packages = [
        _package(_IMAGE, "skyward-image", plan.tag.rpartition(":")[2], purpose="CONTAINER"),
        base,
        _package("SPDXRef-Runner", "skyward", __version__, purl=f"pkg:pypi/skyward@{__version__}"),
        *(_locked(package) for package in (plan.lock.packages if plan.lock else ())),
        *_local(plan),
        *_debian(status.decode(errors="replace"), system.decode(errors="replace")),
    ]
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": plan.tag,
        "documentNamespace": f"https://spdx.org/spdxdocs/skyward-{plan.identity}",
        "creationInfo": {
            "created": datetime.fromtimestamp(TIME, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": [f"Tool: skyward-{__version__}"],
        },
        "packages": packages,
        "relationships": [
            _related("SPDXRef-DOCUMENT", "DESCRIBES", _IMAGE),
            _related(_IMAGE, "DESCENDANT_OF", base["SPDXID"]),
            *(_related(_IMAGE, "CONTAINS", each["SPDXID"]) for each in packages[2:]),
        ],
    }
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def keep(tag: str, document: bytes) -> None:
    """Store a document on this machine, for `kept`."""
    write(_file(tag), document.decode())


def kept(tag: str) -> bytes | None:
    """Return the stored document of an image built here; None if there is none."""
    text = read(_file(tag))
    return None if text is None else text.encode()


def _file(tag: str) -> Path:
    return cache_path("sboms", f"{tag.rpartition(':')[2]}.spdx.json")


def _package(
    ref: str, name: str, version: str = "", *, purl: str = "", purpose: str = "", **more: Any
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "SPDXID": ref,
        "name": name,
        **({"versionInfo": version} if version else {}),
        "downloadLocation": _UNKNOWN,
        "filesAnalyzed": False,
        "licenseConcluded": _UNKNOWN,
        "licenseDeclared": _UNKNOWN,
        "copyrightText": _UNKNOWN,
        **({"primaryPackagePurpose": purpose} if purpose else {}),
        **more,
    }
    if purl:
        reference = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}
        found["externalRefs"] = [reference]
    return found


def _base(plan: Plan) -> dict[str, Any]:
    if plan.base_build:
        made = plan.base_build.digest
        checksum = {"algorithm": "SHA256", "checksumValue": made}
        comment = "Built from a Dockerfile; the checksum is that of the Dockerfile and the files that it copies."
        return _package("SPDXRef-Base", plan.base, purpose="CONTAINER", checksums=[checksum], comment=comment)
    name, _, digest = plan.base.partition("@")
    digest = digest or dict(plan.inputs).get("base", "").strip('"')
    if not digest.startswith("sha256:"):
        return _package("SPDXRef-Base", name, purpose="CONTAINER")
    repository, _, short = name.rpartition("/")
    short, _, tag = short.partition(":")
    about = {"repository_url": f"{repository}/{short}" if repository else "", "tag": tag}
    query = "&".join(f"{key}={quote(value, safe='')}" for key, value in about.items() if value)
    return _package(
        "SPDXRef-Base",
        name,
        digest,
        purl=f"pkg:oci/{short}@{quote(digest, safe='')}" + (f"?{query}" if query else ""),
        purpose="CONTAINER",
        checksums=[{"algorithm": "SHA256", "checksumValue": digest.removeprefix("sha256:")}],
    )


def _locked(package: Package) -> dict[str, Any]:
    """Describe a package of the lock; if one of several files may be installed, with all their hashes."""
    name, exact, version = package.pin.partition("==")
    more: dict[str, Any] = {"checksums": [_checksum(each) for each in package.hashes]} if package.hashes else {}
    if len(package.hashes) > 1:
        more["comment"] = "The checksums are those of the files of this version that may be installed; one of them was."
    if exact:
        return _package(_ref("Python", package.name), name, version, purl=f"pkg:pypi/{package.name}@{version}", **more)
    url = package.pin.partition(" @ ")[2]
    kind = "vcs_url" if url.startswith("git+") else "download_url"
    more["downloadLocation"] = url
    purl = f"pkg:pypi/{package.name}?{kind}={quote(url, safe='')}"
    return _package(_ref("Python", package.name), package.name, purl=purl, **more)


def _local(plan: Plan) -> Iterator[dict[str, Any]]:
    for copied in plan.copied:
        if copied.target:
            name = copied.folder.rpartition("/")[2]
            checksum = {"algorithm": "SHA256", "checksumValue": copied.digest}
            comment = "From files of the machine that built the image; the checksum covers them all."
            yield _package(_ref("Local", name), name, checksums=[checksum], comment=comment)


def _debian(status: str, system: str) -> Iterator[dict[str, Any]]:
    """Yield the packages that dpkg has installed: those of the base, and those from `apt`."""
    about = dict(re.findall(r'^(ID|VERSION_ID)="?([^"\n]*)"?$', system, re.MULTILINE))
    vendor = about.get("ID", "debian")
    distro = f"&distro={vendor}-{about['VERSION_ID']}" if "VERSION_ID" in about else ""
    for block in status.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Architecture|Status): (.*)$", block, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed") and {"Package", "Version", "Architecture"} <= set(fields):
            name, version, architecture = fields["Package"], fields["Version"], fields["Architecture"]
            purl = f"pkg:deb/{vendor}/{quote(name)}@{quote(version, safe='')}?arch={architecture}{distro}"
            yield _package(_ref("Debian", f"{name}-{architecture}"), name, version, purl=purl)


def _checksum(text: str) -> dict[str, str]:
    algorithm, _, value = text.partition(":")
    return {"algorithm": algorithm.upper(), "checksumValue": value}


def _ref(kind: str, name: str) -> str:
    return f"SPDXRef-{kind}-{re.sub(r'[^A-Za-z0-9.-]', '-', name)}"


def _related(one: str, how: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": how, "relatedSpdxElement": other}
