"""Our providers keep the contract that third parties' providers are tested by."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import skyward as sky
from examples.folders import LABEL, Folders, FoldersAllocation, FoldersHost
from skyward.model.resource import Resource
from skyward.nodes.node import Host
from skyward.providers.base import PoolRequest
from skyward.testing.provider import ProviderConformance


class TestLocal(ProviderConformance):
    """Plain processes."""

    def provider(self) -> sky.Local:
        return sky.Local()


class TestDocker(ProviderConformance):
    """Containers of the engine here."""

    def provider(self) -> sky.Docker:
        return sky.Docker()


class TestFolders(ProviderConformance):
    """The example of docs/architecture.md, whose reaper removes what a client leaves."""

    @pytest.fixture(autouse=True)
    def _root(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory(dir="/tmp") as self._folder:
            yield

    def provider(self) -> Folders:
        return Folders(self._folder)


# providers that break one duty each ----------------------------------------------------------------------------------


class _Unreaped(FoldersAllocation):
    """Starts no reaper, although no lease ends a folder."""

    def acquire(self) -> Sequence[Host]:
        self._folder.path.mkdir(mode=0o700)
        (self._folder.path / LABEL).write_text('{"user": "nobody"}')
        return [FoldersHost(self)] * self.request.nodes

    def release(self) -> None:
        self._clear()


class Unreaped(Folders):
    """What its killed clients have made stays."""

    def open(self, request: PoolRequest) -> FoldersAllocation:
        return _Unreaped(self, request)


class Eager(Folders):
    """Makes the folder when a pool is opened."""

    def open(self, request: PoolRequest) -> FoldersAllocation:
        allocation = super().open(request)
        (Path(self.root) / request.pool_id).mkdir()
        (Path(self.root) / request.pool_id / LABEL).write_text('{"user": "nobody"}')
        return allocation


class Blind(Folders):
    """Finds folders, and no nodes in them."""

    def find(self) -> Sequence[Resource]:
        return [found for found in super().find() if found["node"] < 0]


class Lazy(Folders):
    """Destroys nothing."""

    def destroy(self, pool_id: str) -> None:
        assert pool_id


class Changing(Folders):
    """Can be given another name."""

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


@pytest.mark.parametrize(
    ("broken", "test", "said"),
    [
        (
            Unreaped,
            "test_clients_that_die_leave_nothing",
            r"killed: after acquire\(\): .*folder",
        ),
        (Eager, "test_open_makes_nothing", r"open\(\) made something; only acquire\(\) may"),
        (Blind, "test_a_pool_runs_calls_and_is_found", r"find\(\) must list nodes 0 and 1"),
        (
            Lazy,
            "test_another_process_finds_and_destroys_a_pool",
            r"destroy\(\) must not return before",
        ),
        (Changing, "test_it_is_an_immutable_value", "DID NOT RAISE"),
    ],
)
def test_a_provider_that_breaks_a_duty_is_told_which(broken: type[Folders], test: str, said: str) -> None:
    """The kit can fail, and says what the provider does not do."""
    with tempfile.TemporaryDirectory(dir="/tmp") as root:

        class Kit(ProviderConformance):
            settle_s = 3.0
            calls = ("acquire",)

            def provider(self) -> Folders:
                return broken(root)

        with pytest.raises((AssertionError, pytest.fail.Exception), match=said):
            getattr(Kit(), test)()
