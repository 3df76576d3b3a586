"""Mistakes that are easily made: each is an error that says what to do, before anything is made where that can be."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import pickle
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import skyward as sky
from skyward.engine import client
from skyward.errors import ConfigError, PoolError, SerializationError
from skyward.model.image_fields import platform_of
from skyward.model.instance import ENV_VAR, InstanceInfo
from skyward.nodes.local_host import runs
from skyward.plugins import _volumes
from skyward.wire import payload


@sky.compute
def same(x: Any) -> Any:
    return x


@pytest.fixture(scope="module")
def local() -> Iterator[sky.ComputePool]:
    with sky.ComputePool(sky.Local(), display="quiet") as pool:
        yield pool


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"nodes": 0}, r"nodes= takes a whole number, at least 1.* found 0\."),
        ({"nodes": "4"}, r"found '4'\."),
        ({"nodes": (3, 1)}, r"found \(3, 1\): write \(1, 3\)"),
        ({"provider": 2}, r"for a number of nodes write nodes=2"),
        ({"provider": "docker"}, r"write sky\.Docker\(\.\.\.\)"),
        ({"provider": "kubernetes"}, r"write sky\.Kubernetes\(\.\.\.\)"),
        ({"image": sky.Image}, r"the class Image: write sky\.Image\(\.\.\.\)"),
        ({"image": "python:3.12"}, r"write sky\.Image\(base='python:3\.12'\)"),
        ({"env": {"N": 3}}, r"write 'N': '3'"),
        ({"env": ["A=1"]}, r"mapping from names to strings, such as"),
        ({"accelerator": 2}, r"such as 'A100:4', or sky\.Accelerator\(\.\.\.\); found 2"),
        ({"accelerator": "A100x4"}, r"write 'A100:4'"),
        ({"accelerator": "4xH100"}, r"write 'H100:4'"),
        ({"accelerator": "A10O"}, r"is 'A10' meant\?"),
        ({"worker": 4}, r"write concurrency=4"),
        ({"ttl": "5m"}, r"ttl= takes a number of seconds above 0; found '5m'"),
        ({"name": 3}, r"name= takes a string; found 3"),
        ({"checkpoints": 3}, r"checkpoints= names a directory; found 3"),
        ({"nodes": 10**9}, r"at most 10,000 nodes; found 1,000,000,000"),
        ({"nodes": (1, 10_001)}, r"at most 10,000 nodes; found 10,001"),
        ({"concurrency": 100_000}, r"at most 4,096 calls at once on a node.* found 100,000\. Give more nodes"),
        ({"ttl": True}, r"ttl= takes a number of seconds above 0; found True"),
        ({"cpu": True}, r"cpu= takes a number above 0; found True"),
        ({"memory": True}, r"memory= takes a number above 0; found True"),
        ({"default_compute_timeout": True}, r"default_compute_timeout= takes a number of seconds above 0; found True"),
        ({"budget": True}, r"budget= takes a number above 0; found True"),
        ({"keep": True, "name": "a"}, r"keep= must be above 0 seconds .* found True"),
    ],
)
def test_a_wrong_setting_says_what_is_meant(settings: dict[str, Any], said: str) -> None:
    """Before anything is made."""
    with pytest.raises(ConfigError, match=said):
        sky.ComputePool(**settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ((2,), r"one positional argument, the provider\. Pass 2 as nodes=2\."),
        (((1, 3),), r"Pass \(1, 3\) as nodes=\(1, 3\)"),
        (("A100",), r"Pass 'A100' by its name, as in nodes=2"),
    ],
)
@pytest.mark.parametrize(
    "make", [sky.ComputePool, lambda *given: cast(Any, sky.pool)(*given).__enter__()], ids=["class", "scope"]
)
def test_a_setting_without_its_name_is_told_what_to_write(make: Any, settings: tuple[Any, ...], said: str) -> None:
    """Beside the provider."""
    with pytest.raises(ConfigError, match=said):
        make(sky.Local(), *settings)


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({"retries": True}, r"retries is how often .* found True: for once write retries=1"),
        ({"retries": False}, r"retries is how often .* found False"),
        ({"timeout": True}, r"A timeout is a number of seconds above 0.* found True"),
        ({"timeout": False}, r"A timeout is a number of seconds above 0.* found False"),
    ],
)
def test_a_wish_of_a_function_that_is_no_number_is_refused(wishes: dict[str, Any], said: str) -> None:
    """True is 1 for Python, and hardly what is meant."""
    with pytest.raises(ConfigError, match=said):
        sky.compute(**wishes)(same.fn)


@pytest.mark.parametrize(
    ("made", "name", "said"),
    [
        (sky.Image, "pips", r"sky\.Image has no parameter 'pips'; did you mean pip=\?"),
        (sky.Image, "packages", r"'packages'\. It takes: base, python, "),
        (sky.ComputePool, "node", r"ComputePool has no parameter 'node'; did you mean nodes=\?"),
        (sky.compute, "timout", r"@sky\.compute has no parameter 'timout'; did you mean timeout=\?"),
        (sky.Docker, "usr", r"sky\.Docker has no parameter 'usr'; did you mean user=\?"),
        (sky.SSH, "usr", r"sky\.SSH has no parameter 'usr'; did you mean user=\?"),
        (sky.Local, "nodes", r"sky\.Local has no parameter 'nodes'\. It takes none\."),
        (sky.AWS, "regoin", r"sky\.AWS has no parameter 'regoin'; did you mean region=\?"),
        (sky.Worker, "concurency", r"sky\.Worker has no parameter 'concurency'; did you mean concurrency=\?"),
        (sky.plugins.torch, "backnd", r"sky\.plugins\.torch has no parameter 'backnd'; did you mean backend=\?"),
    ],
)
def test_an_unknown_parameter_names_the_one_that_comes_close(made: Any, name: str, said: str) -> None:
    """Of images, pools, functions, providers and plugins alike."""
    with pytest.raises(ConfigError, match=said):
        made(**{name: 2})


def test_checked_parameters_leave_signatures_and_values_alone() -> None:
    """Editors and `inspect` see what the class says, and copies are checked like the first."""
    assert list(inspect.signature(sky.Image).parameters)[:3] == ["base", "python", "apt"]
    assert list(inspect.signature(sky.plugins.torch).parameters)[:2] == ["backend", "cuda"]
    image = sky.Image(pip=["numpy"])
    assert pickle.loads(pickle.dumps(image)) == image == replace(image, bake=False)


@pytest.mark.parametrize(
    ("python", "said"),
    [("3.99", r"'3\.11' to '3\.\d+'; found '3\.99'"), ("3.8", r"'3\.11' to"), (3.12, r"write python='3\.12'")],
)
def test_a_python_that_does_not_exist_is_refused(python: Any, said: str) -> None:
    """At once, with those that do."""
    with pytest.raises(ConfigError, match=said):
        sky.Image(python=python)


def test_volumes_without_a_login_are_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And soon: off EC2 nobody asks its metadata server. A login of the nodes' own counts."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setattr(_volumes, "_VENDOR", tmp_path / "vendor")
    volumes = [sky.Volume("data", "/data")]
    with pytest.raises(ConfigError, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        sky.ComputePool(sky.Docker(), volumes=volumes)
    own = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"}
    sky.ComputePool(sky.Docker(), volumes=volumes, secrets=own)
    (tmp_path / "vendor").write_text("Amazon EC2\n")
    sky.ComputePool(sky.Docker(), volumes=volumes)


@sky.compute
def head() -> tuple[int, int, bool]:
    info = sky.instance_info()
    assert info is not None
    return info.node, info.total_nodes, info.is_head


@sky.compute
def places() -> Iterator[bool]:
    for _ in range(2):
        yield sky.instance_info() is not None
    return (yield from ())


@sky.compute
async def place_in_a_loop() -> bool:
    return sky.instance_info() is not None


def test_local_runs_on_the_only_node_of_a_pool() -> None:
    """Generators and coroutines as well; the caller is on none, not even between two items."""
    assert head.local() == (0, 1, True)
    seen = [(inside, sky.instance_info() is None) for inside in places.local()]
    assert seen == [(True, True), (True, True)]
    assert place_in_a_loop.local()
    assert sky.instance_info() is None


def test_local_on_a_node_keeps_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that calls another so is where it was."""
    place = InstanceInfo(node=1, total_nodes=3, head_addr="127.0.0.1", head_port=1)
    monkeypatch.setenv(ENV_VAR, place.to_json())
    assert head.local() == (1, 3, False)


