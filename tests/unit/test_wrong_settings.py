"""Wrong settings of pools, images and providers: refused with what is taken, before anything is made."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import skyward as sky
from skyward.errors import ConfigError, ProviderError
from skyward.nodes.local_host import check_memory

TORCH = sky.plugins.torch()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"accelerator": "H1000"}, r"is 'H100' meant\?"),
        ({"accelerator": "A100:0"}, r"at least 1; found 0"),
        ({"accelerator": "A100:-1"}, r"the number of devices per node, as in 'A100:4'"),
        ({"accelerator": "A100:1.5"}, r"the number of devices per node, as in 'A100:4'"),
        ({"accelerator": "A100 : 2"}, r"the number of devices per node, as in 'A100:4'"),
        ({"accelerator": "gpu"}, r"'gpu' is not known; known are T4, "),
        ({"accelerator": ["A100"]}, r"such as 'A100:4', or sky\.Accelerator\(\.\.\.\); found \['A100'\]"),
        ({"accelerator": ""}, r"needs a name such as 'A100'"),
        ({"nodes": -1}, r"at least 1.* found -1"),
        ({"nodes": 1.0}, r"found 1\.0"),
        ({"nodes": None}, r"found None"),
        ({"nodes": True}, r"found True"),
        ({"nodes": [1, 2]}, r"\(min, max\) .* found \[1, 2\]"),
        ({"nodes": (0, 2)}, r"1 <= min <= desired <= max must hold; found min=0"),
        ({"nodes": ()}, r"nodes as a tuple is \(min, max\); found \(\)"),
        ({"provider": sky.Docker}, r"the class Docker: write sky\.Docker\(\.\.\.\)"),
        ({"provider": {"docker": 1}}, r"found \{'docker': 1\}"),
        ({"provider": sky.Image(pip=["numpy"])}, r"found an image: write image=sky\.Image\(\.\.\.\)"),
        ({"provider": len}, r"found <built-in function len>"),
        ({"plugins": TORCH}, r"takes a list such as \[sky\.plugins\.torch\(\)\]"),
        ({"plugins": [sky.plugins.torch]}, r"is a function; call it: torch\(\)"),
        ({"plugins": ["torch"]}, r"write sky\.plugins\.torch\(\)"),
        ({"plugins": "torch"}, r"takes a list such as \[sky\.plugins\.torch\(\)\]"),
        ({"plugins": [TORCH, TORCH]}, r"both named 'torch'; list it once"),
        ({"env": {"A=B": "1"}}, r"'A=B' is not a name of an environment variable"),
        ({"env": {"SKYWARD_X": "1"}}, r"choose another name"),
        ({"env": {"A": None}}, r"the value of A must be text"),
        ({"secrets": "TOKEN"}, r"a list of names of environment variables, such as"),
        ({"secrets": ["NO_SUCH_TOKEN"]}, r"NO_SUCH_TOKEN is not set .* Export it"),
        ({"secrets": {"A": 1}}, r"the value of A must be text"),
        ({"volumes": "/data"}, r"takes a list of sky\.Volume\(\.\.\.\)"),
        ({"volumes": {"/a": "/b"}}, r"a URL such as 's3://bucket/prefix'; found '/b'"),
        ({"volumes": ["/a:/b"]}, r"takes sky\.Volume\(bucket, mount\)"),
        ({"memory": "lots"}, r"an amount such as '32GB'"),
        ({"cpu": "4"}, r"cpu= takes a number above 0; found '4'"),
        ({"worker": "process"}, r"takes a sky\.Worker\(\.\.\.\); found 'process'"),
        ({"concurrency": 0}, r"at least 1; found 0"),
        ({"concurrency": "2"}, r"at least 1; found '2'"),
        ({"display": "none"}, r"'auto' or 'quiet'; found 'none'"),
        ({"name": "a/b"}, r"a letter or digit first; found 'a/b'"),
        ({"keep": "30m"}, r"give name= as well"),
        ({"name": "x", "keep": "forever"}, r"such as '90s', '30m' or '2h'; found 'forever'"),
        ({"ttl": "60"}, r"a number of seconds above 0; found '60'"),
        ({"ttl": -1}, r"a number of seconds above 0; found -1"),
        ({"budget": 5}, r"sky\.Local rents none"),
        ({"allocation": "spots"}, r"sky\.Local rents none"),
    ],
)
def test_a_pool_refuses(settings: dict[str, Any], said: str) -> None:
    """What it cannot use."""
    with pytest.raises(ConfigError, match=said):
        sky.ComputePool(**{"provider": sky.Local(), **settings})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"pip": [1]}, r"pip must be a list of strings; found \[1\]"),
        ({"pip": None}, r"found None"),
        ({"pip": {"numpy": "1.0"}}, r"found \{'numpy': '1\.0'\}"),
        ({"pip": ["==1.0"]}, r"found '==1\.0' \(Expected package name"),
        ({"pip": [""]}, r"requirements such as 'numpy>=2'"),
        ({"pip": ["https://github.com/a/b"]}, r"write 'NAME @ git\+https://github\.com/a/b', with the package's name"),
        ({"apt": ["git curl"]}, r"each an entry of its own; write apt=\['git', 'curl'\]"),
        ({"apt": ["Git"]}, r"such as 'git' or 'git=1:2\.39\.5-0'; found 'Git'"),
        ({"python": "3"}, r"such as '3\.12'; found '3'"),
        ({"python": "python3.11"}, r"such as '3\.12'; found 'python3\.11'"),
        ({"python": "3.11.4"}, r"write python='3\.11', whose newest release it takes"),
        ({"base": "ubuntu latest"}, r"an image reference such as 'python:3\.12-slim'"),
        ({"base": "https://hub.docker.com/_/python"}, r"an image reference such as 'python:3\.12-slim'"),
        ({"env": {"A": 1}}, r"must be a string without NUL characters, such as '1'; found 1"),
        ({"env": ["A=1"]}, r"a mapping of names to strings"),
        ({"env": {"A B": "1"}}, r"letters, digits and '_'; found 'A B'"),
        ({"run": "apt-get install git"}, r"write run=\['apt-get install git'\]"),
        ({"platform": "linux-amd64"}, r"such as 'linux/amd64'"),
    ],
)
def test_an_image_refuses(fields: dict[str, Any], said: str) -> None:
    """What no image can be made of."""
    with pytest.raises(ConfigError, match=said):
        sky.Image(**fields)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: sky.SSH(), r"the names of one or more hosts, each once"),
        (lambda: sky.SSH(cast(Any, ["a", "b"])), r"as in sky\.SSH\('gpu1', 'gpu2'\); found \['a', 'b'\]"),
        (lambda: sky.SSH("a:99999"), r"ssh://user@host:port"),
        (lambda: sky.SSH("a", key="/no/such/key"), r"the file /no/such/key, which does not exist"),
        (lambda: sky.Worker(executor=cast(Any, "threads")), r"'auto', 'thread' or 'process'; found 'threads'"),
        (lambda: sky.Worker(per_node=cast(Any, "gpus")), r"the number of ranks on each node, or 'gpu'"),
        (lambda: sky.Worker(per_node=0), r"the number of ranks on each node, or 'gpu'; found 0"),
        (lambda: sky.Volume("data", "data"), r"an absolute path on the nodes, such as '/data'"),
        (lambda: sky.Volume("/data", "bucket"), r"'/data' is not a name of a bucket"),
        (lambda: sky.compute(retries=-1)(len), r"at least 0; found -1"),
        (lambda: sky.stdout(only=cast(Any, "first")), r'takes "head" or a function of InstanceInfo'),
        (lambda: sky.plugins.pytorch(), r"Did you mean 'torch'\?"),
        (lambda: cast(Any, sky.providers).Dockr(), r"Did you mean 'Docker'\?"),
        (lambda: sky.save(cast(Any, 0.9), "accuracy"), r"first argument of sky\.save is a name, .* found 0\.9"),
    ],
)
def test_other_values_are_refused(make: Callable[[], object], said: str) -> None:
    """By whatever takes them."""
    with pytest.raises(ConfigError, match=said):
        make()


def test_an_engine_with_less_memory_than_is_asked_for_is_refused() -> None:
    """As with processors; an engine that does not say what it has is not."""
    engine: Any = SimpleNamespace(url="unix:///e.sock", info={"MemTotal": 8 * 1024**3})
    check_memory(engine, 8)
    with pytest.raises(ProviderError, match=r"asks for 1,000 GiB of memory on each node; .* has 8\. Ask for less"):
        check_memory(engine, 1000)
    check_memory(cast(Any, SimpleNamespace(url="", info={})), 1000)


@pytest.mark.parametrize("module", ["random", "types", "json", "cloudpickle"])
def test_a_file_beside_the_program_that_hides_a_module_of_pythons_is_named(tmp_path: Path, module: str) -> None:
    """Python says only what it lacks."""
    (tmp_path / f"{module}.py").write_text("X = 1\n")
    (tmp_path / "main.py").write_text("import skyward as sky\n\nsky.ComputePool\n")
    done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    said = done.stderr.splitlines()[-1]
    assert said.startswith("ImportError: sky.ComputePool cannot be imported: the program's own ")
    assert f"/{module}.py is imported in place of the module {module} that skyward needs. Rename it." in said
