"""Mistakes that are easily made: each is an error that says what to do, before anything is made where that can be."""

from __future__ import annotations

import asyncio
import importlib
import operator
import subprocess
import sys
import threading
import traceback
import types
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import skyward as sky
from skyward.errors import ConfigError, NoActivePoolError, PoolError, ProviderError, SerializationError
from skyward.model.instance import ENV_VAR, InstanceInfo
from skyward.nodes.local_host import check_memory


@sky.compute
def same(x: Any) -> Any:
    return x


@sky.compute
def arguments(*given: Any) -> tuple[Any, ...]:
    return given


def divmod_of(a: int, b: int) -> tuple[int, int]:
    return divmod(a, b)


async def waiting(call: Any) -> Any:
    return await call


async def entering(pool: Any) -> None:
    async with pool:
        pass


async def later() -> AsyncIterator[int]:
    yield 1


@pytest.fixture(scope="module")
def local() -> Iterator[sky.ComputePool]:
    with sky.ComputePool(sky.Local(), display="quiet") as pool:
        yield pool


NAMES = {
    "TORCH": sky.plugins.torch(),
    "np": np,
    "types": types,
    "asyncio": asyncio,
    "threading": threading,
    **globals(),
}

# what is written, and words of the error
SETTINGS = [
    # pools
    ("sky.ComputePool(nodes=0)", "nodes= takes a whole number, at least 1"),
    ("sky.ComputePool(nodes=(3, 1))", "found (3, 1): write (1, 3)"),
    ("sky.ComputePool(nodes=(0, 2))", "1 <= min <= desired <= max must hold; found min=0"),
    ("sky.ComputePool(nodes=10**9)", "at most 10,000 nodes; found 1,000,000,000"),
    ("sky.ComputePool(sky.Local(), 2)", "one positional argument, the provider. Pass 2 as nodes=2."),
    ("sky.ComputePool(2)", "for a number of nodes write nodes=2"),
    ("sky.ComputePool('docker')", "write sky.Docker(...)"),
    ("sky.ComputePool(sky.Docker)", "the class Docker: write sky.Docker(...)"),
    ("sky.ComputePool(sky.Image(pip=['numpy']))", "found an image: write image=sky.Image(...)"),
    ("sky.ComputePool(image=sky.Image)", "the class Image: write sky.Image(...)"),
    ("sky.ComputePool(image='python:3.12')", "write sky.Image(base='python:3.12')"),
    ("sky.ComputePool(accelerator=2)", "such as 'A100:4', or sky.Accelerator(...); found 2"),
    ("sky.ComputePool(accelerator='A100x4')", "write 'A100:4'"),
    ("sky.ComputePool(accelerator='A10O')", "is 'A10' meant?"),
    ("sky.ComputePool(accelerator='A100:0')", "at least 1; found 0"),
    ("sky.ComputePool(accelerator='gpu')", "'gpu' is not known; known are T4, "),
    ("sky.ComputePool(plugins=TORCH)", "takes a list such as [sky.plugins.torch()]"),
    ("sky.ComputePool(plugins=[sky.plugins.torch])", "is a function; call it: torch()"),
    ("sky.ComputePool(plugins=['torch'])", "write sky.plugins.torch()"),
    ("sky.ComputePool(plugins=[TORCH, TORCH])", "both named 'torch'; list it once"),
    ("sky.ComputePool(env={'N': 3})", "write 'N': '3'"),
    ("sky.ComputePool(env=['A=1'])", "mapping from names to strings, such as"),
    ("sky.ComputePool(env={'A=B': '1'})", "'A=B' is not a name of an environment variable"),
    ("sky.ComputePool(env={'SKYWARD_X': '1'})", "choose another name"),
    ("sky.ComputePool(secrets='TOKEN')", "a list of names of environment variables, such as"),
    ("sky.ComputePool(secrets=['NO_SUCH_TOKEN'])", "NO_SUCH_TOKEN is not set"),
    ("sky.ComputePool(volumes='/data')", "takes a list of sky.Volume(...)"),
    ("sky.ComputePool(volumes={'/a': '/b'})", "a URL such as 's3://bucket/prefix'; found '/b'"),
    ("sky.ComputePool(memory='lots')", "an amount such as '32GB'"),
    ("sky.ComputePool(cpu='4')", "cpu= takes a number above 0; found '4'"),
    ("sky.ComputePool(worker=4)", "write concurrency=4"),
    ("sky.ComputePool(concurrency=0)", "at least 1; found 0"),
    ("sky.ComputePool(concurrency=100_000)", "found 100,000. Give more nodes"),
    ("sky.ComputePool(display='none')", "'auto' or 'quiet'; found 'none'"),
    ("sky.ComputePool(name='a/b')", "a letter or digit first; found 'a/b'"),
    ("sky.ComputePool(keep='30m')", "give name= as well"),
    ("sky.ComputePool(name='x', keep='forever')", "such as '90s', '30m' or '2h'; found 'forever'"),
    ("sky.ComputePool(ttl='5m')", "ttl= takes a number of seconds above 0; found '5m'"),
    ("sky.ComputePool(default_compute_timeout=True)", "takes a number of seconds above 0; found True"),
    ("sky.ComputePool(checkpoints=3)", "checkpoints= names a directory; found 3"),
    ("sky.ComputePool(sky.Local(), budget=5)", "sky.Local rents none"),
    # images
    ("sky.Image('python:3.12')", "by name; found 'python:3.12' without one."),
    ("sky.Image(python='3.99')", "found '3.99'"),
    ("sky.Image(python=3.12)", "write python='3.12'"),
    ("sky.Image(python='3.11.4')", "write python='3.11', whose newest release it takes"),
    ("sky.Image(platform='amd64')", "write platform='linux/amd64'"),
    ("sky.Image(base='ubuntu latest')", "an image reference such as 'python:3.12-slim'"),
    ("sky.Image(pip='numpy')", "write pip=['numpy']"),
    ("sky.Image(pip=[1])", "pip must be a list of strings; found [1]"),
    ("sky.Image(pip=['==1.0'])", "found '==1.0' (Expected package name"),
    ("sky.Image(pip=['numpy pandas'])", "write one entry for each, pip=['numpy', 'pandas']"),
    ("sky.Image(pip=['numpy=1.26'])", "write 'numpy==1.26'"),
    ("sky.Image(pip=['requirements.txt'])", "write requirements=['requirements.txt']"),
    ("sky.Image(pip=['https://github.com/a/b'])", "write 'NAME @ git+https://github.com/a/b', with the package's name"),
    ("sky.Image(apt=['git curl'])", "each an entry of its own; write apt=['git', 'curl']"),
    ("sky.Image(apt=['Git'])", "such as 'git' or 'git=1:2.39.5-0'; found 'Git'"),
    ("sky.Image(env={'A': 1})", "must be a string without NUL characters, such as '1'; found 1"),
    ("sky.Image(env={'A B': '1'})", "letters, digits and '_'; found 'A B'"),
    ("sky.Image(run='apt-get install git')", "write run=['apt-get install git']"),
    # functions, providers and the rest
    ("sky.compute(timeout=float('nan'))(len)", "above 0"),
    ("sky.compute(timeout=True)(len)", "A timeout is a number of seconds above 0"),
    ("sky.compute(timeout='5m')(len)", "found '5m'"),
    ("sky.compute(retries=-1)(len)", "at least 0; found -1"),
    ("sky.compute(retries=True)(len)", "found True: for once write retries=1"),
    ("sky.SSH()", "the names of one or more hosts, each once"),
    ("sky.SSH(['a', 'b'])", "as in sky.SSH('gpu1', 'gpu2'); found ['a', 'b']"),
    ("sky.SSH('a:99999')", "ssh://user@host:port"),
    ("sky.SSH('a', key='/no/such/key')", "the file /no/such/key, which does not exist"),
    ("sky.Docker(base_url='/run/docker.sock').find()", "write 'unix:///run/docker.sock'"),
    ("sky.AWS(region=3)", "sky.AWS: region is a string"),
    ("sky.Worker(executor='threads')", "'auto', 'thread' or 'process'; found 'threads'"),
    ("sky.Worker(per_node=0)", "the number of ranks on each node, or 'gpu'; found 0"),
    ("sky.Volume('data', 'data')", "an absolute path on the nodes, such as '/data'"),
    ("sky.Volume('/data', 'bucket')", "'/data' is not a name of a bucket"),
    ("sky.Volume('data', '/usr')", "holds the node's own files"),
    ("sky.Volume('data', '/data', prefix=None)", "prefix is a string"),
    ("sky.ComputePool(volumes={'/a': 's3://data', '/a/b': 's3://other'})", "hide each other"),
    ("sky.stdout(only='first')", 'takes "head" or a function of InstanceInfo'),
    ("sky.save(0.9, 'accuracy')", "first argument of sky.save is a name"),
    # names that come close
    ("sky.plugins.pytorch()", "Did you mean 'torch'?"),
    ("sky.providers.Dockr()", "Did you mean 'Docker'?"),
    ("sky.Image(pips=2)", "sky.Image has no parameter 'pips'; did you mean pip=?"),
    ("sky.Image(packages=2)", "'packages'. It takes: base, python, "),
    ("sky.ComputePool(node=2)", "ComputePool has no parameter 'node'; did you mean nodes=?"),
    ("sky.compute(timout=2)", "@sky.compute has no parameter 'timout'; did you mean timeout=?"),
    ("sky.Docker(usr=2)", "sky.Docker has no parameter 'usr'; did you mean user=?"),
    ("sky.plugins.torch(backnd=2)", "sky.plugins.torch has no parameter 'backnd'; did you mean backend=?"),
]


