"""What editors and type checkers offer of the public API: completion by jedi, types by mypy's rival pyright.

mypy checks `tests/typing/` with everything else (`make typing`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from inspect import signature
from pathlib import Path

import jedi
import pytest

import skyward as sky
from skyward.integrations._joblib import JoblibSettings
from skyward.plugins.registry import BUILT_IN

ROOT = Path(__file__).parents[2]
PYRIGHT_S = 120.0


def completed(code: str) -> set[str]:
    """What an editor offers at the end of a line."""
    script = jedi.Script(f"import skyward as sky\n{code}", project=jedi.Project(ROOT))
    return {completion.name for completion in script.complete()}


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("sky.", {*sky.__all__}),
        ("sky.plugins.", {*BUILT_IN}),
        ("sky.integrations.", {*sky.integrations.__all__}),
        ("sky.ComputePool(", {f"{name}=" for name in signature(sky.ComputePool).parameters} - {"others="}),
        ("sky.plugins.torch(", {"backend=", "cuda=", "version=", "vision=", "audio="}),
        ("sky.Image().", {"pip_install", "with_env", "run_commands"}),
        ("with sky.ComputePool() as pool:\n    pool.", {"map", "stats", "stages", "is_active"}),
    ],
    ids=["root", "plugins", "integrations", "pool", "plugin", "value", "object"],
)
def test_names_and_parameters_complete(code: str, names: set[str]) -> None:
    """Every public name, and the parameters and methods of what it stands for."""
    assert names <= completed(code)


def test_pools_of_joblib_take_the_settings_of_any_pool() -> None:
    """The types of what they pass on are written out, and are those of `ComputePool`."""
    pool = {name: str(kind) for name, kind in sky.ComputePool.__init__.__annotations__.items()}
    settings = {name: kind.__forward_arg__ for name, kind in JoblibSettings.__annotations__.items()}

    assert settings.pop("joblib_version") == "str | None"
    assert settings == {name: pool[name] for name in pool.keys() - {"provider", "plugins", "others", "return"}}


def test_pyright_agrees_with_mypy() -> None:
    """On what `tests/typing/` says of types and of mistakes; each mistake that it does not find is an error."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", "tests/typing"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PYRIGHT_S, check=False
        )
        found = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        pytest.skip("pyright's npm package is not installed, and no registry of npm packages can be reached")

    assert found["summary"]["filesAnalyzed"] == 2
    assert found["generalDiagnostics"] == []
