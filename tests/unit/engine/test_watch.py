"""The engine's events as `Watch` reads them: Docker's, and Podman's, which have other names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from skyward.engine.container import Ending, Watch


class Api:
    """Gives an engine's events of one container, of those names that it was asked for."""

    def __init__(self, *names: tuple[str, str]) -> None:
        self.names = names

    def events(self, *, decode: bool, filters: dict[str, Any]) -> Any:
        assert decode
        wanted = filters["event"]
        found = [shown for asked, shown in self.names if asked in wanted]

        class Stream:
            def __iter__(self) -> Iterator[dict[str, Any]]:
                for name in found:
                    yield {"Action": name, "Actor": {"ID": "c0ffee", "Attributes": {"exitCode": "137"}}}

            def close(self) -> None: ...

        return Stream()


@pytest.mark.parametrize(
    ("names", "oom"),
    [
        ([("oom", "oom"), ("die", "die"), ("destroy", "destroy")], True),
        ([("died", "die"), ("remove", "remove")], False),
        ([("died", "died"), ("remove", "remove")], False),
    ],
    ids=["docker", "podman", "podman's own names"],
)
def test_the_end_of_a_container(names: list[tuple[str, str]], oom: bool) -> None:
    """Engines filter events by the names that they have for them."""
    watch = Watch(Api(*names), "unix:///x", {})
    try:
        assert watch.ending("c0ffee", 20) == Ending(137, oom)
    finally:
        watch.close()
