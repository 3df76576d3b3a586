"""What functions ask of the process that runs them: declared on the client, applied in the worker."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from skyward.errors import ConfigError, PluginError
from skyward.model.instance import InstanceInfo
from skyward.runner.calls import Calls
from skyward.runner.threads import Slot
from skyward.runtime import environment
from skyward.wire import payload
from skyward.wire.frames import Frame
from skyward.wire.messages import CALL_HEAD, EVERYWHERE, RESULT_HEAD, Kind, encode

PLACE = InstanceInfo(node=0, total_nodes=1, head_addr="127.0.0.1", head_port=1)
PLACE_OF_TWO = InstanceInfo(node=1, total_nodes=2, head_addr="127.0.0.1", head_port=1)


def plain() -> str:
    return os.environ.get("KERAS_BACKEND", "none")


def asking(backend: str, *, collective: bool = False) -> Callable[[], str]:
    def ask() -> str:
        return plain()

    return environment.declare(ask, {"KERAS_BACKEND": backend}, collective=collective)


@pytest.fixture(autouse=True)
def _no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "none")  # so that it is put back as it was
    monkeypatch.delenv("KERAS_BACKEND")
    monkeypatch.delitem(sys.modules, "keras", raising=False)


def load_keras(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """Pretend that keras has been imported with a backend."""
    keras = ModuleType("keras")
    keras.config = SimpleNamespace(backend=lambda: backend)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keras", keras)


def test_what_is_wrapped_around_a_function_asks_for_the_same() -> None:
    """`functools.wraps` passes on what the inner function declared; the outer one adds to it."""
    inner = environment.declare(asking("jax"), {"A": "1"}, collective=True)

    @functools.wraps(inner)
    def outer() -> None:
        inner()

    environment.declare(outer, {"B": "2"})

    assert environment.declared_env(outer) == {"KERAS_BACKEND": "jax", "A": "1", "B": "2"}
    assert environment.is_collective(outer)
    assert environment.declared_env(inner) == {"KERAS_BACKEND": "jax", "A": "1"}


def test_two_values_of_one_variable_are_refused() -> None:
    """A function cannot run with two backends; the error names both."""
    with pytest.raises(ConfigError, match=r"ask\(\) must run with KERAS_BACKEND=jax and with KERAS_BACKEND=torch"):
        environment.declare(asking("jax"), {"KERAS_BACKEND": "torch"})


# applied -------------------------------------------------------------------------------------------------------------


class Client:
    """The client's side of a worker's calls, without a socket."""

    def __init__(self, place: InstanceInfo = PLACE, *, replaceable: bool = True) -> None:
        self.calls = Calls(place, replaceable=replaceable)
        self._numbers: dict[int, int] = {}

    def call(self, fn: Callable[..., Any], *, flags: int = 0) -> Frame:
        number = self._numbers.get(id(fn))
        if number is None:
            number = self._numbers[id(fn)] = len(self._numbers) + 1
            wishes = {"env": dict(environment.declared_env(fn)), "collective": environment.is_collective(fn)}
            beside = (encode(wishes),) if any(wishes.values()) else ()
            self.calls.keep_function(Frame(Kind.FUNCTION, number, payload.dumps_function(fn)[1], beside))
        data, _ = payload.dumps(((), {}))
        last = self.calls.run(Frame(Kind.CALL, 1, CALL_HEAD.pack(number, flags) + data), Slot(), lambda _frame: None)
        assert last is not None
        return last

    def value(self, fn: Callable[..., Any], **how: int) -> Any:
        answer = self.call(fn, **how)
        body = bytes(memoryview(answer.head)[RESULT_HEAD.size :])
        if answer.kind == Kind.ERROR:
            raise payload.load_exception(body)
        assert answer.kind == Kind.RESULT
        return payload.loads(body)


def test_another_backend_needs_a_fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has run something and has keras with another backend gives the call back, unstarted."""
    client = Client()
    client.value(plain)
    load_keras(monkeypatch, "jax")

    answer = client.call(asking("torch"))

    assert answer.kind == Kind.STALE
    assert "KERAS_BACKEND" not in os.environ


@pytest.mark.parametrize(
    ("client", "before", "collective"),
    [
        (Client(replaceable=False), plain, False),
        (Client(PLACE_OF_TWO), plain, True),
        (Client(PLACE_OF_TWO), environment.declare(lambda: "grouped", collective=True), False),
    ],
    ids=["other calls run in it", "the call forms a group", "an earlier call has formed a group"],
)
def test_a_process_that_cannot_be_replaced_refuses(
    monkeypatch: pytest.MonkeyPatch, client: Client, before: Callable[[], str], collective: bool
) -> None:
    """The wrong backend is never used in silence."""
    client.value(before, flags=EVERYWHERE)
    load_keras(monkeypatch, "jax")

    with pytest.raises(PluginError, match="is not replaced: use a pool for each"):
        client.value(asking("torch", collective=collective), flags=EVERYWHERE)


def note(what: object) -> None:
    os.environ["NOTES"] = f"{os.environ.get('NOTES', '')}{what} "


def test_a_careless_wrapper_loses_nothing() -> None:
    """What a plugin wraps around a function asks for the same, also without `functools.wraps`; the wrapper stays."""
    fn = asking("jax", collective=True)

    class Careless:
        __slots__ = ()

        def __call__(self) -> str:
            return "careless " + fn()

    kept = environment.carry(fn, Careless())

    assert kept() == "careless none"
    assert environment.declared_env(kept) == {"KERAS_BACKEND": "jax"}
    assert environment.is_collective(kept)
    assert environment.carry(plain, note) is note
