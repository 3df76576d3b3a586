from __future__ import annotations

import pytest

from skyward.errors import ConfigError
from skyward.model.instance import ENV_VAR, InstanceInfo
from skyward.runtime.ranks import instance_info
from tests.unit.runtime.conftest import Place


def test_outside_a_pool_there_is_no_info() -> None:
    """No pool, no place: None rather than an error."""
    assert instance_info() is None


def test_inside_a_pool_it_is_the_place_the_pool_gave(place: Place) -> None:
    """The value read equals the one the pool wrote, also through the class."""
    info = place(1, 3)
    assert instance_info() == info == InstanceInfo.current()


def test_a_broken_document_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A COMPUTE_POOL set by hand is an error that names the variable."""
    monkeypatch.setenv(ENV_VAR, "node 1")
    with pytest.raises(ConfigError, match="COMPUTE_POOL is not JSON"):
        instance_info()
