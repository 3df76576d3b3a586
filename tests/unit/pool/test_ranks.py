"""Ranks and secrets as a pool is asked for them: refused before anything is created, never shown."""

from __future__ import annotations

from typing import Any

import pytest

import skyward as sky
from skyward.errors import ConfigError
from skyward.model.spec import Worker

CANARY = "a-value-nobody-may-see"


@pytest.mark.parametrize(
    ("worker", "slots", "per_instance"),
    [(Worker(concurrency=3), 6, 1), (Worker(per_node=2), 4, 2), (Worker(per_node=2, concurrency=3), 12, 2)],
)
def test_a_pool_knows_its_size(worker: Worker, slots: int, per_instance: int) -> None:
    """Nodes, ranks on each, and calls at once in all."""
    pool = sky.ComputePool(sky.Local(), nodes=2, worker=worker)

    assert (pool.instance_count, pool.workers_per_instance, pool.total_slots) == (2, per_instance, slots)


def test_a_rank_per_gpu_needs_an_accelerator() -> None:
    """Said by the pool itself, before anything is created."""
    with pytest.raises(ConfigError, match="no accelerator"):
        sky.ComputePool(sky.Local(), worker=Worker(per_node="gpu"))


def test_processes_that_share_a_rank_cannot_form_a_group() -> None:
    """The plugin is named, and what to use instead; on one node, or without such a plugin, all is well."""
    shared = Worker(executor="process", concurrency=2)
    plugin = sky.Plugin.create("mesh")
    with pytest.raises(ConfigError, match=r"'mesh' makes one group.*per_node"):
        sky.ComputePool(sky.Local(), nodes=2, worker=shared, plugins=[plugin.with_collective()])

    sky.ComputePool(sky.Local(), nodes=1, worker=shared, plugins=[plugin.with_collective()])
    sky.ComputePool(sky.Local(), nodes=2, worker=shared, plugins=[plugin])


def test_a_secret_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the plugin that asks for it, if one does."""
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    with pytest.raises(ConfigError, match=r"^secrets: NO_SUCH_TOKEN is not set"):
        sky.ComputePool(sky.Local(), secrets=["NO_SUCH_TOKEN"])
    with pytest.raises(ConfigError, match=r"^Plugin 'hub': secrets: NO_SUCH_TOKEN is not set"):
        sky.ComputePool(sky.Local(), plugins=[sky.Plugin.create("hub").with_secrets("NO_SUCH_TOKEN")])


def test_a_secret_in_the_environment_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may use the engine can read `env`."""
    monkeypatch.setenv("TOKEN", CANARY)
    with pytest.raises(ConfigError, match="TOKEN is among the pool's secrets and in env=") as error:
        sky.ComputePool(sky.Local(), secrets=["TOKEN"], env={"TOKEN": CANARY})
    assert CANARY not in str(error.value)


@pytest.mark.parametrize("secrets", [["TOKEN"], {"TOKEN": CANARY}])
def test_no_representation_shows_a_secret(monkeypatch: pytest.MonkeyPatch, secrets: Any) -> None:
    """Of the pool, its settings, or a plugin."""
    monkeypatch.setenv("TOKEN", CANARY)
    plugin = sky.Plugin.create("hub").with_secrets(TOKEN=CANARY)
    pool = sky.ComputePool(sky.Local(), secrets=secrets, plugins=[plugin])

    assert dict(pool._settings.secrets) == {"TOKEN": CANARY}
    assert CANARY not in f"{pool!r} {pool._settings!r} {plugin!r}"
    assert "secret TOKEN" in repr(plugin)