@pytest.mark.parametrize(("written", "said"), SETTINGS, ids=[written for written, _ in SETTINGS])
def test_a_wrong_setting_says_what_is_meant(written: str, said: str) -> None:
    """Before anything is made."""
    with pytest.raises(ConfigError) as refused:
        eval(written, NAMES)
    assert said in str(refused.value)


NOT_RUN = "same(1) is a call that has not run"
CALLS = [
    # decorating
    ("sky.compute(3)", TypeError, "decorates a function, found 3 of type int"),
    ("sky.compute(same)", TypeError, "same is a compute function already; decorate it once"),
    ("sky.compute(later)", TypeError, "later is an asynchronous generator"),
    ("sky.compute(classmethod(len))", TypeError, "of type classmethod"),
    # calling
    ("same()", TypeError, "same(): missing a required argument: 'x'"),
    ("same(1, 2)", TypeError, "same(): too many positional arguments"),
    ("same(1, y=2)", TypeError, "same(): got an unexpected keyword argument 'y'"),
    ("same >> pool", TypeError, "same is a function that was not called: write `same(...) >> pool`"),
    ("(same(1) & same) >> pool", TypeError, "was not called: write same(...)"),
    # what is not a pool
    ("same(1) >> 3", TypeError, "3 of type int"),
    ("same(1) @ types", TypeError, "the module types"),
    ("same(1) > SimpleNamespace", TypeError, "the class SimpleNamespace"),
    ("(same(1) & same(2)) >> same", TypeError, "the function same, which was not called: write same(...)"),
    ("sky.gather(stream=True) >> same(2)", TypeError, "same(2) of type PendingCompute"),
    ("same(1) >> [pool]", TypeError, "needs a pool, `sky` or `sky.sky` on its right"),
    ("same(1) >> sky.Local()", TypeError, "on its right, found Local() of type Local"),
    ("same(1) >> pool.open", TypeError, "open, which was not called: write open(...)"),
    ("same(1) >> sky.ComputePool(sky.Local())", PoolError, "not open: it has not been opened, or"),
    ("pool.open()", PoolError, "is open already; open a second ComputePool"),
    # the left of a pool
    ("pool >> same(1)", TypeError, "call stands on the left"),
    ("same(1) @ pool @ pool", TypeError, "found [1] of type list on the left"),
    ("11 >> sky.sky", TypeError, "on the left of the operator. Decorate the function"),
    ("np.ones(3) @ sky.sky", TypeError, "on the left of the operator. Decorate the function"),
    ("None > pool", TypeError, "on the left of the operator. Decorate the function"),
    ("[same(1), same(2)] >> sky.sky", TypeError, "`gather(*calls) >> pool`"),
    # groups
    ("same(1) & same(2) >> pool", TypeError, "write `(a & b) >> pool` with parentheses"),
    ("same(1) >> pool & same(2)", TypeError, "write `(a & b) >> pool` with parentheses"),
    ("sky.gather(same(1), same(2)) @ pool", TypeError, "`[call @ pool for call in calls]`"),
    ("(same(1) & same(2)) > pool", TypeError, "[call > pool for call in calls]"),
    ("sky.gather([same(1)])", TypeError, "unpack it: gather(*calls)"),
    ("sky.gather(same(n) for n in range(2))", TypeError, "unpack it: gather(*calls)"),
    # a call in place of its result
    ("-same(1)", TypeError, NOT_RUN),
    ("same(1) < 2", TypeError, NOT_RUN),
    ("bool(same(1))", TypeError, NOT_RUN),
    ("float(same(1))", TypeError, NOT_RUN),
    ("same(1)[0]", TypeError, NOT_RUN),
    ("same(1).shape", AttributeError, NOT_RUN),
    ("asyncio.run(waiting(same(1)))", TypeError, "Write `await (same(1) > pool)`"),
    # as other libraries write it
    ("asyncio.run(entering(pool))", TypeError, "opened by `with`, also in `async def`"),
    ("pool.run(same(1))", AttributeError, "Write `f(x) >> pool`"),
    ("pool.submit(same, 1)", AttributeError, "write `f(x) > pool`"),
    ("pool.starmap(same, [])", AttributeError, "sky.gather(*calls) >> pool"),
    ("same.remote(1)", AttributeError, "Write `same(...) >> pool`"),
    ("pool.map(same, 5)", TypeError, "range(5)"),
    ("pool.map(same(1), [5])", TypeError, "found the call same(1)"),
    ("pool.map([5], same)", TypeError, "in the function's place"),
    ("pool.map(same, [1], [2])", TypeError, "same() with an item of each of 2 iterables"),
    ("pool.map(divmod_of, [(7, 2)])", TypeError, "sky.gather(*(divmod_of(*item) for item in items))"),
    # what cannot be sent
    ("same(threading.Lock()) >> pool", SerializationError, "Create them inside the function"),
    ("sky.compute(threading.Lock)() >> pool", SerializationError, "Create them inside the function"),
    ("same({'pool': pool}) >> pool", SerializationError, "['pool'] of it gives TypeError: A pool exists in the client"),
    ("same(n for n in range(3)) >> pool", SerializationError, "Give it as a list"),
    ("same(same(1) > pool) >> pool", SerializationError, "future.result()"),
    ("sky.compute(lambda: NotImplemented)() >> pool", TypeError, "returned NotImplemented, which an operator"),
]


