"""What every test sees: the engine that `make engine` left; and how tests are shared out among parallel processes."""

from __future__ import annotations

import compileall
import os
import shlex
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.printed import Printed

ROOT = Path(__file__).parent.parent


def _source_engine() -> None:
    """Read `.engine/env` as `make test` does, so that a single test can be run by hand as well."""
    path = ROOT / ".engine" / "env"
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        name, _, value = line.removeprefix("export ").partition("=")
        os.environ.setdefault(name, "".join(shlex.split(value)))


_source_engine()
_STATE = tempfile.TemporaryDirectory(prefix="records.")  # of the runs of this suite; removed at its end
os.environ["XDG_STATE_HOME"] = _STATE.name
# hundreds of processes of a suite load the package; some environments let none of them write its bytecode
compileall.compile_dir(ROOT / "skyward", quiet=1)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a suite in the background of a shell: its clients take Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Left to `make test-all`, with tests marked `alone` or `large`: what needs a cluster, another engine or minutes, and
# the second and third of a kind.
LARGE = frozenset(
    name
    for line in (
        # clusters and clouds
        "test_kubernetes test_kubernetes_conformance test_kubernetes_failures test_slurm test_slurm_conformance",
        "test_aws test_gcp test_clouds test_rented_runs test_budget",
        # frameworks: torch and joblib stay
        "test_dask test_jax test_keras test_ray test_ssh_frameworks test_framework_failures",
        # engines, networks and hosts that are stopped, cut or set up anew
        "test_engine_setup test_engines test_podman test_frozen_engine test_stalls test_networks",
        "test_ssh_faults test_ssh_ways test_ssh_clients test_ssh_trust test_look_over_ssh test_runs_over_ssh",
        "test_attached_runs test_replacement test_chaos",
        "test_ssh_conformance test_warm test_compose",
        # terminals, notebooks and buckets
        "test_look_in test_debugging test_notebooks test_volumes",
        # builds that take minutes, and builds elsewhere
        "test_by_hand test_source_packages test_shared_cache test_described_programs test_cli_remote",
    )
    for name in line.split()
)

_LEFT = ("alone", "large")  # marks of tests that are left to it as well


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--core", action="store_true", help="without the tests that `make test-all` alone runs")


def pytest_configure() -> None:
    _settle_hypothesis()


def _settle_hypothesis() -> None:
    """The same examples in each run, however slow the machine: what one run finds, the next one finds as well."""
    from hypothesis import HealthCheck, settings  # here: nodes may import this module, and have no hypothesis

    settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("suite")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """The tests of `--core`; with pytest-xdist, those of one group run in one process.

    The groups that take longest go first, so that short ones fill the processes that are free at the end.
    """
    if config.option.core:
        large = [item for item in items if item.path.stem in LARGE or any(map(item.get_closest_marker, _LEFT))]
        config.hook.pytest_deselected(items=large)
        items[:] = [item for item in items if item not in large]
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    yield
    if hasattr(config, "workerinput"):
        late = {"kubernetes": 2}  # it is being built meanwhile, where it is not there yet
        items.sort(key=lambda item: (late.get(_group(item), _group(item) == item.path.stem), "unit" in item.path.parts))


def _group(item: pytest.Item) -> str:
    """The file, but where a fixture of the whole session takes long to set up, all tests that ask for it.

    Tests on the three hosts take longest of all. They are two groups; each process that needs hosts has its own.
    """
    names = getattr(item, "fixturenames", ())
    if "newer_docker" in names:
        return "newer engine"
    if "cluster" in names:
        return "slurm"
    if "kube" in names:
        return "kubernetes"
    if "stand" in names:
        return "ssh" if item.path.stem.startswith("test_ssh") else "stand"
    return item.path.stem


@pytest.fixture
def printed() -> Printed:
    """What this test makes the client print, while its function runs."""
    return Printed()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Here and not in the fixture: between the two pytest sets the streams to its own."""
    printed = pyfuncitem.funcargs.get("printed")
    if not isinstance(printed, Printed):
        return (yield)
    with printed.collected():
        return (yield)
