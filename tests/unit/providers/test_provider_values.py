"""Providers are values: one is made of another with `dataclasses.replace`, and no caller's document is shared."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from skyward.providers.base import Provider


@pytest.mark.parametrize(
    ("made", "change", "expected"),
    [
        (lambda: sky.SSH("a", "u@b:22", user="app"), {"build": "remote"}, lambda: _ssh("a", "u@b:22", build="remote")),
        (lambda: sky.SSH("a", user="app"), {"hosts": ("c",)}, lambda: _ssh("c")),
        (lambda: sky.SSH("a"), {"user": "app"}, lambda: _ssh("a")),
        (lambda: sky.Docker(privileges=["sys_ptrace"]), {"user": "7"}, lambda: _docker()),
        (lambda: sky.Slurm("u@login", qos="q"), {"partition": "p"}, lambda: _slurm("u@login")),
        (lambda: sky.Slurm("u@old", qos="q", partition="p"), {"login": "u@login"}, lambda: _slurm("u@login")),
        (lambda: sky.Kubernetes("c", user="7"), {"registry": "r/x"}, lambda: _kubernetes("c")),
        (lambda: sky.Kubernetes("d", user="7", registry="r/x"), {"context": "c"}, lambda: _kubernetes("c")),
    ],
    ids=[
        "ssh",
        "ssh hosts",
        "ssh user",
        "docker",
        "slurm",
        "slurm login",
        "kube",
        "kube context",
    ],
)
def test_a_provider_is_made_of_another(made: Any, change: dict[str, Any], expected: Any) -> None:
    """What was not named stays; what follows from it, such as an address, is made anew; and pickle keeps it all."""
    changed: Provider = dataclasses.replace(made(), **change)
    assert changed == expected()
    assert vars(changed) == vars(expected()) == vars(pickle.loads(pickle.dumps(changed)))


def _ssh(*hosts: str, **more: Any) -> sky.SSH:
    return sky.SSH(*hosts, user="app", **more)


def _docker() -> sky.Docker:
    return sky.Docker(user="7", privileges=["SYS_PTRACE"])


def _slurm(login: str) -> sky.Slurm:
    return sky.Slurm(login, partition="p", qos="q")


def _kubernetes(context: str) -> sky.Kubernetes:
    return sky.Kubernetes(context, user="7", registry="r/x")


def test_a_key_of_another_value_is_kept_and_can_be_changed(tmp_path: Path) -> None:
    """Of each host, also where the hosts are those of another value."""
    for name in ("one", "two"):
        (tmp_path / name).touch()
    ssh = sky.SSH("a", "b", key=tmp_path / "one")
    assert [host.key for host in dataclasses.replace(ssh, build="remote").hosts] == [str(tmp_path / "one")] * 2
    assert [host.key for host in dataclasses.replace(ssh, key=tmp_path / "two").hosts] == [str(tmp_path / "two")] * 2


def test_documents_of_the_caller_are_copied() -> None:
    """Whoever goes on changing them changes no provider."""
    selector, tolerations, labels = {"room": "a"}, [{"key": "gpu"}], {"gpu": "a100"}
    patch: dict[str, Any] = {"spec": {"hostNetwork": False, "volumes": [{"name": "v"}]}}
    provider = sky.Kubernetes(node_selector=selector, tolerations=tolerations, gpu_labels=labels, patch=patch)
    before = pickle.dumps(provider)
    selector["room"] = labels["gpu"] = tolerations[0]["key"] = "other"
    patch["spec"]["hostNetwork"] = True
    patch["spec"]["volumes"].append({"name": "w"})
    assert pickle.loads(before) == provider
