"""How a host is: as a row, as JSON, and what an error says of it."""

from __future__ import annotations

import json

from skyward.errors import EngineError, EngineMissingError, SkywardError
from skyward.ssh.preflight import HEADINGS, HostReport, as_row, findings_of

WELL = HostReport(
    host="gpu1",
    engine="26.1.5",
    platform="linux/amd64",
    disk_gb=50.0,
    gpus=("NVIDIA A100-SXM4-40GB",) * 4,
    driver="535.104.05",
    ahead_s=0.0,
)


def test_a_host_that_is_well() -> None:
    """Everything there is to know, as a row, and as JSON; what is not known is a dash."""
    row = dict(zip(HEADINGS, as_row(WELL), strict=True))
    assert (row["HOST"], row["ENGINE"], row["PLATFORM"]) == ("gpu1", "26.1.5", "linux/amd64")
    assert (row["GPUS"], row["DRIVER"], row["CPUS"]) == ("4 x NVIDIA A100-SXM4-40GB", "535.104.05", "-")
    assert (row["DISK FREE"], row["CLOCK"], row["READY"]) == ("50 GB", "+0 s", "yes")
    assert json.loads(json.dumps(WELL.document))["driver"] == "535.104.05"


def test_an_error_is_a_finding_of_its_kind() -> None:
    """An old engine says so in its own words; what is no engine's is the connection's."""
    errors = (EngineError("too old"), EngineMissingError("no answer"), SkywardError("no route"))
    (old,), (missing,), (route,) = (findings_of("a", error) for error in errors)
    assert (old.what, old.text, missing.what, route.what) == ("engine", "too old", "engine", "ssh")
    assert "Start Docker there" in missing.text