def test_a_call_that_is_returned_has_been_used() -> None:
    """It goes on where it arrives, and is a mistake only if it is dropped there."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = payload.dumps(same(1))
    assert (payload.loads(*data, what="A result") >> Here()) == 1


@sky.compute
def arguments(*given: Any) -> tuple[Any, ...]:
    return given


def divmod_of(a: int, b: int) -> tuple[int, int]:
    return divmod(a, b)


def test_a_pool_in_an_argument_is_named_as_such(local: sky.ComputePool) -> None:
    """And not a lock that it happens to have."""
    with pytest.raises(SerializationError, match=r"\['pool'\] of it gives TypeError: A pool exists in the client only"):
        same({"pool": local}) >> local


class Here:
    """A target that runs calls at once."""

    def _run(self, call: Any) -> Any:
        return call.fn(*call.args, **call.kwargs)

    _broadcast = _run_async = _run_parallel = _run_stream = _run


def test_a_platform_without_its_system_says_how_it_is_written() -> None:
    """As Docker names it."""
    with pytest.raises(ConfigError, match=r"write platform='linux/amd64'"):
        sky.Image(platform="amd64")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: sky.Docker(base_url="/run/docker.sock").find(), r"write 'unix:///run/docker\.sock'"),
        (lambda: sky.Docker(base_url=cast(Any, 3)).find(), r"base_url is a string of the form unix:///"),
        (lambda: sky.AWS(region=cast(Any, 3)), r"sky\.AWS: region is a string"),
    ],
)
def test_an_address_of_another_form_says_which_it_takes(made: Callable[[], object], said: str) -> None:
    """Before anybody is asked."""
    with pytest.raises(ConfigError, match=said):
        made()


@pytest.mark.parametrize(
    ("pip", "said"),
    [
        ("numpy pandas", r"write one entry for each, pip=\['numpy', 'pandas'\]"),
        ("numpy=1.26", r"write 'numpy==1\.26'"),
        ("requirements.txt", r"write requirements=\['requirements\.txt'\]"),
    ],
)
def test_a_requirement_that_is_none_says_what_to_write(pip: str, said: str) -> None:
    """Where that can be told."""
    with pytest.raises(ConfigError, match=said):
        sky.Image(pip=[pip])


def test_an_image_without_names_says_which_there_are() -> None:
    """A base is not the first parameter by position."""
    made: Any = sky.Image
    with pytest.raises(ConfigError, match=r"by name; found 'python:3\.12' without one\. .* base, "):
        made("python:3.12")


async def waiting(call: Any) -> Any:
    return await call


async def entering(pool: Any) -> None:
    async with pool:
        pass


@pytest.mark.parametrize(
    ("wrong", "kind", "said"),
    [
        (lambda pool: pool >> same(1), TypeError, r"call stands on the left"),
        (lambda pool: pool @ same(1), TypeError, r"call stands on the left"),
        (lambda pool: same(1) >> pool.open, TypeError, r"open, which was not called: write open\(\.\.\.\)"),
        (lambda _: -cast(Any, same(1)), TypeError, r"same\(1\) is a call that has not run"),
        (lambda _: asyncio.run(waiting(same(1))), TypeError, r"Write `await \(same\(1\) > pool\)`"),
        (lambda pool: asyncio.run(entering(pool)), TypeError, r"opened by `with`, also in `async def`"),
        (lambda _: cast(Any, same(1)) < 2, TypeError, r"same\(1\) is a call that has not run"),
        (lambda pool: pool.run(same(1)), AttributeError, r"Write `f\(x\) >> pool`"),
        (lambda pool: pool.broadcast(same(1)), AttributeError, r"Write `f\(x\) @ pool`"),
        (lambda pool: pool.submit(same, 1), AttributeError, r"write `f\(x\) > pool`"),
        (lambda pool: pool.starmap(same, []), AttributeError, r"sky\.gather\(\*calls\) >> pool"),
        (lambda pool: same(1) >> cast(Any, [pool]), TypeError, r"needs a pool, `sky` or `sky\.sky` on its right"),
        (lambda _: same(1) >> cast(Any, sky.Local()), TypeError, r"on its right, found Local\(\) of type Local"),
        (lambda pool: same(1) @ pool @ pool, TypeError, r"found \[1\] of type list on the left"),
        (lambda pool: sky.gather(same(1), same(2)) @ pool, TypeError, r"`\[call @ pool for call in calls\]`"),
        (lambda pool: (same(1) & cast(Any, same)) >> pool, TypeError, r"was not called: write same\(\.\.\.\)"),
        (lambda pool: (cast(Any, same(1)) and same(2)) >> pool, TypeError, r"same\(1\) is a call that has not run"),
        (lambda _: len(cast(Any, same(1))), TypeError, r"same\(1\) is a call that has not run"),
        (lambda _: list(cast(Any, same(1))), TypeError, r"same\(1\) is a call that has not run"),
        (lambda _: cast(Any, same(1))[0], TypeError, r"same\(1\) is a call that has not run"),
        (lambda _: cast(Any, same(1)).result(), AttributeError, r"so it has no 'result' of its result"),
        (lambda _: sky.compute(same), TypeError, r"same is a compute function already; decorate it once"),
        (lambda _: sky.compute(cast(Any, 3)), TypeError, r"decorates a function, found 3 of type int"),
        (lambda _: sky.compute(cast(Any, classmethod(cast(Any, len)))), TypeError, r"of type classmethod"),
        (lambda pool: cast(Any, same)(1, 2) >> pool, TypeError, r"same\(\): too many positional arguments"),
        (lambda _: same(1) >> sky.ComputePool(sky.Local()), PoolError, r"not open: it has not been opened, or"),
        (lambda pool: pool.open(), PoolError, r"is open already; open a second ComputePool"),
        (lambda _: same.remote(1), AttributeError, r"Write `same\(\.\.\.\) >> pool`"),  # type: ignore[attr-defined]
        (lambda _: sky.gather(cast(Any, (same(n) for n in range(2)))), TypeError, r"unpack it: gather\(\*calls\)"),
    ],
)
def test_a_call_written_wrongly_says_how_it_is_written(
    wrong: Callable[[Any], object], kind: type[Exception], said: str, local: sky.ComputePool
) -> None:
    """Also as other libraries write it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the calls are dropped
        with pytest.raises(kind, match=said):
            wrong(local)