@pytest.mark.parametrize(("written", "kind", "said"), CALLS, ids=[written for written, _, _ in CALLS])
def test_a_call_written_wrongly_says_how_it_is_written(
    written: str, kind: type[Exception], said: str, local: sky.ComputePool
) -> None:
    """Without the frames of other libraries; nothing is compared by accident."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the calls are dropped
        with pytest.raises(kind) as refused:
            eval(written, {**NAMES, "pool": local})
    assert said in str(refused.value)
    assert "site-packages" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("target", [sky, sky.sky], ids=["module", "singleton"])
def test_without_a_pool_sky_says_how_to_open_one(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a node it says that the client sends calls."""
    for operate in (operator.rshift, operator.matmul, operator.gt):
        with pytest.raises(NoActivePoolError, match=r"`same\(1\) (>>|@|>) sky`.*sky\.ComputePool\(.*@sky\.pool\("):
            operate(same(1), target)
    place = InstanceInfo(node=1, total_nodes=2, head_addr="h", head_port=1)
    monkeypatch.setenv(ENV_VAR, place.to_json())
    with pytest.raises(NoActivePoolError, match=r"runs on node 1 of one\. .*let the client send it"):
        same(1) >> target


def test_aws_without_boto3_is_refused_when_the_pool_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when it is opened."""
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError, match=r"pip install 'skyward\[aws\]'"):
        sky.ComputePool(sky.AWS())


def raises(text: str) -> None:
    raise RuntimeError(text)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (sky.compute(raises)("Found no NVIDIA driver on your system."), "accelerator='A100'"),
        (sky.compute(raises)("Default process group has not been initialized"), "sky.plugins.torch()"),
        (sky.compute(open)("pyproject.toml"), "'pyproject.toml' is there for this program"),
    ],
)
def test_what_the_pool_could_have_given_is_said(call: Any, said: str, local: sky.ComputePool) -> None:
    """In a note of the function's own exception."""
    with pytest.raises((RuntimeError, FileNotFoundError)) as found:
        call >> local
    assert any(said in note for note in found.value.__notes__)


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


def test_an_engine_with_less_memory_than_is_asked_for_is_refused() -> None:
    """As with processors; an engine that does not say what it has is not."""
    engine: Any = SimpleNamespace(url="unix:///e.sock", info={"MemTotal": 8 * 1024**3})
    check_memory(engine, 8)
    with pytest.raises(ProviderError, match=r"asks for 1,000 GiB of memory on each node; .* has 8\. Ask for less"):
        check_memory(engine, 1000)
    check_memory(cast(Any, SimpleNamespace(url="", info={})), 1000)


@pytest.mark.parametrize("module", ["random", "json"])
def test_a_file_beside_the_program_that_hides_a_module_of_pythons_is_named(tmp_path: Path, module: str) -> None:
    """Python says only what it lacks."""
    (tmp_path / f"{module}.py").write_text("X = 1\n")
    (tmp_path / "main.py").write_text("import skyward as sky\n\nsky.ComputePool\n")
    done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    said = done.stderr.splitlines()[-1]
    assert said.startswith("ImportError: sky.ComputePool cannot be imported: the program's own ")
    assert f"/{module}.py is imported in place of the module {module} that skyward needs. Rename it." in said
