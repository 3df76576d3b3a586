"""How a host is, by what its watchdog and its engine say of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from skyward.errors import EngineError, EngineMissingError, SkywardError
from skyward.nodes.ssh_host import Machine
from skyward.ssh.preflight import HEADINGS, HostReport, as_row, findings_of, host_report_of
from skyward.ssh.watchdog import Facts
from tests.unit.providers.test_checks import READY

ABOUT = {"ServerVersion": "26.1.5", "OSType": "linux", "Architecture": "x86_64", "NCPU": 8, "MemTotal": 16 * 10**9}


@dataclass
class FakeMachine:
    """A machine whose watchdog and engine have said this."""

    facts: Facts
    about: Mapping[str, Any] | SkywardError
    free: int | None = 50 * 10**9
    name: str = "gpu1"

    @property
    def info(self) -> Mapping[str, Any]:
        if isinstance(self.about, SkywardError):
            raise self.about
        return self.about

    def free_bytes(self) -> int | None:
        return self.free


def condition(
    facts: Facts, about: Mapping[str, Any] | SkywardError = ABOUT, free: int | None = 50 * 10**9
) -> HostReport:
    return host_report_of(cast(Machine, FakeMachine(facts, about, free)))


def test_a_host_that_is_well() -> None:
    """Everything there is to know, and nothing wrong; as a row, and as JSON."""
    found = condition(READY)
    assert found.findings == ()
    row = dict(zip(HEADINGS, as_row(found), strict=True))
    assert (row["HOST"], row["ENGINE"]) == ("gpu1", "26.1.5")
    assert row["PLATFORM"] == "linux/amd64"
    assert row["GPUS"] == "4 x NVIDIA A100-SXM4-40GB"
    assert row["DRIVER"] == "535.104.05"
    assert (row["DISK FREE"], row["CLOCK"], row["READY"]) == ("50 GB", "+0 s", "yes")
    assert json.loads(json.dumps(found.document))["driver"] == "535.104.05"


def test_an_error_is_a_finding_of_its_kind() -> None:
    """An old engine says so in its own words; what is no engine's is the connection's."""
    errors = (EngineError("too old"), EngineMissingError("no answer"), SkywardError("no route"))
    (old,), (missing,), (route,) = (findings_of("a", error) for error in errors)
    assert (old.what, old.text, missing.what, route.what) == ("engine", "too old", "engine", "ssh")
    assert "Start Docker there" in missing.text
