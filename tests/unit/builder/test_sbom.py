"""The document on what an image consists of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from skyward.builder.sbom import sbom
from skyward.builder.store import EngineImages
from skyward.image import Lock, Package
from skyward.model.image import Image
from tests.unit.image.images import compiled

STATUS = """Package: libstdc++6
Status: install ok installed
Architecture: amd64
Version: 12.2.0-14+deb12u1
Description: GNU library
 Version: not this one

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""
FILES = {
    "/var/lib/dpkg/status": STATUS.encode(),
    "/etc/os-release": b'PRETTY_NAME="Debian"\nID=debian\nVERSION_ID="12"\n',
}


class Files:
    def read(self, path: str) -> bytes | None:
        return FILES.get(path)


class Store:
    @contextmanager
    def files(self, ref: str) -> Iterator[Files]:
        assert ref == "skyward:t"
        yield Files()


def _document() -> dict[str, Any]:
    plan = compiled(Image(pip=["six"]))
    packages = (
        Package(name="six", pin="six==1.17.0", hashes=("sha256:aa", "sha256:bb")),
        Package(name="mine", pin="mine @ git+https://git.example/mine@0123"),
    )
    plan = replace(plan, lock=Lock(packages), base="r.io/team/python:3.11@sha256:" + "c" * 64)
    store = cast(EngineImages, Store())
    document = sbom(plan, "skyward:t", store)
    assert document == sbom(plan, "skyward:t", store)
    return dict(json.loads(document), identity=plan.identity)


def test_what_is_in_an_image() -> None:
    """Locked packages with hashes, the base by its digest, Debian's packages; each with a purl, and in the image."""
    found = _document()

    assert found["spdxVersion"] == "SPDX-2.3"
    assert found["documentNamespace"].endswith(found["identity"])
    purls = {
        package["name"]: [r["referenceLocator"] for r in package.get("externalRefs", ())]
        for package in found["packages"]
    }
    assert purls["six"] == ["pkg:pypi/six@1.17.0"]
    assert purls["mine"] == ["pkg:pypi/mine?vcs_url=git%2Bhttps%3A%2F%2Fgit.example%2Fmine%400123"]
    assert purls["libstdc++6"] == ["pkg:deb/debian/libstdc%2B%2B6@12.2.0-14%2Bdeb12u1?arch=amd64&distro=debian-12"]
    (base,) = purls["r.io/team/python:3.11"]
    assert base == f"pkg:oci/python@sha256%3A{'c' * 64}?repository_url=r.io%2Fteam%2Fpython&tag=3.11"
    assert "gone" not in purls
    six = next(package for package in found["packages"] if package["name"] == "six")
    assert [each["checksumValue"] for each in six["checksums"]] == ["aa", "bb"]
    assert six["licenseDeclared"] == "NOASSERTION"
    ids = [package["SPDXID"] for package in found["packages"]]
    assert len(set(ids)) == len(ids)
    related = {each["relatedSpdxElement"] for each in found["relationships"]}
    assert related == set(ids)


def test_no_time_of_day() -> None:
    """The document's date is the image's own."""
    assert _document()["creationInfo"]["created"] == "1980-01-01T00:00:00Z"
