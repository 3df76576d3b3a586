"""What type checkers must refuse: a comment that ignores nothing is an error. Never run."""

from __future__ import annotations

import skyward as sky


@sky.compute
def train(epochs: int) -> float:
    """A lazy function."""
    return float(epochs)


def arguments() -> None:
    """Arguments are those of the function, at the call."""
    train("ten")  # type: ignore[arg-type]
    train()  # type: ignore[call-arg]
    train(1, rate=1)  # type: ignore[call-arg]


def results(p: sky.ComputePool) -> None:
    """Results are those of the function."""
    one: str = train(1) >> p  # type: ignore[assignment]
    every: float = train(1) @ p  # type: ignore[assignment]
    both: tuple[str, float] = (train(1) & train(2)) >> p  # type: ignore[assignment]
    print(one, every, both)


def targets() -> None:
    """Only pools and the module are targets."""
    train(1) >> 3  # type: ignore[operator]
    train(1) @ "pool"  # type: ignore[operator]
    train(1) > 3  # type: ignore[operator]  # noqa: B015
    train(1) >> sky.ComputePool  # type: ignore[operator]
    train >> sky  # type: ignore[operator]


def groups(p: sky.ComputePool) -> None:
    """Missing parentheses, and operators that groups do not have."""
    train(1) & train(2) >> p  # type: ignore[operator]
    (train(1) >> p) & train(2)  # type: ignore[operator]
    (train(1) & train(2)) @ p  # type: ignore[operator]
    (train(1) & train(2)) > p  # type: ignore[operator]  # noqa: B015
    sky.gather([train(1)])  # type: ignore[call-overload]


def frozen() -> None:
    """Calls are values."""
    train(1).timeout = 3  # type: ignore[misc]


def names() -> None:
    """A name that does not exist is not looked up at run time only."""
    sky.no_such_name  # type: ignore[attr-defined]
    sky.integrations.no_such_name  # type: ignore[attr-defined]


def settings() -> None:
    """A parameter that does not exist, or has another type."""
    sky.ComputePool(nodez=2)  # type: ignore[arg-type]
    sky.ComputePool(nodes="two")  # type: ignore[arg-type]
    sky.pool(nodez=2)  # type: ignore[call-overload]
    sky.integrations.JoblibPool(nodez=2)  # type: ignore[call-arg]
    sky.integrations.ScikitLearnPool(nodes="two")  # type: ignore[arg-type]
    sky.plugins.torch(versoin="2.3.0")  # type: ignore[call-arg]
    sky.plugins.keras(backend="theano")  # type: ignore[arg-type]
    sky.integrations.torch(backend="mpi")  # type: ignore[call-overload]
    sky.Image(pipp=["numpy"])  # type: ignore[call-arg]
