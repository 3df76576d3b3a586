"""What goes wrong arrives as what it is, in seconds, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from skyward.errors import (
    EngineMissingError,
    ImageNotFoundError,
    NodeStartError,
    RemoteError,
    RemoteTraceback,
    SerializationError,
)
from tests.e2e.conftest import provider_of
from tests.e2e.functions import where

Containers = Callable[[str], list[Any]]
Make = Callable[..., sky.ComputePool]


class OrderError(Exception):
    """Has an `__init__` of its own, whose arguments are not those of `Exception`, and attributes."""

    def __init__(self, order: int, *, reason: str) -> None:
        super().__init__(f"order {order}: {reason}")
        self.order, self.reason = order, reason


class Leaving(BaseException):
    """Not an `Exception`: most handlers let it pass."""


LEAVINGS = {
    "SystemExit": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt("by the function itself"),
    "GeneratorExit": GeneratorExit(),
    "CancelledError": asyncio.CancelledError(),
    "Leaving": Leaving("by an exception of its own"),
}


@sky.compute
def fails(error: BaseException) -> None:
    raise error


@sky.compute
def gives(value: Any) -> Any:
    return value


# exceptions ----------------------------------------------------------------------------------------------------


def test_an_exception_arrives_as_itself(pool: sky.ComputePool) -> None:
    """Class, attributes, text; its cause holds the remote lines, a note names function and node."""

    @sky.compute
    def order(number: int) -> None:
        raise OrderError(number, reason="sold out")  # this line is shown

    with pytest.raises(OrderError, match="order 5: sold out") as caught:
        order(5) >> pool

    error = caught.value
    assert (type(error), error.order, error.reason) == (OrderError, 5, "sold out")
    assert isinstance(error.__cause__, RemoteTraceback)
    assert 'raise OrderError(number, reason="sold out")' in str(error.__cause__)
    assert "skyward/runner" not in str(error.__cause__)
    assert [note for note in error.__notes__ if note.startswith("raised by order() on node ")]


@pytest.mark.parametrize("kind", ["one slot", "four slots"])
@pytest.mark.parametrize("leaving", LEAVINGS)
def test_leaving_a_function_ends_neither_worker_nor_client(
    pool: sky.ComputePool, threads_pool: sky.ComputePool, kind: str, leaving: str
) -> None:
    """`sys.exit()` and what else is no `Exception` is reported as an error; the process goes on."""
    target = pool if kind == "one slot" else threads_pool
    before = set(where() @ target)
    with pytest.raises(RemoteError, match="which would end the process") as caught:
        fails(LEAVINGS[leaving]) >> target
    assert caught.value.type_name.rpartition(".")[2] == leaving
    assert set(where() @ target) == before


def test_a_broadcast_raises_the_first_error_and_stops_the_rest(pool: sky.ComputePool) -> None:
    """The error names the node it comes from; the other node is free again at once."""

    @sky.compute
    def one_fails() -> None:
        info = sky.instance_info()
        assert info is not None
        if info.node == 1:
            raise OrderError(1, reason="only here")
        time.sleep(120)

    started = time.monotonic()
    with pytest.raises(OrderError) as caught:
        one_fails() @ pool
    assert caught.value.__notes__ == ["raised by one_fails() on node 1"]
    assert [node for node, _ in where() @ pool] == [0, 1]
    assert time.monotonic() - started < 60


# what cannot be pickled ----------------------------------------------------------------------------------------


def test_an_argument_that_cannot_be_sent_is_named(pool: sky.ComputePool) -> None:
    """By position or by keyword, before anything is sent."""
    with pytest.raises(SerializationError, match=r"Argument 1 of gives\(\) \(a lock\) cannot be pickled"):
        gives(threading.Lock()) >> pool
    with pytest.raises(SerializationError, match=r"Argument 'value' of gives\(\) \(a dict\) cannot be pickled"):
        gives(value={"lock": threading.Lock()}) >> pool


def test_a_function_that_cannot_be_sent(pool: sky.ComputePool) -> None:
    """Says which function, and that what it closes over is sent with it."""
    lock = threading.Lock()

    @sky.compute
    def closes() -> None:
        with lock:
            pass

    with pytest.raises(SerializationError, match=r"closes\(\) cannot be pickled: .*lock.* inside the function"):
        closes() >> pool


# modules -------------------------------------------------------------------------------------------------------


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Write a module and import it; `installed` puts it where packages are, which are not sent to nodes."""
    for folder in (tmp_path, tmp_path / "site-packages"):
        folder.mkdir(exist_ok=True)
        monkeypatch.syspath_prepend(folder)

    def write(name: str, text: str, *, installed: bool = False) -> Any:
        ((tmp_path / "site-packages" if installed else tmp_path) / f"{name}.py").write_text(text)
        return __import__(name)

    return write


