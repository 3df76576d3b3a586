"""What a worker does with the message that sets it up: secrets first, then plugins, and one answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from skyward.model.instance import InstanceInfo
from skyward.runner.calls import Calls
from skyward.wire import payload
from skyward.wire.frames import Frame
from skyward.wire.messages import RESULT_HEAD, Kind, encode

PLACE = InstanceInfo(node=0, total_nodes=1, head_addr="127.0.0.1", head_port=29400)
TOKEN = "SET_UP_TOKEN"


class Session:
    """What a set-up leaves behind: the secret as it was when the plugins were loaded and when they were entered."""

    collective = False
    seen: list[str | None] = []  # noqa: RUF012 - looked at by the tests

    def __init__(self, _place: InstanceInfo) -> None:
        self.seen.append(os.environ.get(TOKEN))

    def decorate(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        return fn

    def close(self) -> None:
        self.seen.append("left")


def loaded() -> type[Session]:
    """Stands for importing a module of the user's, which may read its environment."""
    Session.seen.append(os.environ.get(TOKEN))
    return Session


class Reads:
    """Unpickled by calling `loaded`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return loaded, ()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(TOKEN, "before")
    Session.seen.clear()
    yield


def setup(plugins: object = None, **secrets: str) -> Frame:
    data = () if plugins is None else (payload.dumps(plugins)[0],)
    return Frame(Kind.SETUP, 0, encode(secrets), data)


def test_secrets_are_there_before_plugins_are_loaded() -> None:
    """Loading them may import what reads its environment once."""
    answer = Calls(PLACE).setup(setup(Reads(), **{TOKEN: "secret"}))

    assert answer.kind == Kind.READY
    assert Session.seen == ["secret", "secret"]


@pytest.mark.parametrize("raised", [LookupError("no such device"), KeyboardInterrupt("no such device")])
def test_a_failure_is_the_answer(raised: BaseException) -> None:
    """The worker stays, whatever is raised: one that ended would be set up again, and end again."""

    def fail(_place: InstanceInfo) -> None:
        raise raised

    answer = Calls(PLACE).setup(setup(fail))
    error = payload.load_exception(bytes(memoryview(answer.head)[RESULT_HEAD.size :]))

    assert answer.kind == Kind.ERROR
    assert type(raised).__name__ in repr(error)
