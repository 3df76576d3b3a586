"""What goes wrong arrives as what it is, in seconds, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from skyward.errors import (
    ConfigError,
    EngineMissingError,
    ImageNotFoundError,
    NodeStartError,
    RemoteError,
    RemoteTraceback,
    SerializationError,
    VersionError,
)
from skyward.nodes.local_host import claim_port
from tests.e2e.conftest import provider_of
from tests.e2e.functions import where

Containers = Callable[[str], list[Any]]
Make = Callable[..., sky.ComputePool]


class OrderError(Exception):
    """Has an `__init__` of its own, whose arguments are not those of `Exception`, and attributes."""

    def __init__(self, order: int, *, reason: str) -> None:
        super().__init__(f"order {order}: {reason}")
        self.order, self.reason = order, reason


class Locked(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("it holds a lock")
        self.lock = threading.Lock()


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


@pytest.mark.parametrize(
    "error", [KeyError("k"), OSError(28, "No space left", "/x"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")]
)
def test_builtin_exceptions_keep_what_they_hold(pool: sky.ComputePool, error: Exception) -> None:
    """`except OSError as e: e.errno` works as if the function had been called here."""
    with pytest.raises(type(error)) as caught:
        fails(error) >> pool
    assert caught.value.args == error.args
    assert str(caught.value) == str(error)


def test_the_cause_of_an_exception_is_told(pool: sky.ComputePool) -> None:
    """`raise ... from ...` on the node: both tracebacks are in the remote one."""

    @sky.compute
    def chained() -> None:
        try:
            os.environ["SKYWARD_TEST_MISSING"]
        except KeyError as error:
            raise ValueError("no such setting") from error

    with pytest.raises(ValueError, match="no such setting") as caught:
        chained() >> pool
    assert "KeyError: 'SKYWARD_TEST_MISSING'" in str(caught.value.__cause__)
    assert "direct cause" in str(caught.value.__cause__)


def test_a_returned_exception_is_a_value(pool: sky.ComputePool) -> None:
    """Returning one raises nothing."""
    value = gives(OrderError(1, reason="r")) >> pool
    assert isinstance(value, OrderError)
    assert value.order == 1


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


def test_a_result_that_cannot_be_sent(pool: sky.ComputePool) -> None:
    """Says that it is the result, of which function, and on which node."""

    @sky.compute
    def lock() -> Any:
        return threading.Lock()

    with pytest.raises(SerializationError, match=r"The result cannot be pickled: .*lock") as caught:
        lock() >> pool
    assert caught.value.__notes__[0].startswith("raised by lock() on node ")


def test_an_exception_that_cannot_be_sent(pool: sky.ComputePool) -> None:
    """Its type, text and traceback are kept."""

    @sky.compute
    def locked() -> None:
        raise Locked

    with pytest.raises(RemoteError, match="it holds a lock") as caught:
        locked() >> pool
    assert caught.value.type_name.endswith("Locked")
    assert "raise Locked" in str(caught.value.__cause__)


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


def test_a_module_that_nodes_do_not_have_imported_above(pool: sky.ComputePool, modules: Callable[..., Any]) -> None:
    """A function whose own module cannot be imported on the node says what is missing there and how to add it."""
    modules("only_here_above", "value = 1\n", installed=True)
    text = (
        "import only_here_above\nimport skyward as sky\n@sky.compute\ndef uses():\n    return only_here_above.value\n"
    )
    user = modules(f"user_{uuid.uuid4().hex[:8]}", text)

    assert user.uses.local() == 1
    with pytest.raises(SerializationError, match=r"no module 'only_here_above': add .* Image\(pip=\[...\]\)"):
        user.uses() >> pool


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


def test_a_port_that_is_taken_is_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever listens on a port keeps it; the pool's coordination port is another."""
    from skyward.nodes import local_host as ports

    with socket.socket() as server:
        claim = claim_port()
        taken = claim.port
        claim.release()
        server.bind(("127.0.0.1", taken))
        server.listen()
        free = claim_port()
        free.release()
        monkeypatch.setattr(ports, "_candidates", lambda: [taken, free.port])
        for _ in range(8):
            claim = claim_port()
            assert claim.port == free.port
            claim.release()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"node": 2}, "no parameter 'node'; did you mean nodes="),
        ({"concurency": 2}, "no parameter 'concurency'; did you mean concurrency="),
        ({"nodes": 0}, "nodes"),
        ({"nodes": "two"}, "nodes"),
        ({"nodes": (1, 2, 3)}, "nodes"),
        ({"nodes": (0, 2)}, "nodes"),
        ({"nodes": 1.5}, "nodes"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": "4"}, "concurrency"),
        ({"memory": "plenty"}, "memory"),
        ({"memory": -1}, "memory"),
        ({"cpu": "two"}, "cpu"),
        ({"ttl": 0}, "ttl"),
        ({"env": {"A": 1}}, "env"),
        ({"env": {"SKYWARD_RUNNER": "x"}}, "SKYWARD_RUNNER"),
        ({"image": "python:3.12"}, "image="),
        ({"provider": "docker"}, "provider="),
        ({"plugins": [object()]}, "plugin"),
        ({"provision_timeout": -1}, "provision_timeout"),
        ({"default_compute_timeout": "soon"}, "default_compute_timeout"),
        ({"display": "loud"}, "display"),
        ({"volumes": ["s3://data"]}, "volumes"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_wrong_parameters_are_refused_before_anything_is_created(wrong: dict[str, Any], message: str) -> None:
    """By name, with a hint where a name comes close."""
    with pytest.raises(ConfigError, match=message):
        sky.ComputePool(**{"provider": sky.Local(), **wrong})


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


def test_a_node_that_is_not_ready_in_time(
    new_pool: Make, containers: Containers, provider_name: str, tmp_path: Path
) -> None:
    """Is given up after `provision_timeout`, and removed."""
    if provider_name == "docker":
        pytest.skip("a container cannot be made slow from outside its image")
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(60)\n")
    pool = new_pool(nodes=2, env={"PYTHONPATH": str(tmp_path)}, provision_timeout=0.5)
    started = time.monotonic()
    with pytest.raises(NodeStartError, match=r"was not ready within 0\.5 s"):
        pool.__enter__()
    assert time.monotonic() - started < 40
    assert not [about for about in sky.Local().find() if about["pool"] == pool.id]


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


def test_versions_that_do_not_fit(new_pool: Make, containers: Containers, provider_name: str, tmp_path: Path) -> None:
    """Are compared at connect; the error names both sides."""
    import cloudpickle

    settings: dict[str, Any]
    if provider_name == "docker":
        other = "import cloudpickle; cloudpickle.__version__ = '0.9'"  # a line that Python runs when it starts
        settings = {
            "image": sky.Image(run=[f'echo "{other}" > "$(echo /opt/venv/lib/python3*/site-packages)/other.pth"'])
        }
    else:
        (tmp_path / "sitecustomize.py").write_text("import cloudpickle\ncloudpickle.__version__ = '0.9'\n")
        settings = {"env": {"PYTHONPATH": str(tmp_path)}}
    pool = new_pool(**settings)
    with pytest.raises(VersionError, match=rf"client has cloudpickle {cloudpickle.__version__}, node 0 .* has 0\.9"):
        pool.__enter__()
    assert containers(pool.id) == []