def raises(text: str) -> None:
    raise RuntimeError(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Found no NVIDIA driver on your system.", "accelerator='A100'"),
        ("Default process group has not been initialized", r"sky.plugins.torch()"),
    ],
)
def test_what_the_pool_could_have_given_is_said(text: str, said: str, local: sky.ComputePool) -> None:
    """In a note of the function's own exception."""
    with pytest.raises(RuntimeError) as found:
        sky.compute(raises)(text) >> local
    assert any(said in note for note in found.value.__notes__)


def test_what_stays_where_it_is_says_what_to_send_instead(local: sky.ComputePool) -> None:
    """As argument and as result."""
    with pytest.raises(SerializationError, match="Create them inside the function"):
        same(threading.Lock()) >> local
    with pytest.raises(SerializationError, match="Create them inside the function"):
        sky.compute(threading.Lock)() >> local


def test_a_text_in_place_of_a_list_says_how_to_write_it() -> None:
    """A list of one."""
    with pytest.raises(ConfigError, match=r"write pip=\['numpy'\]"):
        sky.Image(pip="numpy")


@pytest.mark.parametrize("settings", [{"timeout": "5m"}, {"retries": "2"}])
def test_a_wrong_option_of_a_function_is_refused(settings: dict[str, Any]) -> None:
    """By its kind as well."""
    with pytest.raises(ConfigError, match="found '"):
        sky.compute(**settings)(len)


