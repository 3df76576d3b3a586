"""Ways into nodes that are refused, each with its reason."""

from __future__ import annotations

from typing import Any

import pytest

import skyward as sky
from skyward.errors import ProviderError
from skyward.model.resource import Resource
from skyward.providers.base import Provider


def node(**more: Any) -> Resource:
    about: Any = {"pool": "0badcafe", "node": 0, "name": "skyward-0badcafe-0", "state": "running", "user": "", **more}
    found: Resource = about
    return found


class Closed(sky.Docker):
    """A provider that does not say how to enter its nodes."""

    enter = Provider.enter


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        (sky.Local(), "Pool 0badcafe has ended."),
        (sky.AWS("eu-central-1"), "The keys of pool 0badcafe are not here: .* Run this command there."),
        (sky.SSH("gpu1"), r"Host gpu9 of skyward-0badcafe-0 is not one of \['gpu1'\]."),
        (Closed(), r"sky.Closed has no way into a node for another process \(skyward-0badcafe-0\)."),
    ],
)
def test_a_node_without_a_way_in_is_refused(provider: Provider, message: str) -> None:
    """Nobody is asked for it."""
    with pytest.raises(ProviderError, match=message):
        provider.enter(node(host="gpu9", pid=1))
