"""A place in a pool, and a sink for what is printed there."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

from skyward.model.instance import ENV_VAR, InstanceInfo
from skyward.runtime import output

Place = Callable[..., InstanceInfo]


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_VAR, raising=False)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    """Put this process in a pool: `place(node, total_nodes, ...)`."""

    def put(node: int, total_nodes: int, *, worker: int = 0, workers_per_node: int = 1) -> InstanceInfo:
        info = InstanceInfo(
            node=node,
            total_nodes=total_nodes,
            head_addr="10.0.0.1",
            head_port=29400,
            worker=worker,
            workers_per_node=workers_per_node,
        )
        monkeypatch.setenv(ENV_VAR, info.to_json())
        return info

    return put


class Record:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.written: list[tuple[int | None, str, str]] = []

    def write(self, task: int | None, stream: output.StreamName, text: str, /) -> None:
        self.written.append((task, stream, text))

    def text(self, task: int | None, stream: str = "stdout") -> str:
        return "".join(text for t, s, text in self.written if (t, s) == (task, stream))


@pytest.fixture
def sink() -> Record:
    """What the test prints, by task and stream; installed for the test's own body."""
    return Record()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Install the sink once pytest has put its own capture in place, which it does anew before every phase."""
    sink = pyfuncitem.funcargs.get("sink")
    if not isinstance(sink, Record):
        return (yield)
    remove = output.install(sink)
    try:
        return (yield)
    finally:
        remove()