def test_aws_without_boto3_is_refused_when_the_pool_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when it is opened."""
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError, match=r"pip install 'skyward\[aws\]'"):
        sky.ComputePool(sky.AWS())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda pool: pool.map(same, 5), r"range\(5\)"),
        (lambda pool: pool.map(same(1), [5]), r"found the call same\(1\)"),
        (lambda pool: pool.map([5], same), r"in the function's place"),
        (lambda pool: pool.map(same, [1], 5), r"range\(5\)"),
        (lambda pool: pool.map(same, [1], [2]), r"same\(\) with an item of each of 2 iterables"),
        (lambda pool: pool.map(divmod_of, [(7, 2)]), r"sky\.gather\(\*\(divmod_of\(\*item\) for item in items\)\)"),
    ],
)
def test_a_map_over_something_else_says_what_it_takes(
    wrong: Callable[[sky.ComputePool], object], said: str, local: sky.ComputePool
) -> None:
    """The function, and items."""
    with pytest.raises(TypeError, match=said):
        wrong(local)


def test_a_map_over_several_iterables_is_that_of_python(local: sky.ComputePool, tmp_path: Path) -> None:
    """One argument of each, until the shortest ends; errors show them, and a journal knows them from one tuple."""
    assert local.map(divmod_of, [7, 8, 9], iter([2, 3])) == [(3, 1), (2, 2)]
    assert local.map(divmod_of, range(100), [7] * 100) == [divmod(n, 7) for n in range(100)]
    with pytest.raises(ZeroDivisionError) as found:
        local.map(sky.compute(divmod_of), [7, 8], [1, 0])
    assert "for item 1 of the map: (8, 0)" in found.value.__notes__

    journal = tmp_path / "map.journal"
    for _ in range(2):
        assert local.map(arguments, [1, 2], [3, 4], journal=journal) == [(1, 3), (2, 4)]
        assert local.map(arguments, [(1, 3)], journal=journal) == [((1, 3),)]


def test_what_is_iterable_by_its_items_alone_is_mapped(local: sky.ComputePool) -> None:
    """As `for` takes it."""

    class Three:
        def __getitem__(self, index: int) -> int:
            if index > 2:
                raise IndexError
            return index

    items: Any = Three()
    assert local.map(same, items) == [0, 1, 2]


def test_arguments_that_cannot_be_sent_say_what_to_give(local: sky.ComputePool) -> None:
    """Without the frames of pickle."""
    with pytest.raises(SerializationError, match=r"Give it as a list") as found:
        same(n for n in range(3)) >> local
    assert "site-packages" not in "".join(traceback.format_exception(found.value))
    future = same(1) > local
    with pytest.raises(SerializationError, match=r"future\.result\(\)"):
        same(future) >> local


def test_a_file_of_the_client_that_a_function_opens_is_explained(local: sky.ComputePool) -> None:
    """Relative to the client's directory, which is no node's."""
    assert Path("pyproject.toml").exists()
    with pytest.raises(FileNotFoundError) as found:
        sky.compute(open)("pyproject.toml") >> local
    assert any("'pyproject.toml' is there for this program" in note for note in found.value.__notes__)


def test_a_module_that_opens_a_pool_when_a_node_imports_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node would open another one."""
    (tmp_path / "without_main.py").write_text("import skyward as sky\n\nsky.ComputePool(sky.Local()).open()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    place = InstanceInfo(node=0, total_nodes=1, head_addr="127.0.0.1", head_port=1)
    monkeypatch.setenv(ENV_VAR, place.to_json())
    with pytest.raises(PoolError, match=r"without_main\.py, line 3, .* __name__ == \"__main__\""):
        importlib.import_module("without_main")


def test_a_machine_runs_programs_of_its_own_platform() -> None:
    """Tried with a program of a few bytes; nothing is known of other systems' platforms."""
    assert runs(platform_of(None))
    assert runs("linux/riscv64") is None


def test_a_line_is_said_once_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By all processes of the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for expected in (True, False):
        monkeypatch.setattr(client, "_said", set())
        assert client.is_due("a limit") is expected
    assert not client.is_due("a limit")
    assert client.is_due("another")
