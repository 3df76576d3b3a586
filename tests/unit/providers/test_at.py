"""Places as `--at` names them: each stands for one provider, and providers know their own."""

from __future__ import annotations

from pathlib import Path

import pytest

import skyward as sky
from skyward.errors import ConfigError
from skyward.providers.at import places_of, provider_at


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("ssh://ann@gpu1:2222", sky.SSH),
        ("aws", sky.AWS),
        ("aws://eu-west-1", sky.AWS),
        ("gcp://my-project/us-central1", sky.GCP),
        ("slurm", sky.Slurm),
        ("slurm://ann@login", sky.Slurm),
        ("kubernetes://team", sky.Kubernetes),
        ("kubernetes://team?context=kube", sky.Kubernetes),
    ],
)
def test_a_place_stands_for_a_provider_that_knows_it(place: str, kind: type[object]) -> None:
    """So that records lead back to where a pool was opened."""
    found = provider_at(place)

    assert isinstance(found, kind)
    assert places_of(found) == (place,)


def test_files_for_ssh_are_part_of_a_place(tmp_path: Path) -> None:
    """The key, and the host keys to trust."""
    for name in ("key", "known hosts"):
        (tmp_path / name).touch()
    given = sky.SSH("gpu1", "ann@gpu2", key=tmp_path / "key", known_hosts=tmp_path / "known hosts")

    places = places_of(given)

    assert [place.partition("?")[0] for place in places] == ["ssh://gpu1", "ssh://ann@gpu2"]
    assert [provider_at(place).hosts[0] for place in places] == list(given.hosts)  # type: ignore[attr-defined]


def test_providers_of_this_machine_have_no_place() -> None:
    """Commands look there in any case; of several providers all are recorded."""
    assert places_of(sky.Docker()) == places_of(sky.Local()) == ()
    assert places_of(sky.providers.Fallback((sky.SSH("gpu1"), sky.AWS()), "first")) == ("ssh://gpu1", "aws")


@pytest.mark.parametrize("place", ["nowhere", "ssh://", "ssh://gpu1?keys=x", "aws://a?b=c", "-"])
def test_what_is_no_place_is_refused(place: str) -> None:
    """As a mistake of the command line."""
    with pytest.raises(ConfigError):
        provider_at(place)
