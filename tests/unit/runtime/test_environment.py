"""What functions ask of the process that runs them: declared on the client, applied in the worker."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import cloudpickle
import pytest

from skyward._pool.code.functions import Functions
from skyward.errors import ConfigError, PluginError
from skyward.model.instance import ENV_VAR, InstanceInfo
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


# declared ------------------------------------------------------------------------------------------------------------


def test_a_function_that_declares_nothing_asks_for_nothing() -> None:
    """An undecorated function has no variables and forms no group."""
    assert environment.declared_env(plain) == {}
    assert not environment.is_collective(plain)


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


def test_it_survives_pickling() -> None:
    """A function that travels by value still says what it asks for."""
    again = cloudpickle.loads(cloudpickle.dumps(asking("jax", collective=True)))

    assert environment.declared_env(again) == {"KERAS_BACKEND": "jax"}
    assert environment.is_collective(again)


def test_two_values_of_one_variable_are_refused() -> None:
    """A function cannot run with two backends; the error names both."""
    with pytest.raises(ConfigError, match=r"ask\(\) is to run with KERAS_BACKEND=jax and with KERAS_BACKEND=torch"):
        environment.declare(asking("jax"), {"KERAS_BACKEND": "torch"})


def test_the_pool_sends_it_beside_the_function() -> None:
    """What a pool knows of a function holds its variables and whether it is collective."""
    functions = Functions()

    sent = functions.get(asking("jax", collective=True))
    other = functions.get(plain)

    assert (dict(sent.env), sent.collective) == ({"KERAS_BACKEND": "jax"}, True)
    assert (dict(other.env), other.collective) == ({}, False)


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
        return self.calls.run(Frame(Kind.CALL, 1, CALL_HEAD.pack(number, flags) + data), Slot(), lambda _frame: None)

    def value(self, fn: Callable[..., Any], **how: int) -> Any:
        answer = self.call(fn, **how)
        body = bytes(memoryview(answer.head)[RESULT_HEAD.size :])
        if answer.kind == Kind.ERROR:
            raise payload.load_exception(body)
        assert answer.kind == Kind.RESULT
        return payload.loads(body)


def reads_when_loaded(marker: str) -> Callable[[], str]:
    """A function whose unpickling reads the variable, as that of a module which imports keras at its top does."""

    class Reads:
        def __reduce__(self) -> tuple[Any, ...]:
            return eval, ("__import__('os').environ.get('KERAS_BACKEND', 'none')",)

    seen: Any = Reads()

    def tell() -> str:
        return f"{marker} {seen}"

    return environment.declare(tell, {"KERAS_BACKEND": "jax"})


def test_variables_are_set_before_the_function_is_loaded() -> None:
    """What unpickling a function imports sees the variables that the function asks for."""
    assert Client().value(reads_when_loaded("loaded with")) == "loaded with jax"


def test_each_call_sees_the_variables_of_its_function() -> None:
    """Functions with different wishes take turns, as long as nothing has read the variable."""
    client, jax, torch = Client(), asking("jax"), asking("torch")

    assert [client.value(fn) for fn in (jax, torch, jax)] == ["jax", "torch", "jax"]


def test_the_right_backend_is_no_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras loaded with the backend that is asked for serves the call."""
    load_keras(monkeypatch, "torch")

    assert Client().value(asking("torch")) == "torch"


def test_another_backend_needs_a_fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has run something and has keras with another backend gives the call back, unstarted."""
    client = Client()
    client.value(plain)
    load_keras(monkeypatch, "jax")

    answer = client.call(asking("torch"))

    assert answer.kind == Kind.STALE
    assert "KERAS_BACKEND" not in os.environ


def test_a_process_that_has_run_nothing_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a plugin has loaded keras, a fresh process would have it, too: the call fails and says why."""
    load_keras(monkeypatch, "jax")

    with pytest.raises(PluginError, match="asks for KERAS_BACKEND=torch, but keras is loaded with KERAS_BACKEND=jax"):
        Client().value(asking("torch"))


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


def test_a_call_on_one_rank_forms_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a function that does so when it is called on all of them: a fresh process can run the next one."""
    client = Client(PLACE_OF_TWO)
    client.value(environment.declare(lambda: "alone", collective=True))
    load_keras(monkeypatch, "jax")

    assert client.call(asking("torch", collective=True)).kind == Kind.STALE


def test_keras_being_imported_is_no_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is there in name only, half imported, has not read its backend yet."""
    monkeypatch.setitem(sys.modules, "keras", ModuleType("keras"))

    assert environment.conflict({"KERAS_BACKEND": "torch"}) is None


# prepared -----------------------------------------------------------------------------------------------------------


class Noting:
    """An argument that notes when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return note, ("arguments",)


def note(what: object) -> None:
    os.environ["NOTES"] = f"{os.environ.get('NOTES', '')}{what} "


def test_preparation_comes_before_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker prepares, the outermost first, then makes the arguments; what is to be done at the end comes last."""
    monkeypatch.setenv(ENV_VAR, PLACE.to_json())
    monkeypatch.setenv("NOTES", "")

    def fn(_argument: object) -> None:
        note("function")

    def prepared(info: InstanceInfo) -> None:
        note(f"node-{info.node}")
        environment.at_end(ended)
        environment.at_end(ended)

    def ended() -> None:
        note("end")

    environment.declare(fn, prepare=lambda _info: note("inner"))
    environment.declare(fn, prepare=prepared)
    calls = Calls(PLACE)
    calls.keep_function(Frame(Kind.FUNCTION, 1, payload.dumps_function(fn)[1]))
    data, _ = payload.dumps(((Noting(),), {}))

    answer = calls.run(Frame(Kind.CALL, 1, CALL_HEAD.pack(1, 0) + data), Slot(), lambda _frame: None)

    assert answer.kind == Kind.RESULT, payload.load_exception(bytes(answer.head[RESULT_HEAD.size :]))
    assert os.environ["NOTES"].split() == ["node-0", "inner", "arguments", "function", "end"]


def test_nothing_is_prepared_outside_a_pool() -> None:
    """A function that is called as it is, on the client, prepares nothing."""
    environment.prepare(environment.declare(lambda: None, prepare=lambda _info: note("prepared")))

    assert "NOTES" not in os.environ


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


# which calls run everywhere -----------------------------------------------------------------------------------------


def everywhere() -> bool:
    return environment.on_every_rank()


def test_a_call_knows_whether_all_ranks_run_it() -> None:
    """`on_every_rank` is true in a call made with `@`, false in others and between calls."""
    client = Client(PLACE_OF_TWO)

    assert client.value(everywhere, flags=EVERYWHERE) is True
    assert not environment.on_every_rank()
    assert client.value(everywhere) is False


def test_one_rank_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs all ranks says so at once in a call that runs on one of several."""
    monkeypatch.setenv(ENV_VAR, PLACE_OF_TWO.to_json())

    with pytest.raises(PluginError, match=r"jax: this call runs on rank 1 only, of 2 .* with @ to run it on all"):
        environment.require_every_rank("jax")


def test_the_only_rank_is_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pool of one, and outside pools, nothing is refused."""
    environment.require_every_rank("jax")
    monkeypatch.setenv(ENV_VAR, PLACE.to_json())
    environment.require_every_rank("jax")
