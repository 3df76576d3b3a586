from __future__ import annotations

import pytest

from skyward.errors import ConfigError
from skyward.model.instance import ENV_VAR
from skyward.runtime.ranks import instance_info


def test_a_broken_document_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A COMPUTE_POOL set by hand is an error that names the variable."""
    monkeypatch.setenv(ENV_VAR, "node 1")
    with pytest.raises(ConfigError, match="COMPUTE_POOL does not describe a place"):
        instance_info()