def test_a_module_next_to_the_program_is_sent(pool: sky.ComputePool, modules: Callable[..., Any]) -> None:
    """Nobody has to list it: what a function imports and is not installed can be imported on the nodes."""
    name, inner = (f"helper_{uuid.uuid4().hex[:8]}" for _ in range(2))
    modules(inner, "def base():\n    return 40\n")
    helper = modules(
        name, f"import skyward as sky\nimport {inner}\n@sky.compute\ndef answer(x):\n    return {inner}.base() + x\n"
    )

    assert helper.answer(2) >> pool == 42

    @sky.compute
    def inside() -> Any:
        module = __import__("importlib").import_module(name)
        return module.answer.local(3), module.__file__

    result, file = inside() >> pool
    assert result == 43
    assert not Path(file).is_relative_to(Path(helper.__file__).parent)


def test_a_module_that_nodes_do_not_have_imported_inside(pool: sky.ComputePool, modules: Callable[..., Any]) -> None:
    """An import inside the function fails as any import does, with a note that says what to do."""
    modules("only_here_inside", "", installed=True)

    @sky.compute
    def imports() -> None:
        import only_here_inside  # type: ignore[import-not-found] # noqa: F401

    with pytest.raises(ModuleNotFoundError) as caught:
        imports() >> pool
    assert caught.value.name == "only_here_inside"
    assert any("Image(pip=[...])" in note for note in caught.value.__notes__)


# pools that cannot start ---------------------------------------------------------------------------------------


def test_an_image_that_nobody_has(provider_name: str, engine: Any) -> None:
    """Is told by name, in seconds; nothing is created."""
    if provider_name == "local":
        pytest.skip("processes use no image")
    started = time.monotonic()
    pool = sky.ComputePool(provider_of(provider_name), image=sky.Image(base="skyward-test/no-such-image:1"))
    with pytest.raises(ImageNotFoundError, match="skyward-test/no-such-image:1"):
        pool.__enter__()
    assert time.monotonic() - started < 100
    assert engine.containers.list(all=True, ignore_removed=True, filters={"label": f"skyward.pool={pool.id}"}) == []
    assert not pool.is_active


def test_no_engine(script: Callable[..., Any], provider_name: str) -> None:
    """Is one sentence that says where it was looked for and what to do; nothing is created."""
    if provider_name == "local":
        pytest.skip("processes need no engine")
    started = time.monotonic()
    program = script(
        """
        import skyward as sky
        try:
            with sky.ComputePool():
                print("open")
        except sky.errors.EngineMissingError as error:
            print("missing:", error)
        """,
        DOCKER_HOST="unix:///dev/null/none/docker.sock",
    )
    out, err = program.communicate(timeout=120)
    assert out.startswith("missing: No Docker engine answers at unix:///dev/null/none/docker.sock"), err
    assert "sky.Local()" in out
    assert time.monotonic() - started < 60
    assert EngineMissingError.__mro__[1] is sky.errors.EngineError


def test_a_node_that_cannot_start(
    new_pool: Make, containers: Containers, provider_name: str, modules: Callable[..., Any], tmp_path: Path
) -> None:
    """Its last lines are in the error; nothing is left of it nor of the other nodes."""
    if provider_name == "docker":
        env, words = {"PYTHONHOME": "/dev/null/none"}, "PYTHONHOME = '/dev/null/none'"
    else:
        (tmp_path / "sitecustomize.py").write_text("import os\nos.write(2, b'there is no way\\n')\nos._exit(1)\n")
        env, words = {"PYTHONPATH": str(tmp_path)}, "there is no way"
    started = time.monotonic()
    pool = new_pool(nodes=2, env=env)
    with pytest.raises(NodeStartError, match="ended with exit status 1 before it was ready") as caught:
        pool.__enter__()
    assert words in str(caught.value)
    assert time.monotonic() - started < 60
    assert containers(pool.id) == []
    assert not [about for about in sky.Local().find() if about["pool"] == pool.id]
    assert not pool.is_active


def test_one_bad_node_does_not_wait_for_the_others(new_pool: Make, provider_name: str, tmp_path: Path) -> None:
    """When one of several nodes cannot start, those that still try are ended at once."""
    if provider_name == "docker":
        pytest.skip("a container cannot be made slow from outside its image")
    (tmp_path / "sitecustomize.py").write_text(
        "import json, os, time\nif json.loads(os.environ['COMPUTE_POOL'])['node']:\n    os._exit(4)\ntime.sleep(60)\n"
    )
    started = time.monotonic()
    with pytest.raises(NodeStartError, match="exit status 4"):
        new_pool(nodes=2, env={"PYTHONPATH": str(tmp_path)}).__enter__()
    assert time.monotonic() - started < 40
